//! The order in which jobs get slots of what is scarce: downloads from one host, compile children, readers of the volume. Pure: no
//! clock, no task, no lock.
//!
//! **The order.** First what ClusterPolicies want, as they guard the whole cluster and only its administrators write them. Then what
//! served before, so that a fresh pod starts with every tenant's last good state. Then the rest. Among equals, namespaces take turns: the
//! namespace that holds the fewest slots is next, then the one that has had the least time, then the one whose last turn is longest ago,
//! and within it the job that came first. A job that several tenants want has the best of their places.
//!
//! **No job waits for ever.** Every fourth slot is given in turn, regardless of need. Otherwise namespaces with many policies that served
//! before and can no longer be fetched would hold up all new policies.
//!
//! **One slot is left.** A slow job runs for minutes. So a namespace may hold all slots but one, even while no other waits: the next
//! namespace finds that one free. ClusterPolicies may hold all slots. Where there is only one slot, a namespace may hold that.
//!
//! **Compile children are ended for others**, as there may be only one slot for them: [`preempt`](super::preempt) says when, and what is
//! done for them in place of giving every fourth slot in turn.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_contract::Tenant;

use super::preempt::{self, Account, Class, PATIENCE};
use crate::claims::{Claims, Need};

/// One slot in this many is given in turn, regardless of need.
const ROUND: u64 = 4;

/// Slots, and the jobs that wait for one. `W` is how a waiting job is notified.
pub(super) struct Queue<W> {
    slots: usize,
    /// Whether running jobs are ended for others.
    preempts: bool,
    tenants: HashMap<Tenant, Account>,
    /// The waiting jobs, by ticket.
    waiting: BTreeMap<u64, Waiter<W>>,
    /// The running jobs, by ticket.
    running: BTreeMap<u64, Running>,
    tickets: u64,
    /// How many slots have been given so far.
    turns: u64,
    /// When a job of a namespace came to its end last, or was sure to do so; at first, when the first job came. `None` while the queue is
    /// idle.
    last_end: Option<Instant>,
}

struct Waiter<W> {
    claims: Arc<Claims>,
    waiter: W,
}

struct Running {
    /// The tenant that the slot counts for.
    tenant: Tenant,
    class: Class,
    since: Instant,
    /// Whether it is not ended for others.
    is_kept: bool,
    /// Whether it was chosen to end for another.
    must_end: bool,
}

/// A job's place in the order; the smallest is next.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    class: Class,
    held: usize,
    used: Duration,
    turn: u64,
    need: Need,
    ticket: u64,
}

impl<W> Queue<W> {
    /// A queue for this many slots, at least one.
    pub(super) fn new(slots: usize) -> Self {
        Self {
            slots: slots.max(1),
            preempts: false,
            tenants: HashMap::new(),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            tickets: 0,
            turns: 0,
            last_end: None,
        }
    }

    /// The same, where running jobs are ended for others.
    pub(super) fn preempting(slots: usize) -> Self {
        Self { preempts: true, ..Self::new(slots) }
    }

    /// Adds a waiting job and returns its ticket.
    pub(super) fn wait(&mut self, claims: Arc<Claims>, waiter: W, now: Instant) -> u64 {
        self.tickets += 1;
        self.last_end.get_or_insert(now);
        self.waiting.insert(self.tickets, Waiter { claims, waiter });
        self.tickets
    }

    /// Removes a job that no longer waits; `None` if it had already left.
    pub(super) fn leave(&mut self, ticket: u64) -> Option<W> {
        let gone = self.waiting.remove(&ticket).map(|waiter| waiter.waiter);
        self.tidy();
        gone
    }

    /// Updates which tenants need the waiting jobs.
    pub(super) fn renew(&mut self, claims: impl Fn(&W) -> Arc<Claims>) {
        for waiter in self.waiting.values_mut() {
            waiter.claims = claims(&waiter.waiter);
        }
    }

