//! Whether an answer is right during the faults.

use std::fmt;
use std::time::{Duration, Instant};

use portcullis_e2e::Answer;

/// How long broken connections may still be found after everything is back.
const GRACE: Duration = Duration::from_secs(2);

/// The versions of a policy, oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    versions: Vec<Version>,
}

struct Version {
    generation: i64,
    /// The text with which it denies; `None` for a version that can never serve.
    text: Option<String>,
    /// A moment before it was applied.
    applied: Instant,
    /// When its policy was found Ready. From then on no replica answers with an older version.
    confirmed: Option<Instant>,
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.confirmed.is_some() { "was Ready" } else { "was never Ready" };
        write!(f, "{} {:?} {state}", self.generation, self.text.as_deref().unwrap_or("cannot serve"))
    }
}

impl History {
    /// Records that a version was applied. If the generation is the same, it is the same version.
    pub(super) fn apply(&mut self, generation: i64, text: Option<&str>, applied: Instant) {
        if self.versions.last().is_none_or(|last| last.generation != generation) {
            self.versions.push(Version { generation, text: text.map(str::to_owned), applied, confirmed: None });
        }
    }

    /// Records that the policy was Ready at this generation, at this time.
    pub(super) fn confirm(&mut self, generation: i64, at: Instant) {
        if let Some(version) = self.versions.iter_mut().find(|version| version.generation == generation) {
            version.confirmed.get_or_insert(at);
        }
    }

    /// Generation and text of the newest version that was Ready.
    pub(super) fn last_confirmed(&self) -> Option<(i64, &str)> {
        let version = self.versions.iter().rev().find(|version| version.confirmed.is_some())?;
        Some((version.generation, version.text.as_deref()?))
    }

    /// Whether the text of the answer is that of a version that may have served when it was given.
    fn explains(&self, answer: &Answer) -> bool {
        self.versions.iter().enumerate().any(|(index, version)| {
            let is_said = version.text.as_ref().is_some_and(|text| answer.message.contains(text));
            let is_replaced = |later: &Version| later.confirmed.is_some_and(|confirmed| confirmed <= answer.sent);
            is_said && version.applied <= answer.answered && !self.versions[index + 1..].iter().any(is_replaced)
        })
    }
}

/// The times at which calls may break because of a fault.
#[derive(Debug, Default)]
pub(super) struct Excuses {
    past: Vec<(Instant, Instant)>,
    since: Option<Instant>,
}

impl Excuses {
    /// Calls may break from now on.
    pub(super) fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Calls may break until now, and for a moment longer.
    pub(super) fn end(&mut self, now: Instant) {
        self.past.extend(self.since.take().map(|since| (since, now + GRACE)));
    }

    /// Whether calls may break at present.
    pub(super) fn is_open(&self) -> bool {
        self.since.is_some()
    }

    /// For how long calls might break until now.
    pub(super) fn total(&self, now: Instant) -> Duration {
        let open = self.since.map(|since| (since, now));
        let (mut sum, mut end) = (Duration::ZERO, None);
        for (from, until) in self.past.iter().copied().chain(open) {
            // One may begin within the grace of the one before.
            sum += until.saturating_duration_since(end.map_or(from, |end: Instant| from.max(end)));
            end = Some(until);
        }
        sum
    }

    /// Whether a call of this answer might break.
    pub(super) fn cover(&self, answer: &Answer) -> bool {
        let is_open = self.since.is_some_and(|since| since <= answer.answered);
        is_open || self.past.iter().any(|(from, until)| *from <= answer.answered && answer.sent <= *until)
    }
}

/// The answer that a call must get.
#[derive(Debug)]
pub(super) enum Expected<'h> {
    /// It is admitted.
    Admitted,
    /// It is denied with this text.
    Denied(&'h str),
    /// It is denied by all of these.
    DeniedByAll(Vec<&'h History>),
}

/// Whether an answer is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Assessment {
    /// The answer is as expected.
    Right,
    /// The call failed, and a fault explains that.
    Broken,
    /// The answer must never be given.
    Wrong,
}

