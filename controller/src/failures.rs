//! Actions that fail at the moment: when to try them again, and one line in the log when failures begin and when they end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use portcullis_util::Backoff;

use crate::action::Key;

/// The wait after failures.
const BACKOFF: Backoff = Backoff { shortest: Duration::from_millis(200), longest: Duration::from_secs(30) };

/// Failing actions, by object, and the verbs whose failures were logged.
#[derive(Debug, Default)]
pub(crate) struct FailingActions {
    failing: BTreeMap<Key, Failing>,
    logged: BTreeSet<&'static str>,
}

#[derive(Debug)]
struct Failing {
    verb: &'static str,
    failures: u32,
    until: Instant,
}

/// A line to log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Begins,
    Ends,
}

impl FailingActions {
    /// When an action may be tried again; `None` if it may now.
    pub(crate) fn waits(&self, key: &Key, now: Instant) -> Option<Instant> {
        self.failing.get(key).map(|failing| failing.until).filter(|until| *until > now)
    }

    /// Notes a failure. An `expected` one, because the object has changed meanwhile, is tried again but not logged. `random`, from 0 to 1,
    /// is the jitter of the wait.
    pub(crate) fn fail(
        &mut self,
        key: Key,
        verb: &'static str,
        expected: bool,
        now: Instant,
        random: f64,
    ) -> Option<Line> {
        let failing = self.failing.entry(key).or_insert(Failing { verb, failures: 0, until: now });
        failing.failures = failing.failures.saturating_add(1);
        failing.verb = verb;
        failing.until = now + BACKOFF.wait(failing.failures, random);
        (!expected && self.logged.insert(verb)).then_some(Line::Begins)
    }

    /// Notes a success.
    pub(crate) fn pass(&mut self, key: &Key, verb: &'static str) -> Option<Line> {
        self.failing.remove(key);
        let others = self.failing.values().any(|failing| failing.verb == verb);
        (!others && self.logged.remove(verb)).then_some(Line::Ends)
    }

    /// Drops failures of actions that are no longer `wanted`, and returns the verbs whose failures have ended with that.
    pub(crate) fn retain(&mut self, wanted: &BTreeSet<Key>, now: Instant) -> Vec<&'static str> {
        self.failing.retain(|key, failing| wanted.contains(key) || failing.until > now);
        let is_over = |verb: &&str| !self.failing.values().any(|failing| failing.verb == *verb);
        let ended: Vec<_> = self.logged.iter().copied().filter(is_over).collect();
        self.logged.retain(|verb| !ended.contains(verb));
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::Revision(name.to_owned())
    }

    #[test]
    fn a_trouble_is_told_when_it_begins_and_when_it_ends() {
        let (mut failures, now) = (FailingActions::default(), Instant::now());
        assert_eq!(failures.fail(key("a"), "create", false, now, 0.5), Some(Line::Begins));
        assert_eq!(failures.fail(key("b"), "create", false, now, 0.5), None);
        assert!(failures.waits(&key("a"), now).is_some());
        assert_eq!(failures.pass(&key("a"), "create"), None);
        assert_eq!(failures.pass(&key("b"), "create"), Some(Line::Ends));
        assert_eq!(failures.waits(&key("a"), now), None);
    }

    #[test]
    fn a_write_that_somebody_else_overtook_is_no_trouble() {
        let (mut failures, now) = (FailingActions::default(), Instant::now());
        assert_eq!(failures.fail(key("a"), "create", true, now, 0.5), None);
        assert!(failures.waits(&key("a"), now).is_some());
        assert_eq!(failures.pass(&key("a"), "create"), None);
    }

    #[test]
    fn what_nobody_wants_any_more_is_over() {
        let (mut failures, now) = (FailingActions::default(), Instant::now());
        failures.fail(key("a"), "create", false, now, 0.5);
        assert_eq!(failures.retain(&BTreeSet::new(), now + Duration::from_secs(60)), ["create"]);
    }
}
