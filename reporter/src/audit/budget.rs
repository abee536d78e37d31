//! How much of the audit's time a policy, and all policies of a namespace together, may take. Pure.
//!
//! The evaluator judges one object at a time, so a slow policy delays the audit of all others. A policy may take some time in any case, and more
//! with each question that it has answered: honest policies take a fraction of that. One that takes more is not asked again in this period.
//! Scans that begin within a period share its budgets, because each edit of a policy causes a scan.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::hash::hash;
use super::subject::Subject;

/// What a policy may take in a period, whatever it is asked.
const POLICY: Duration = Duration::from_secs(30);
/// What all policies of a namespace together may take in a period, whatever they are asked.
const NAMESPACE: Duration = Duration::from_secs(60);
/// What comes on top for each object whose match conditions are evaluated. They are evaluated in each scan, as their answers are not remembered, and
/// honest ones take a fraction of that.
const EACH_MATCH: Duration = Duration::from_millis(1);
/// What comes on top for each question.
const EACH: Duration = Duration::from_millis(100);
/// What comes on top for each question at most, on a machine that is so busy that all policies are slow.
const MOST_EACH: Duration = Duration::from_millis(500);
/// How many times as long as others a policy may take for a question.
const FACTOR: u32 = 4;
/// The longest period.
const LONGEST_PERIOD: Duration = Duration::from_secs(3600);

/// The budgets of a period.
#[derive(Debug)]
pub(super) struct Budgets {
    period: Duration,
    accounts: HashMap<Payer, Account>,
}

/// Something with a budget of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Payer {
    /// A ClusterPolicy, by its uid.
    Cluster(String),
    /// A policy of a namespace, by its uid.
    Policy(String),
    /// All policies of a namespace.
    Namespace(String),
}

/// What was taken from a budget.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Account {
    since: Instant,
    /// The generation of the policy; 0 for a namespace.
    generation: i64,
    spent: Duration,
    questions: u32,
    /// What its match conditions took.
    matching: Duration,
    /// For how many objects.
    matched: u32,
    is_over: bool,
    /// Whether it was over in the previous period.
    was_over: bool,
    /// The number of times that a period was enough for all objects.
    round: u32,
}

/// The time in which a policy that is too slow for one period is asked about each of its objects once. It lasts until a period was enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Round(u64);

/// Why a policy is not asked any further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Over {
    /// Whether all policies of its namespace together have taken too much, and not the policy alone.
    pub(super) of_namespace: bool,
    /// The time that was taken.
    pub(super) spent: Duration,
    /// For how many questions.
    pub(super) questions: u32,
    /// Whether its match conditions took too much, and not the answers.
    pub(super) of_conditions: bool,
    /// When there is a new budget.
    pub(super) until: Instant,
}

impl Budgets {
    /// Budgets of an audit with this time between scans.
    pub(super) fn new(interval: Duration) -> Self {
        Self { period: interval.min(LONGEST_PERIOD), accounts: HashMap::new() }
    }

    /// Begins a scan of these policies. Budgets of an older period are renewed, and so is that of a policy with another generation, which may be
    /// the mended one. The budget of its namespace is not: edits give nobody more time.
    pub(super) fn begin(&mut self, subjects: &[Subject], now: Instant) {
        let mut accounts = HashMap::new();
        for (payer, generation, is_unfinished) in subjects.iter().flat_map(|subject| {
            let generations = [subject.generation, 0];
            let is_unfinished = !self.may_ask(subject);
            payers(subject)
                .into_iter()
                .flatten()
                .zip(generations)
                .map(move |(payer, generation)| (payer, generation, is_unfinished))
        }) {
            let old = self.accounts.get(&payer).filter(|old| old.generation == generation);
            let account = match old {
                Some(old) if !self.is_expired(old, now) => old.clone(),
                Some(old) => old.renewed(now, is_unfinished),
                None => Account::new(generation, now),
            };
            accounts.insert(payer, account);
        }
        // A namespace whose policies were deleted gets no new budget by making them again.
        for (payer, account) in &self.accounts {
            if matches!(payer, Payer::Namespace(_)) && !self.is_expired(account, now) {
                accounts.entry(payer.clone()).or_insert_with(|| account.clone());
            }
        }
        self.accounts = accounts;
    }