/// Assesses an answer. Nothing excuses an admission of a request that must be denied, or a denial with a wrong text.
pub(super) fn assess(answer: &Answer, expected: &Expected<'_>, excuses: &Excuses) -> Assessment {
    let is_admitted = answer.code == Some(201);
    let is_right = match expected {
        Expected::Admitted => is_admitted,
        Expected::Denied(text) => !is_admitted && answer.message.contains(text),
        Expected::DeniedByAll(histories) => !is_admitted && histories.iter().all(|one| one.explains(answer)),
    };
    match (is_right, expected) {
        (true, _) => Assessment::Right,
        (false, Expected::Denied(_) | Expected::DeniedByAll(_)) if is_admitted => Assessment::Wrong,
        // A wrong verdict of a policy is not excused.
        (false, _) if answer.code == Some(403) && says_a_verdict(&answer.message) => Assessment::Wrong,
        (false, _) if excuses.cover(answer) => Assessment::Broken,
        (false, _) => Assessment::Wrong,
    }
}

/// Whether a message is a verdict of one of this test's policies, whose texts all look like this.
fn says_a_verdict(message: &str) -> bool {
    message.contains(" says ") || message.contains(super::stand::CANARY_SAYS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        *START + Duration::from_secs(seconds)
    }

    fn answer(code: Option<u16>, message: &str, sent: u64) -> Answer {
        Answer { code, message: message.to_owned(), sent: at(sent), answered: at(sent + 1) }
    }

    fn history() -> History {
        let mut history = History::default();
        history.apply(1, Some("a says 1."), at(0));
        history.confirm(1, at(5));
        history.apply(2, None, at(10));
        history.apply(3, Some("a says 3."), at(20));
        history
    }

    #[test]
    fn the_last_good_version_answers_until_a_newer_one_is_ready() {
        let mut history = history();
        let is_right = |history: &History, text: &str, sent| {
            let expected = Expected::DeniedByAll(vec![history]);
            assess(&answer(Some(403), text, sent), &expected, &Excuses::default()) == Assessment::Right
        };
        assert!(is_right(&history, "policy a: a says 1.", 15));
        assert!(is_right(&history, "a says 1.", 25) && is_right(&history, "a says 3.", 25));
        assert!(!is_right(&history, "a says 3.", 15), "it is not there yet");
        assert!(!is_right(&history, "a says 2.", 25) && !is_right(&history, "a says 13.", 25));
        history.confirm(3, at(30));
        assert!(is_right(&history, "a says 1.", 29), "this call was on its way");
        assert!(!is_right(&history, "a says 1.", 30));
        assert_eq!(history.last_confirmed(), Some((3, "a says 3.")));
    }

    #[test]
    fn a_version_is_applied_and_confirmed_once() {
        let mut history = history();
        history.apply(3, Some("again"), at(40));
        history.confirm(3, at(41));
        history.confirm(3, at(50));
        history.confirm(9, at(50));
        assert_eq!(history.versions.len(), 3);
        assert_eq!(history.versions[2].confirmed, Some(at(41)));
    }

    #[test]
    fn a_call_may_break_while_there_is_an_excuse_and_just_after_it() {
        let mut excuses = Excuses::default();
        excuses.begin(at(10));
        let assess = |excuses: &Excuses, sent| assess(&answer(None, "refused", sent), &Expected::Admitted, excuses);
        assert_eq!(
            [8, 9, 30].map(|sent| assess(&excuses, sent)),
            [Assessment::Wrong, Assessment::Broken, Assessment::Broken]
        );
        assert_eq!(excuses.total(at(14)), Duration::from_secs(4));
        excuses.end(at(20));
        excuses.end(at(25));
        assert!(!excuses.is_open());
        assert_eq!([22, 23].map(|sent| assess(&excuses, sent)), [Assessment::Broken, Assessment::Wrong]);
        excuses.begin(at(21));
        excuses.end(at(30));
        assert_eq!(excuses.total(at(40)), Duration::from_secs(22), "from 10 to 32");
    }

    #[test]
    fn nothing_excuses_a_wrong_verdict() {
        let (history, mut excuses) = (history(), Excuses::default());
        excuses.begin(at(0));
        let all = || Expected::DeniedByAll(vec![&history]);
        for (code, message, expected) in [
            (Some(201), "", Expected::Denied("a says 1.")),
            (Some(201), "", all()),
            (Some(403), "b says 1.", Expected::Admitted),
            (Some(403), "a says 2.", all()),
        ] {
            assert_eq!(assess(&answer(code, message, 25), &expected, &excuses), Assessment::Wrong, "{message}");
        }
        assert_eq!(assess(&answer(Some(500), "no endpoints", 25), &all(), &excuses), Assessment::Broken);
    }
}