    /// The next job that gets a slot, with its ticket. Call it until it returns `None`.
    pub(super) fn next(&mut self, now: Instant) -> Option<(u64, W)> {
        if self.running.len() >= self.slots {
            return None;
        }
        let goes_round = self.goes_round(now);
        let (rank, tenant) = self.first(goes_round, None)?;
        let waiter = self.waiting.remove(&rank.ticket)?.waiter;
        self.turns += 1;
        if goes_round {
            self.last_end = Some(now);
        }
        let account = self.tenants.entry(tenant.clone()).or_default();
        account.held += 1;
        account.turn = self.turns;
        let class = Class::of(&tenant, rank.need);
        let running = Running { tenant, class, since: now, is_kept: goes_round, must_end: false };
        self.running.insert(rank.ticket, running);
        Some((rank.ticket, waiter))
    }

    /// Chooses a running job that must end now, so that a waiting one gets its slot. Where several could, it is one that is needed least,
    /// and of these the last that began. Call it when [`Self::next`] returns `None`; it chooses the next one when that slot was given back.
    pub(super) fn preempt(&mut self, now: Instant) -> Option<u64> {
        if !self.preempts || self.running.values().any(|running| running.must_end) {
            return None;
        }
        let gives_way = |running: &Running| {
            let Some((rank, tenant)) = self.first(false, Some(running)) else { return false };
            let next = (Class::of(&tenant, rank.need), self.account(&tenant, None));
            let ran = now.saturating_duration_since(running.since);
            !running.is_kept && preempt::ends(next, (running.class, self.account(&running.tenant, None)), ran)
        };
        let candidates = self.running.iter().filter(|(_, running)| gives_way(running));
        let (ticket, _) = candidates.max_by_key(|(ticket, running)| (running.class, running.since, **ticket))?;
        let ticket = *ticket;
        self.running.get_mut(&ticket)?.must_end = true;
        Some(ticket)
    }

    /// Gives back the slot of the job with this ticket.
    pub(super) fn give_back(&mut self, ticket: u64, now: Instant) {
        let Some(running) = self.running.remove(&ticket) else { return };
        if let Some(account) = self.tenants.get_mut(&running.tenant) {
            account.held -= 1;
            account.used += now.saturating_duration_since(running.since);
        }
        if running.class != Class::Cluster && !running.must_end {
            self.last_end = Some(now);
        }
        self.tidy();
    }

    /// Whether no job holds a slot or waits for one.
    fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Whether the next slot is given in turn, regardless of need.
    fn goes_round(&self, now: Instant) -> bool {
        if self.preempts {
            self.last_end.is_some_and(|end| now.saturating_duration_since(end) >= PATIENCE)
        } else {
            (self.turns + 1).is_multiple_of(ROUND)
        }
    }

    /// The first of the waiting jobs that may have a slot, and the tenant that the slot would count for; `without` a running job, as if it
    /// had ended.
    fn first(&self, goes_round: bool, without: Option<&Running>) -> Option<(Rank, Tenant)> {
        let ranked = self.waiting.iter().flat_map(|(ticket, waiter)| {
            waiter.claims.iter().filter_map(move |(tenant, need)| {
                let Account { held, used, turn } = self.account(tenant, without);
                let class = if goes_round { Class::New } else { Class::of(tenant, need) };
                let rank = Rank { class, held, used, turn, need, ticket: *ticket };
                self.leaves_room(tenant, held).then_some((rank, tenant))
            })
        });
        let (rank, tenant) = ranked.min_by(|(one, _), (other, _)| one.cmp(other))?;
        Some((rank, tenant.clone()))
    }

    /// Whether a tenant that holds this many slots may have one more.
    fn leaves_room(&self, tenant: &Tenant, held: usize) -> bool {
        match tenant {
            Tenant::Cluster => true,
            Tenant::Namespace(_) => held < (self.slots - 1).max(1),
        }
    }

    fn account(&self, tenant: &Tenant, without: Option<&Running>) -> Account {
        let mut account = self.tenants.get(tenant).copied().unwrap_or_default();
        account.held -= usize::from(without.is_some_and(|running| running.tenant == *tenant));
        account
    }