    /// Whether a policy may be asked.
    pub(super) fn may_ask(&self, subject: &Subject) -> bool {
        self.of(subject).all(|(_, account)| !account.is_over)
    }

    /// Whether a policy may be asked again about objects on which its evaluation has run to its deadline. It is not if these have used up the
    /// previous budget, so that the others are asked about first.
    pub(super) fn asks_late(&self, subject: &Subject) -> bool {
        self.of(subject).all(|(_, account)| !account.was_over)
    }

    /// The round in which a verdict that depends on others holds after it was given; none if the policy, so far, is quick enough to be asked
    /// about all objects in each scan.
    pub(super) fn kept_round(&self, subject: &Subject) -> Option<Round> {
        let is_slow = |account: &Account| account.was_over || account.spent > EACH.saturating_mul(account.questions);
        self.round(subject, is_slow)
    }

    /// The round that this scan goes on with: the previous period was not enough, or this one is not, so that the policy cannot be asked any further.
    pub(super) fn resumed_round(&self, subject: &Subject) -> Option<Round> {
        self.round(subject, |account| account.was_over || account.is_over)
    }

    fn round(&self, subject: &Subject, is_wanted: impl Fn(&Account) -> bool) -> Option<Round> {
        let own = self.of(subject).next().map(|(_, account)| account.round)?;
        let is_wanted = self.of(subject).any(|(_, account)| is_wanted(account));
        is_wanted.then(|| Round(hash(&(&subject.uid, subject.generation, own))))
    }

    /// Notes what a question to a policy took. True if it was the one by which the policy or its namespace has used up its budget.
    pub(super) fn took(&mut self, subject: &Subject, time: Duration) -> bool {
        let mut ends = false;
        for payer in payers(subject).into_iter().flatten() {
            let Some(account) = self.accounts.get_mut(&payer) else { continue };
            account.spent = account.spent.saturating_add(time);
            account.questions = account.questions.saturating_add(1);
            let account = account.clone();
            let base = payer.base();
            // What the others take is looked up only where it decides.
            let is_over = is_over(&account, base, Duration::ZERO) && is_over(&account, base, self.typical(subject));
            if is_over && !account.is_over {
                ends = true;
                self.accounts.insert(payer, Account { is_over, ..account });
            }
        }
        ends
    }

    /// Whether the match conditions of a policy may be evaluated. They have a budget of their own: a policy that is slow to answer keeps the verdicts
    /// that are remembered.
    pub(super) fn may_match(&self, subject: &Subject) -> bool {
        self.of(subject).all(|(payer, account)| !account.conditions_are_over(payer.base()))
    }

    /// Notes what the match conditions of a policy took for an object. True if it was the object by which this budget is used up.
    pub(super) fn matched(&mut self, subject: &Subject, time: Duration) -> bool {
        let could = self.may_match(subject);
        for payer in payers(subject).into_iter().flatten() {
            if let Some(account) = self.accounts.get_mut(&payer) {
                account.matching = account.matching.saturating_add(time);
                account.matched = account.matched.saturating_add(1);
            }
        }
        could && !self.may_match(subject)
    }

    /// Why a policy is not asked any further; none if it may be asked.
    pub(super) fn over(&self, subject: &Subject) -> Option<Over> {
        let conditions = |payer: &Payer, account: &Account| account.conditions_are_over(payer.base());
        let over = || self.of(subject).filter(|(payer, account)| account.is_over || conditions(payer, account));
        let until = over().map(|(_, account)| account.since + self.period).max()?;
        let (payer, account) = over().next()?;
        let of_namespace = matches!(payer, Payer::Namespace(_));
        let of_conditions = conditions(&payer, account);
        let spent = if of_conditions { account.matching } else { account.spent };
        Some(Over { of_namespace, spent, questions: account.questions, of_conditions, until })
    }

    fn of(&self, subject: &Subject) -> impl Iterator<Item = (Payer, &Account)> {
        payers(subject).into_iter().flatten().filter_map(|payer| Some((payer.clone(), self.accounts.get(&payer)?)))
    }

    fn is_expired(&self, account: &Account, now: Instant) -> bool {
        now.saturating_duration_since(account.since) >= self.period
    }

