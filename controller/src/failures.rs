//! What does not work at the moment, so that the log has one line when it begins and one when it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use portcullis_kubernetes::{Backoff, random};

use crate::action::Key;

/// Waits after failures.
const BACKOFF: Backoff = Backoff { shortest: Duration::from_millis(200), longest: Duration::from_secs(30) };

/// Failures by object and by what was tried.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    failing: BTreeMap<Key, Failing>,
    told: BTreeSet<&'static str>,
}

#[derive(Debug)]
struct Failing {
    verb: &'static str,
    failures: u32,
    until: Instant,
}

/// A line for the log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Begins,
    Ends,
}

impl Troubles {
    /// When it may be tried again, if that is not yet.
    pub(crate) fn waits(&self, key: &Key, now: Instant) -> Option<Instant> {
        self.failing.get(key).map(|failing| failing.until).filter(|until| *until > now)
    }

    /// It failed. `expected` is what happens when somebody else writes the same object: tried again, and nobody's trouble.
    pub(crate) fn fail(&mut self, key: Key, verb: &'static str, expected: bool, now: Instant) -> Option<Line> {
        let failing = self.failing.entry(key).or_insert(Failing { verb, failures: 0, until: now });
        failing.failures = failing.failures.saturating_add(1);
        failing.verb = verb;
        failing.until = now + BACKOFF.wait(failing.failures, random());
        (!expected && self.told.insert(verb)).then_some(Line::Begins)
    }

    /// It worked.
    pub(crate) fn pass(&mut self, key: &Key, verb: &'static str) -> Option<Line> {
        self.failing.remove(key);
        let others = self.failing.values().any(|failing| failing.verb == verb);
        (!others && self.told.remove(verb)).then_some(Line::Ends)
    }

    /// What is not to be done any more fails no longer. These are the objects with something to do.
    pub(crate) fn retain(&mut self, wanted: &BTreeSet<Key>, now: Instant) -> Vec<&'static str> {
        self.failing.retain(|key, failing| wanted.contains(key) || failing.until > now);
        let is_over = |verb: &&str| !self.failing.values().any(|failing| failing.verb == *verb);
        let ended: Vec<_> = self.told.iter().copied().filter(is_over).collect();
        self.told.retain(|verb| !ended.contains(verb));
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
        let (mut troubles, now) = (Troubles::default(), Instant::now());
        assert_eq!(troubles.fail(key("a"), "create", false, now), Some(Line::Begins));
        assert_eq!(troubles.fail(key("b"), "create", false, now), None);
        assert!(troubles.waits(&key("a"), now).is_some());
        assert_eq!(troubles.pass(&key("a"), "create"), None);
        assert_eq!(troubles.pass(&key("b"), "create"), Some(Line::Ends));
        assert_eq!(troubles.waits(&key("a"), now), None);
    }

    #[test]
    fn a_write_that_somebody_else_overtook_is_no_trouble() {
        let (mut troubles, now) = (Troubles::default(), Instant::now());
        assert_eq!(troubles.fail(key("a"), "create", true, now), None);
        assert!(troubles.waits(&key("a"), now).is_some());
        assert_eq!(troubles.pass(&key("a"), "create"), None);
    }

    #[test]
    fn what_nobody_wants_any_more_is_over() {
        let (mut troubles, now) = (Troubles::default(), Instant::now());
        troubles.fail(key("a"), "create", false, now);
        assert_eq!(troubles.retain(&BTreeSet::new(), now + Duration::from_secs(60)), ["create"]);
    }
}
