//! What a policy would do to objects that exist, counted and put into words. Pure.

use std::collections::BTreeSet;

use jiff::Timestamp;
use portcullis_contract::{AuditOutcome, ImpactFigures, Mode, clean};
use portcullis_matching::Resource;

/// Longest message of a policy that is quoted, in bytes.
const LONGEST_MESSAGE: usize = 200;
/// Longest name of an object that is quoted, in bytes.
const LONGEST_NAME: usize = 200;
/// Longest warning, in bytes.
const LONGEST: usize = 800;
/// Most kinds that are named.
const MOST_KINDS: usize = 4;
/// After so many objects that could not be judged, and none that could, the others are left out.
const HOPELESS: usize = 20;

/// What came of one object.
#[derive(Debug)]
pub(super) struct Effect {
    /// Its namespace; empty for objects in none.
    pub(super) namespace: String,
    /// Its name.
    pub(super) name: String,
    /// What the policy says of it; absent where it did not answer.
    pub(super) outcome: Option<AuditOutcome>,
    /// The message of the policy.
    pub(super) message: Option<String>,
}

/// The figures so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The kinds of which objects were read.
    kinds: Vec<String>,
    judged: usize,
    denied: usize,
    changed: usize,
    failed: usize,
    /// The namespaces of the objects that would be denied.
    namespaces: BTreeSet<String>,
    /// The first object that would be denied, and why.
    example: Option<String>,
    /// The first few objects that would be denied.
    denied_first: Vec<String>,
    /// Whether there are objects that were not read, as they are too many.
    is_sample: bool,
    /// How many objects there are of the kinds that were read, as far as that is known.
    total: usize,
    /// Whether that is not known of some kind.
    is_total_unknown: bool,
    /// How many kinds were read to the end, or as far as they may be.
    ended: usize,
    /// Whether kinds were left out, as there are too many.
    is_cut: bool,
    is_late: bool,
    /// Kinds that may not be listed.
    forbidden: Vec<String>,
    /// Kinds that could not be listed for another reason.
    unread: Vec<String>,
}

/// What decides about words.
#[derive(Debug, Clone, Copy)]
pub(super) struct About {
    /// The mode of the policy; figures are those of `protect`.
    pub(super) mode: Mode,
    /// Whether it has match conditions, which are not applied.
    pub(super) has_conditions: bool,
}

impl Tally {
    /// Adds what came of an object.
    pub(super) fn add(&mut self, effect: Effect) {
        self.judged += 1;
        match effect.outcome {
            Some(AuditOutcome::Allowed) => {}
            Some(AuditOutcome::Changes) => self.changed += 1,
            Some(AuditOutcome::Failed) | None => self.failed += 1,
            Some(AuditOutcome::Denied) => {
                self.denied += 1;
                let Effect { namespace, name, message, .. } = effect;
                let path = if namespace.is_empty() { name } else { format!("{namespace}/{name}") };
                let example = || {
                    let message = clean(&message.unwrap_or_default(), LONGEST_MESSAGE);
                    let colon = if message.is_empty() { "" } else { ": " };
                    format!("{}{colon}{message}", clean(&path, LONGEST_NAME))
                };
                self.example.get_or_insert_with(example);
                if self.denied_first.len() < ImpactFigures::MAX_EXAMPLES {
                    self.denied_first.push(clean(&path, ImpactFigures::MAX_EXAMPLE));
                }
                if !namespace.is_empty() {
                    self.namespaces.insert(namespace);
                }
            }
        }
    }

    /// Begins with the objects of a kind.
    pub(super) fn begin(&mut self, resource: &Resource) {
        self.kinds.push(resource.title());
    }

    /// Ends with the objects of a kind: whether all were read, and how many there are where that is known.
    pub(super) fn end(&mut self, is_complete: bool, total: Option<usize>) {
        self.ended += 1;
        self.is_sample |= !is_complete;
        self.is_total_unknown |= total.is_none();
        self.total = self.total.saturating_add(total.unwrap_or_default());
    }

    /// Adds a kind that may not be listed.
    pub(super) fn forbid(&mut self, resource: &Resource) {
        self.forbidden.push(resource.title());
    }