    /// The time that others take for a question: the median of ClusterPolicies and namespaces, in which a namespace counts once, however many
    /// policies it has.
    fn typical(&self, subject: &Subject) -> Duration {
        let own = payers(subject);
        let is_other =
            |payer: &Payer| !matches!(payer, Payer::Policy(_)) && !own.iter().flatten().any(|own| own == payer);
        let others = self.accounts.iter().filter(|(payer, account)| is_other(payer) && account.questions > 0);
        let mut means: Vec<_> = others.map(|(_, account)| account.spent / account.questions).collect();
        means.sort_unstable();
        means.get(means.len().saturating_sub(1) / 2).copied().unwrap_or_default()
    }
}

impl Account {
    fn new(generation: i64, since: Instant) -> Self {
        Self {
            since,
            generation,
            spent: Duration::ZERO,
            questions: 0,
            matching: Duration::ZERO,
            matched: 0,
            is_over: false,
            was_over: false,
            round: 0,
        }
    }

    /// The account of the next period. `is_unfinished` says whether this one was not enough, be it for the policy or for its namespace.
    fn renewed(&self, since: Instant, is_unfinished: bool) -> Self {
        let round = if is_unfinished { self.round } else { self.round.wrapping_add(1) };
        Self { was_over: self.is_over, round, ..Self::new(self.generation, since) }
    }

    /// Whether match conditions took more than `base` and what comes on top.
    fn conditions_are_over(&self, base: Duration) -> bool {
        self.matching >= base.saturating_add(EACH_MATCH.saturating_mul(self.matched))
    }
}

impl Payer {
    fn base(&self) -> Duration {
        match self {
            Self::Cluster(_) | Self::Policy(_) => POLICY,
            Self::Namespace(_) => NAMESPACE,
        }
    }
}

/// What a question to a policy is paid from: its own budget, and that of its namespace.
fn payers(subject: &Subject) -> [Option<Payer>; 2] {
    let uid = subject.uid.clone();
    match subject.id.namespace() {
        None => [Some(Payer::Cluster(uid)), None],
        Some(namespace) => [Some(Payer::Policy(uid)), Some(Payer::Namespace(namespace.to_owned()))],
    }
}

/// Whether more was taken than `base` and what comes on top. Others take `typical` for a question.
fn is_over(account: &Account, base: Duration, typical: Duration) -> bool {
    let each = typical.saturating_mul(FACTOR).clamp(EACH, MOST_EACH);
    account.spent > base.saturating_add(each.saturating_mul(account.questions))
}

#[cfg(test)]
mod tests {
    use portcullis_api::{Kind, PolicyKey};
    use serde_json::json;

    use super::*;
    use crate::audit::in_force::Content;
    use crate::audit::subject::{Read, Served, Site, read};

    const INTERVAL: Duration = Duration::from_secs(3600);
    const DEADLINE: Duration = Duration::from_secs(10);
    const QUICK: Duration = Duration::from_millis(1);

    /// A policy of a namespace, or a ClusterPolicy.
    fn subject(namespace: Option<&str>, name: &str, generation: i64) -> Subject {
        let site = Site { policy_server: "default".into(), namespace: "portcullis".into() };
        let uid = format!("uid-{name}");
        let mut object = json!({"metadata": {"name": name, "uid": uid}, "spec": {"rules": []}});
        let kind = namespace.map_or(Kind::ClusterPolicy, |_| Kind::Policy);
        object["metadata"]["namespace"] = json!(namespace);
        match read(kind, &object, &Content::Own, &site, &Served::from([(PolicyKey::of(&uid), generation)])) {
            Some(Read::Subject(subject)) => *subject,
            other => panic!("{other:?}"),
        }
    }

    fn begun(subjects: &[Subject], now: Instant) -> Budgets {
        let mut budgets = Budgets::new(INTERVAL);
        budgets.begin(subjects, now);
        budgets
    }

    /// How many questions of this length a policy is asked, of `most` at most.
    fn asked(budgets: &mut Budgets, subject: &Subject, time: Duration, most: u32) -> u32 {
        let mut count = 0;
        while count < most && budgets.may_ask(subject) {
            budgets.took(subject, time);
            count += 1;
        }
        count
    }