    /// Forgets tenants while the queue is idle; otherwise those of past policies would pile up.
    fn tidy(&mut self) {
        if self.is_idle() {
            self.tenants.clear();
            self.last_end = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Claims from words: `cluster`, `a` for a namespace, and `a!` for what served there before.
    fn claims(wanted: &[&str]) -> Arc<Claims> {
        let mut claims = Claims::default();
        for one in wanted {
            let need = if one.ends_with('!') { Need::Served } else { Need::New };
            let tenant = match one.trim_end_matches('!') {
                "cluster" => Tenant::Cluster,
                name => Tenant::Namespace(name.into()),
            };
            claims.add(&tenant, need);
        }
        Arc::new(claims)
    }

    struct Table {
        queue: Queue<&'static str>,
        running: Vec<(u64, &'static str)>,
        now: Instant,
    }

    impl Table {
        fn new(slots: usize) -> Self {
            Self { queue: Queue::new(slots), running: Vec::new(), now: Instant::now() }
        }

        fn preempting(slots: usize) -> Self {
            Self { queue: Queue::preempting(slots), ..Self::new(slots) }
        }

        /// Adds waiting jobs: the name of each, and the tenants that want it.
        fn wait(&mut self, waiting: &[(&'static str, &[&str])]) {
            for (name, wanted) in waiting {
                self.queue.wait(claims(wanted), name, self.now);
            }
        }

        fn begin(&mut self) -> Vec<&'static str> {
            let mut begun = Vec::new();
            while let Some((ticket, name)) = self.queue.next(self.now) {
                begun.push(name);
                self.running.push((ticket, name));
            }
            begun
        }

        /// Ends a job, and returns the jobs that begin in its place.
        fn end(&mut self, name: &str) -> Vec<&'static str> {
            let place = self.running.iter().position(|(_, running)| *running == name).expect("it runs");
            let (ticket, _) = self.running.remove(place);
            self.queue.give_back(ticket, self.now);
            self.begin()
        }

        /// The job that is ended for another after it ran for this many more seconds, and the jobs that begin in its place. It waits again
        /// for these tenants.
        fn preempt(&mut self, seconds: u64, wanted: &[&str]) -> Option<(&'static str, Vec<&'static str>)> {
            self.now += Duration::from_secs(seconds);
            let ticket = self.queue.preempt(self.now)?;
            let (_, name) = *self.running.iter().find(|(running, _)| *running == ticket).expect("it runs");
            assert_eq!(self.queue.preempt(self.now), None, "one at a time");
            let begun = self.end(name);
            self.wait(&[(name, wanted)]);
            Some((name, begun))
        }

        /// Runs all jobs, each once the one before has ended, and returns their order.
        fn one_by_one(&mut self) -> Vec<&'static str> {
            let begun = self.begin();
            self.go_on(begun)
        }

        /// Ends this job, and runs all others like that.
        fn one_by_one_from(&mut self, name: &str) -> Vec<&'static str> {
            let begun = self.end(name);
            self.go_on(begun)
        }

        fn go_on(&mut self, mut order: Vec<&'static str>) -> Vec<&'static str> {
            while let Some((_, name)) = self.running.first().cloned() {
                order.extend(self.end(name));
            }
            order
        }
    }

    #[test]
    fn z09_cluster_policies_come_first_then_what_served_then_the_rest() {
        let mut table = Table::new(1);
        table.wait(&[("new", &["a"]), ("served", &["b!"]), ("guard", &["cluster"])]);
        assert_eq!(table.one_by_one(), ["guard", "served", "new"]);
    }

    #[test]
    fn z09_it_goes_round_over_namespaces_and_within_one_by_age() {
        let mut table = Table::new(1);
        table.wait(&[("a1", &["a"]), ("a2", &["a"]), ("a3", &["a"]), ("b1", &["b"]), ("b2", &["b"]), ("c1", &["c"])]);
        assert_eq!(table.one_by_one(), ["a1", "b1", "c1", "a2", "b2", "a3"]);
    }

    #[test]
    fn z09_within_a_namespace_what_served_comes_first() {
        let mut table = Table::new(1);
        table.wait(&[("a1", &["a"]), ("a2", &["a!"]), ("b1", &["b!"])]);
        assert_eq!(table.one_by_one(), ["a2", "b1", "a1"]);
    }

    #[test]
    fn z09_what_several_want_has_the_best_place_of_theirs() {
        let mut table = Table::new(1);
        table.wait(&[("a1", &["a"]), ("a2", &["a"]), ("shared", &["a", "z"]), ("guarded", &["a", "cluster"])]);
        assert_eq!(table.one_by_one(), ["guarded", "a1", "shared", "a2"]);
    }

    #[test]
    fn z09_a_namespace_leaves_a_slot_to_the_others_before_they_come() {
        let mut table = Table::new(4);
        table.wait(&[("a1", &["a"]), ("a2", &["a"]), ("a3", &["a"]), ("a4", &["a"]), ("a5", &["a!"])]);
        assert_eq!(table.begin(), ["a5", "a1", "a2"]);
        table.wait(&[("b1", &["b"]), ("b2", &["b"])]);
        assert_eq!(table.begin(), ["b1"]);
        assert_eq!(table.end("a1"), ["b2"], "who holds less comes first, and what runs goes on");
        assert_eq!(table.end("b1"), ["a3"]);
    }

    #[test]
    fn one_slot_can_be_had_and_cluster_policies_may_have_all() {
        let mut table = Table::new(0);
        table.wait(&[("a1", &["a"])]);
        assert_eq!(table.begin(), ["a1"]);
        let mut table = Table::new(2);
        table.wait(&[("one", &["cluster"]), ("two", &["cluster"])]);
        assert_eq!(table.begin(), ["one", "two"]);
    }

    #[test]
    fn z09_what_cannot_be_had_any_more_holds_up_new_policies_for_three_turns_at_most() {
        let mut table = Table::new(1);
        table.wait(&[("a1", &["a!"]), ("b1", &["b!"]), ("a2", &["a!"]), ("b2", &["b!"]), ("new", &["c"])]);
        assert_eq!(table.one_by_one(), ["a1", "b1", "a2", "new", "b2"]);
    }

    #[test]
    fn who_wants_it_may_change_while_it_waits() {
        let mut table = Table::new(1);
        table.wait(&[("a1", &["a"]), ("a2", &["a"]), ("a3", &["a"])]);
        table.queue.renew(|name| claims(if *name == "a3" { &["a", "cluster"] } else { &["a"] }));
        assert_eq!(table.one_by_one(), ["a3", "a1", "a2"]);
        table.wait(&[("nobody", &[])]);
        assert_eq!(table.begin(), Vec::<&str>::new());
    }

    #[test]
    fn nothing_is_remembered_of_who_is_gone() {
        let mut table = Table::new(1);
        table.wait(&[("a1", &["a"])]);
        let ticket = table.queue.wait(claims(&["b"]), "b1", table.now);
        assert_eq!(table.begin(), ["a1"]);
        assert_eq!((table.queue.leave(ticket), table.queue.leave(ticket)), (Some("b1"), None));
        assert_eq!(table.end("a1"), Vec::<&str>::new());
        assert!(table.queue.is_idle() && table.queue.tenants.is_empty());
    }

    #[test]
    fn z09_among_equals_the_namespace_with_the_least_time_is_next() {
        let mut table = Table::new(1);
        table.wait(&[("a1", &["a"]), ("a2", &["a"]), ("b1", &["b"]), ("b2", &["b"]), ("b3", &["b"])]);
        assert_eq!(table.begin(), ["a1"]);
        table.now += Duration::from_secs(9);
        assert_eq!(table.end("a1"), ["b1"]);
        table.now += Duration::from_secs(2);
        assert_eq!(table.end("b1"), ["b2"]);
        table.now += Duration::from_secs(8);
        assert_eq!(table.end("b2"), ["a2"]);
    }

    #[test]
    fn z09_a_slow_new_job_with_the_only_slot_must_end_for_what_is_needed_more_and_has_its_turn_after_it() {
        let mut table = Table::preempting(1);
        table.wait(&[("slow", &["a"])]);
        assert_eq!(table.begin(), ["slow"]);
        table.wait(&[("a2", &["a"]), ("new", &["b"])]);
        assert_eq!(table.preempt(1, &["a"]), None, "neither is needed more");
        table.wait(&[("served", &["b!"]), ("guard", &["cluster"]), ("watch", &["cluster"])]);
        assert_eq!(table.preempt(0, &["a"]), Some(("slow", vec!["guard"])));
        assert_eq!(table.preempt(100, &["cluster"]), None, "a ClusterPolicy's job runs to its end");
        assert_eq!(table.one_by_one_from("guard"), ["watch", "served", "new", "a2", "slow"]);
    }

    #[test]
    fn z09_a_slow_job_that_served_before_must_end_for_cluster_policies_at_once_and_for_others_like_it_later() {
        let mut table = Table::preempting(1);
        table.wait(&[("slow", &["a!"])]);
        assert_eq!(table.begin(), ["slow"]);
        table.wait(&[("new", &["c"]), ("b1", &["b!"]), ("b2", &["b!"])]);
        assert_eq!(table.preempt(9, &["a!"]), None);
        assert_eq!(table.preempt(1, &["a!"]), Some(("slow", vec!["b1"])));
        table.now += Duration::from_secs(2);
        assert_eq!(table.end("b1"), ["b2"], "it had less time");
        assert_eq!(table.end("b2"), ["slow"]);
        table.wait(&[("guard", &["cluster"])]);
        assert_eq!(table.preempt(0, &["a!"]), Some(("slow", vec!["guard"])));
    }

    #[test]
    fn z09_with_several_slots_the_least_needed_and_last_begun_must_end() {
        let mut table = Table::preempting(3);
        table.wait(&[("a1", &["a!"]), ("b1", &["b"]), ("c1", &["c!"])]);
        assert_eq!(table.begin(), ["a1", "c1", "b1"]);
        table.wait(&[("guard", &["cluster"])]);
        assert_eq!(table.preempt(0, &["b"]), Some(("b1", vec!["guard"])));
        table.wait(&[("watch", &["cluster"])]);
        assert_eq!(table.preempt(0, &["c!"]), Some(("c1", vec!["watch"])));
        let mut table = Table::preempting(3);
        table.wait(&[("a1", &["a"]), ("a2", &["a"]), ("a3", &["a"])]);
        assert_eq!(table.begin(), ["a1", "a2"]);
        assert_eq!(table.preempt(100, &["a"]), None, "one slot is left to the others");
        table.wait(&[("a4", &["a!"])]);
        assert_eq!(table.preempt(0, &["a"]), Some(("a2", vec!["a4"])), "a namespace's own jobs are ended, too");
    }

    #[test]
    fn z09_what_must_end_again_and_again_runs_to_its_end_after_a_while() {
        let mut table = Table::preempting(1);
        table.wait(&[("slow", &["a"])]);
        assert_eq!(table.begin(), ["slow"]);
        let mut times = 0;
        loop {
            table.wait(&[("guard", &["cluster"])]);
            let Some((_, begun)) = table.preempt(19, &["a"]) else { break };
            times += 1;
            assert_eq!(begun, ["guard"]);
            table.now += Duration::from_secs(1);
            assert_eq!(table.end("guard"), ["slow"]);
        }
        assert_eq!(times, 9, "in three minutes");
        assert_eq!(table.preempt(60, &["a"]), None, "it has its turn");
        assert_eq!(table.end("slow"), ["guard"]);
        // The next one is ended again: no namespace had to wait.
        table.wait(&[("slow", &["a"])]);
        assert_eq!(table.end("guard"), ["slow"]);
        table.wait(&[("guard", &["cluster"])]);
        assert_eq!(table.preempt(59, &["a"]), Some(("slow", vec!["guard"])));
    }
}