    /// Adds a kind that could not be listed.
    pub(super) fn miss(&mut self, resource: &Resource) {
        self.unread.push(resource.title());
    }

    /// Takes in that kinds are left out, as there are too many.
    pub(super) fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Takes in that there was no time for more.
    pub(super) fn be_late(&mut self) {
        self.is_late = true;
    }

    /// Whether it is no use to ask about more objects.
    pub(super) fn is_hopeless(&self) -> bool {
        self.failed >= HOPELESS && self.failed == self.judged
    }

    /// The warnings: none where nothing would change and everything that may be listed was.
    pub(super) fn warnings(&self, about: About) -> Vec<String> {
        let figures = (self.denied + self.changed + self.failed > 0 || self.is_late).then(|| self.sentence(about));
        let forbidden = (!self.forbidden.is_empty()).then(|| {
            format!(
                "what it would do to {} is not known: the policy server may not list them; add them to rbac.auditReads of the chart",
                listed(&self.forbidden)
            )
        });
        let unread = (!self.unread.is_empty())
            .then(|| format!("what it would do to {} is not known: they could not be listed", listed(&self.unread)));
        [figures, forbidden, unread].into_iter().flatten().map(|text| clean(&text, LONGEST)).collect()
    }

    /// The figures for the status of the policy; nothing where no objects could be counted.
    pub(super) fn figures(&self, now: Timestamp) -> Option<ImpactFigures> {
        if self.kinds.is_empty() || (self.judged == 0 && self.is_late) {
            return None;
        }
        let is_everything = self.forbidden.is_empty() && self.unread.is_empty() && !self.is_cut && !self.is_hopeless();
        Some(ImpactFigures {
            checked_at: now,
            judged: number(self.judged),
            total: self.total().map(number),
            denied: number(self.denied),
            changed: number(self.changed),
            failed: number(self.failed),
            namespaces: number(self.namespaces.len()),
            examples: self.denied_first.clone(),
            sample: self.is_sample,
            complete: is_everything && !self.is_late,
        })
    }

    /// About how many objects there are of the kinds that were read, if that is known.
    fn total(&self) -> Option<usize> {
        let is_known = !self.is_late && !self.is_total_unknown && self.ended == self.kinds.len();
        // Where all objects were read, those that the policy would not be asked about do not count.
        is_known.then(|| if self.is_sample { self.total.max(self.judged) } else { self.judged })
    }