    #[test]
    fn a_policy_that_runs_to_its_deadline_is_given_up_and_the_others_are_not() {
        let all = [subject(Some("a"), "loops", 1), subject(Some("b"), "fine", 1), subject(None, "all", 1)];
        let mut budgets = begun(&all, Instant::now());
        assert_eq!(asked(&mut budgets, &all[0], DEADLINE, 1000), 4, "30 s, and 100 ms for each question");
        assert_eq!(asked(&mut budgets, &all[1], QUICK, 1000), 1000);
        assert_eq!(asked(&mut budgets, &all[2], QUICK * 50, 1000), 1000);
        assert!(budgets.over(&all[1]).is_none() && budgets.over(&all[2]).is_none());
        let over = budgets.over(&all[0]).expect("it has used up its budget");
        assert_eq!((over.of_namespace, over.spent, over.questions), (false, DEADLINE * 4, 4));
    }

    #[test]
    fn slow_match_conditions_have_a_budget_of_their_own() {
        let all = [subject(Some("a"), "slow", 1), subject(Some("a"), "other", 1), subject(Some("b"), "fine", 1)];
        let mut budgets = begun(&all, Instant::now());
        let matched = |budgets: &mut Budgets, subject: &Subject| {
            let mut count = 0;
            while count < 1000 && budgets.may_match(subject) {
                budgets.matched(subject, DEADLINE);
                count += 1;
            }
            count
        };
        assert_eq!(matched(&mut budgets, &all[0]), 4, "30 s, and 1 ms for each object");
        assert_eq!(matched(&mut budgets, &all[1]), 3, "the rest of the 60 s of their namespace");
        assert!(budgets.may_match(&all[2]));
        let over = budgets.over(&all[0]).expect("its conditions have used up their budget");
        assert_eq!((over.of_conditions, over.spent), (true, DEADLINE * 4));
        assert!(budgets.may_ask(&all[0]), "answers have another budget");
    }

    #[test]
    fn match_conditions_that_are_quick_are_evaluated_for_every_object_of_every_scan() {
        let all = [subject(Some("a"), "quick", 1), subject(None, "quick-too", 1)];
        let mut budgets = begun(&all, Instant::now());
        for one in &all {
            let ends = (0..60_000).any(|_| budgets.matched(one, Duration::from_micros(900)));
            assert!(!ends && budgets.may_match(one) && budgets.over(one).is_none(), "54 s for 60,000 objects");
        }
    }

    #[test]
    fn many_policies_of_one_namespace_take_no_more_than_the_namespace_may() {
        let mut all: Vec<_> = (0..20).map(|number| subject(Some("a"), &format!("loops-{number}"), 1)).collect();
        all.push(subject(Some("b"), "fine", 1));
        let mut budgets = begun(&all, Instant::now());
        let counts: Vec<_> = all.iter().map(|one| asked(&mut budgets, one, DEADLINE, 2)).collect();
        assert_eq!(counts.iter().take(20).sum::<u32>(), 7, "60 s, and 100 ms for each question: {counts:?}");
        assert_eq!(counts[20], 2, "another namespace");
        assert!(budgets.over(&all[10]).is_some_and(|over| over.of_namespace && over.questions == 7));
    }

    #[test]
    fn the_budget_is_that_of_a_period_and_edits_give_a_namespace_no_more() {
        let begin = Instant::now();
        let mut budgets = begun(&[subject(Some("a"), "loops", 1)], begin);
        let mut total = asked(&mut budgets, &subject(Some("a"), "loops", 1), DEADLINE, 1000);
        for generation in 1..50 {
            let edited = subject(Some("a"), "loops", generation);
            // Another policy of the namespace is deleted and made again each time.
            let made = subject(Some("a"), &format!("new-{generation}"), 1);
            budgets.begin(&[edited, made], begin + Duration::from_secs(10));
            total += asked(&mut budgets, &subject(Some("a"), "loops", generation), DEADLINE, 1000);
            total += asked(&mut budgets, &subject(Some("a"), &format!("new-{generation}"), 1), DEADLINE, 1000);
            budgets.begin(&[], begin + Duration::from_secs(10));
        }
        assert_eq!(total, 7);
        let last = subject(Some("a"), "loops", 49);
        budgets.begin(std::slice::from_ref(&last), begin + INTERVAL - QUICK);
        assert!(budgets.over(&last).is_some_and(|over| over.until == begin + INTERVAL));
        budgets.begin(std::slice::from_ref(&last), begin + INTERVAL);
        assert!(budgets.may_ask(&last) && budgets.over(&last).is_none());
    }

    #[test]
    fn a_mended_generation_is_asked_at_once() {
        let now = Instant::now();
        let (loops, mended) = (subject(Some("a"), "one", 1), subject(Some("a"), "one", 2));
        let mut budgets = begun(std::slice::from_ref(&loops), now);
        asked(&mut budgets, &loops, DEADLINE, 1000);
        budgets.begin(std::slice::from_ref(&mended), now + DEADLINE);
        assert!(budgets.asks_late(&mended));
        assert_eq!(asked(&mut budgets, &mended, QUICK, 1000), 1000);
    }

    #[test]
    fn what_a_slow_policy_has_said_holds_as_soon_as_it_cannot_be_asked_and_until_a_period_was_enough() {
        let now = Instant::now();
        let all = [subject(Some("a"), "slow", 1)];
        let mut budgets = begun(&all, now);
        assert!(budgets.kept_round(&all[0]).is_none() && budgets.resumed_round(&all[0]).is_none());
        asked(&mut budgets, &all[0], DEADLINE, 1);
        let round = budgets.kept_round(&all[0]);
        assert!(round.is_some() && budgets.resumed_round(&all[0]).is_none(), "it can still be asked");
        asked(&mut budgets, &all[0], DEADLINE, 1000);
        for time in [now, now + DEADLINE, now + INTERVAL] {
            budgets.begin(&all, time);
            assert_eq!((budgets.kept_round(&all[0]), budgets.resumed_round(&all[0])), (round, round));
        }
        budgets.begin(&all, now + INTERVAL * 2);
        assert_eq!(budgets.resumed_round(&all[0]), None, "the period before this one was enough");
    }

    #[test]
    fn after_a_budget_was_used_up_the_objects_that_took_it_are_not_the_first_ones_again() {
        let now = Instant::now();
        let all = [subject(None, "some", 1)];
        let mut budgets = begun(&all, now);
        assert!(budgets.asks_late(&all[0]));
        asked(&mut budgets, &all[0], DEADLINE, 1000);
        budgets.begin(&all, now + INTERVAL);
        assert!(!budgets.asks_late(&all[0]) && budgets.may_ask(&all[0]));
        budgets.begin(&all, now + INTERVAL * 2);
        assert!(budgets.asks_late(&all[0]), "the period before this one was enough");
    }

    #[test]
    fn where_all_are_slow_nobody_is_given_up_sooner_than_others() {
        let all = [subject(None, "one", 1), subject(None, "two", 1), subject(Some("a"), "own", 1)];
        let slow = Duration::from_millis(400);
        let mut budgets = begun(&all, Instant::now());
        let counts = all.each_ref().map(|one| {
            // The others have answered some questions before.
            for other in &all {
                asked(&mut budgets, other, slow, 10);
            }
            asked(&mut budgets, one, slow, 1000)
        });
        assert_eq!(counts, [1000; 3]);
        // However slow the others are, there is a limit.
        assert!(asked(&mut budgets, &all[0], DEADLINE, 1000) < 1000);
    }

    #[test]
    fn one_namespace_of_slow_policies_does_not_make_slow_normal() {
        let mut all: Vec<_> = (0..9).map(|number| subject(Some("a"), &format!("loops-{number}"), 1)).collect();
        all.extend([subject(None, "one", 1), subject(None, "two", 1), subject(Some("b"), "loops", 1)]);
        let mut budgets = begun(&all, Instant::now());
        for one in &all[9..11] {
            asked(&mut budgets, one, QUICK, 100);
        }
        for one in &all[..9] {
            asked(&mut budgets, one, DEADLINE, 1);
        }
        assert_eq!(asked(&mut budgets, &all[11], DEADLINE, 1000), 4);
    }

    #[test]
    fn a_long_interval_has_periods_of_an_hour() {
        let (now, all) = (Instant::now(), [subject(None, "loops", 1)]);
        let mut budgets = Budgets::new(INTERVAL * 24);
        budgets.begin(&all, now);
        asked(&mut budgets, &all[0], DEADLINE, 1000);
        assert!(budgets.over(&all[0]).is_some_and(|over| over.until == now + LONGEST_PERIOD));
    }
}