    fn sentence(&self, about: About) -> String {
        let Self { judged, denied, changed, failed, .. } = self;
        if *judged == 0 {
            return "there was no time to count the objects that it would deny; `portcullis impact` does so".to_owned();
        }
        let what = match self.kinds.as_slice() {
            [kind] => kind.as_str(),
            _ => "objects",
        };
        let sample = match (self.is_sample, self.is_total_unknown) {
            (false, _) => String::new(),
            (true, true) => " (a sample)".to_owned(),
            (true, false) => format!(" (a sample of about {})", self.total),
        };
        let places = match self.namespaces.len() {
            0 => String::new(),
            1 => " in 1 namespace".to_owned(),
            count => format!(" in {count} namespaces"),
        };
        let mode = if about.mode == Mode::Protect { "" } else { " under protect" };
        let mut text = format!("{denied} of {judged} {what}{sample}{places} would be denied{mode}");
        if let Some(example) = &self.example {
            text.push_str(&format!(", for instance {example}"));
        }
        for (is_said, more) in [
            (*changed > 0, format!("{changed} would be changed")),
            (*failed > 0, format!("{failed} could not be judged")),
            (self.is_late, "there was no time for more".to_owned()),
            (about.has_conditions, "match conditions are not applied".to_owned()),
        ] {
            if is_said {
                text.push_str("; ");
                text.push_str(&more);
            }
        }
        text
    }
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// The first names, and whether there are more.
fn listed(names: &[String]) -> String {
    let more = if names.len() > MOST_KINDS { " and others" } else { "" };
    format!("{}{more}", names[..names.len().min(MOST_KINDS)].join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTECT: About = About { mode: Mode::Protect, has_conditions: false };

    fn resource(name: &str, group: &str) -> Resource {
        Resource { group: group.into(), version: "v1".into(), name: name.into(), kind: "Any".into(), namespaced: true }
    }

    fn effect(namespace: &str, name: &str, outcome: Option<AuditOutcome>) -> Effect {
        let message = Some("privileged containers\nare not allowed".to_owned());
        Effect { namespace: namespace.into(), name: name.into(), outcome, message }
    }

    fn tally(outcomes: &[(&str, Option<AuditOutcome>)]) -> Tally {
        let mut tally = Tally::default();
        for (number, (namespace, outcome)) in outcomes.iter().enumerate() {
            tally.add(effect(namespace, &format!("web-{number}"), *outcome));
        }
        tally
    }

    fn read(tally: &mut Tally, resource: &Resource, is_complete: bool, total: Option<usize>) {
        tally.begin(resource);
        tally.end(is_complete, total);
    }

    const ALLOWED: Option<AuditOutcome> = Some(AuditOutcome::Allowed);
    const DENIED: Option<AuditOutcome> = Some(AuditOutcome::Denied);

    #[test]
    fn the_figures_name_one_object_and_why() {
        let mut some = tally(&[("a", ALLOWED), ("team-a", DENIED), ("team-b", DENIED), ("team-a", DENIED)]);
        read(&mut some, &resource("pods", ""), true, Some(4));
        assert_eq!(
            some.warnings(PROTECT),
            [
                "3 of 4 pods in 2 namespaces would be denied, for instance team-a/web-1: privileged containers are not allowed"
            ]
        );
        let mode = About { mode: Mode::Warn, has_conditions: true };
        assert_eq!(
            some.warnings(mode),
            [
                "3 of 4 pods in 2 namespaces would be denied under protect, for instance team-a/web-1: privileged containers are not \
                 allowed; match conditions are not applied"
            ]
        );
    }

    #[test]
    fn nothing_is_said_where_nothing_would_change() {
        let mut none = tally(&[("a", ALLOWED)]);
        read(&mut none, &resource("pods", ""), true, Some(1));
        assert_eq!(none.warnings(About { mode: Mode::Monitor, has_conditions: true }), [""; 0]);
        assert_eq!(Tally::default().warnings(PROTECT), [""; 0]);
    }

    #[test]
    fn what_is_left_out_is_said() {
        let mut some =
            tally(&[("", DENIED), ("a", Some(AuditOutcome::Changes)), ("a", None), ("a", Some(AuditOutcome::Failed))]);
        read(&mut some, &resource("nodes", ""), true, Some(2));
        read(&mut some, &resource("deployments", "apps"), false, Some(4000));
        some.be_late();
        some.forbid(&resource("pods", ""));
        some.miss(&resource("widgets", "example.com"));
        assert_eq!(
            some.warnings(PROTECT),
            [
                "1 of 4 objects (a sample of about 4002) would be denied, for instance web-0: privileged containers are not allowed; \
                 1 would be changed; 2 could not be judged; there was no time for more",
                "what it would do to pods is not known: the policy server may not list them; add them to rbac.auditReads of the chart",
                "what it would do to widgets.example.com is not known: they could not be listed",
            ]
        );
        read(&mut some, &resource("services", ""), false, None);
        assert!(some.warnings(PROTECT)[0].starts_with("1 of 4 objects (a sample) would"));
        let mut late = Tally::default();
        late.be_late();
        assert_eq!(
            late.warnings(PROTECT),
            ["there was no time to count the objects that it would deny; `portcullis impact` does so"]
        );
    }

    #[test]
    fn the_status_has_the_same_figures_and_a_few_names() {
        let mut some = tally(&[("a", ALLOWED), ("a", Some(AuditOutcome::Changes)), ("a", None), ("", DENIED)]);
        for number in 0..9 {
            some.add(effect(if number < 4 { "team-a" } else { "team-b" }, &format!("web-{number}"), DENIED));
        }
        read(&mut some, &resource("pods", ""), true, Some(20));
        let figures = some.figures(Timestamp::UNIX_EPOCH).expect("figures");
        let wanted = ImpactFigures {
            checked_at: Timestamp::UNIX_EPOCH,
            judged: 13,
            total: Some(13),
            denied: 10,
            changed: 1,
            failed: 1,
            namespaces: 2,
            examples: ["web-3", "team-a/web-0", "team-a/web-1", "team-a/web-2", "team-a/web-3"]
                .map(str::to_owned)
                .into(),
            sample: false,
            complete: true,
        };
        assert_eq!(figures, wanted, "of 20 objects the policy would not be asked about 7");
        read(&mut some, &resource("nodes", ""), false, Some(2000));
        let sample = some.figures(Timestamp::UNIX_EPOCH).expect("figures");
        assert_eq!(sample, ImpactFigures { total: Some(2020), sample: true, ..wanted });
        read(&mut some, &resource("services", ""), false, None);
        assert_eq!(some.figures(Timestamp::UNIX_EPOCH).map(|figures| figures.total), Some(None));
    }

    #[test]
    fn figures_say_that_they_are_not_all_and_what_was_not_counted_has_none() {
        let figures = |tally: &Tally| tally.figures(Timestamp::UNIX_EPOCH);
        let counted = || {
            let mut some = tally(&[("a", ALLOWED)]);
            read(&mut some, &resource("pods", ""), true, Some(1));
            some
        };
        assert_eq!(figures(&counted()).map(|figures| (figures.complete, figures.total)), Some((true, Some(1))));
        for (change, total) in [
            (Tally::be_late as fn(&mut Tally), None),
            (|tally| tally.forbid(&resource("nodes", "")), Some(1)),
            (|tally| tally.miss(&resource("nodes", "")), Some(1)),
            (Tally::cut, Some(1)),
            // The list of this kind broke off.
            (
                |tally| {
                    tally.begin(&resource("nodes", ""));
                    tally.miss(&resource("nodes", ""));
                },
                None,
            ),
        ] {
            let mut some = counted();
            change(&mut some);
            assert_eq!(figures(&some).map(|figures| (figures.complete, figures.total)), Some((false, total)));
        }
        let mut hopeless = tally(&[("a", None); HOPELESS]);
        read(&mut hopeless, &resource("pods", ""), true, Some(HOPELESS));
        assert_eq!(figures(&hopeless).map(|figures| figures.complete), Some(false));

        assert_eq!(figures(&Tally::default()), None, "no kind could be read");
        let mut late = Tally::default();
        late.begin(&resource("pods", ""));
        late.be_late();
        assert_eq!(figures(&late), None);
        let mut empty = Tally::default();
        read(&mut empty, &resource("pods", ""), true, Some(0));
        assert_eq!(figures(&empty).map(|figures| (figures.judged, figures.total)), Some((0, Some(0))));
    }

    #[test]
    fn texts_of_policies_and_names_are_bounded() {
        let mut one = Tally::default();
        let (namespace, name) = ("n".repeat(1000), "x".repeat(1000));
        one.add(Effect { namespace, name, outcome: DENIED, message: Some("\u{1b}[2J".repeat(10_000)) });
        one.add(effect("a", &"\u{1b}[2J".repeat(10_000), DENIED));
        one.begin(&resource("pods", ""));
        let examples = one.figures(Timestamp::UNIX_EPOCH).expect("figures").examples;
        let is_bounded = |name: &String| name.len() <= ImpactFigures::MAX_EXAMPLE && !name.contains('\u{1b}');
        assert!(examples.len() == 2 && examples.iter().all(is_bounded), "{examples:?}");
        for number in 0..100 {
            one.forbid(&resource(&format!("{}{number}", "r".repeat(500)), ""));
        }
        let warnings = one.warnings(PROTECT);
        assert_eq!(warnings.len(), 2);
        assert!(warnings.iter().all(|text| text.len() <= LONGEST && !text.contains('\u{1b}')), "{warnings:?}");
    }

    #[test]
    fn a_policy_that_cannot_judge_is_not_asked_for_ever() {
        let failed = vec![("a", None); HOPELESS];
        assert!(tally(&failed).is_hopeless() && !tally(&failed[1..]).is_hopeless());
        let with_one: Vec<_> = failed.into_iter().chain([("a", ALLOWED)]).collect();
        assert!(!tally(&with_one).is_hopeless());
    }
}
