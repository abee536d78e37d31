//! The policies whose status loses fields, as the CustomResourceDefinition is older than this release; and when to find out whether it still
//! is. Pure.
//!
//! A status that cannot be written as wanted is left as it is until something changes, and quiet policies do not change. So one of them is
//! tried again from time to time. When its status fits, the definition is a newer one, and all of them are tried again.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::{Duration, Instant};

use portcullis_contract::PolicyId;

/// How often one policy is tried again, and at most how often all of them are.
const AGAIN: Duration = Duration::from_secs(5 * 60);

/// The policies whose status loses fields.
#[derive(Debug, Default)]
pub(crate) struct Outdated {
    losing: BTreeSet<PolicyId>,
    /// When one is tried again; none while there is none.
    due: Option<Instant>,
    /// The one that was tried last. The others have their turn before it.
    last: Option<PolicyId>,
    /// When all were tried.
    all: Option<Instant>,
}

impl Outdated {
    /// Whether the status of any policy loses fields.
    pub(crate) fn is_seen(&self) -> bool {
        !self.losing.is_empty()
    }

    /// Notes that a write lost fields. True if no other policy is known to lose any, so that it is news.
    pub(crate) fn lost(&mut self, id: &PolicyId, now: Instant) -> bool {
        let is_news = self.losing.is_empty();
        self.losing.insert(id.clone());
        self.due.get_or_insert(now + AGAIN);
        is_news
    }

    /// Notes that a policy was written as wanted. Returns the policies to try again, if this one has lost fields until now.
    pub(crate) fn fits(&mut self, id: &PolicyId, now: Instant) -> Vec<PolicyId> {
        let was_losing = self.losing.contains(id);
        self.leave(id);
        // Its status may merely have no such field any longer. So the others stay noted until they fit too, and are not all tried each time.
        if !was_losing || self.all.is_some_and(|all| now.saturating_duration_since(all) < AGAIN) {
            return Vec::new();
        }
        self.all = Some(now);
        self.losing.iter().cloned().collect()
    }

    /// Notes that nothing of a policy is lost: it is gone, or its status is as wanted.
    pub(crate) fn leave(&mut self, id: &PolicyId) {
        self.losing.remove(id);
        if self.losing.is_empty() {
            self.due = None;
        }
    }

    /// The policy to try again now, if it is time.
    pub(crate) fn due(&mut self, now: Instant) -> Option<PolicyId> {
        self.due.filter(|due| *due <= now)?;
        self.due = Some(now + AGAIN);
        let after = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut next = self.losing.range::<PolicyId, _>((after, Bound::Unbounded)).chain(&self.losing);
        self.last = next.next().cloned();
        self.last.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> PolicyId {
        format!("cluster/{name}").parse().expect("an id")
    }

    /// Three policies that have lost fields.
    fn losing(now: Instant) -> Outdated {
        let mut outdated = Outdated::default();
        assert!(!outdated.is_seen());
        let news = ["a", "b", "c"].map(|name| outdated.lost(&id(name), now));
        assert_eq!((news, outdated.is_seen()), ([true, false, false], true));
        outdated
    }

    #[test]
    fn one_policy_after_the_other_is_tried_again_every_few_minutes() {
        let begin = Instant::now();
        let mut outdated = losing(begin);
        assert_eq!(outdated.due(begin), None);
        let mut tried = |time: u32| outdated.due(begin + AGAIN * time);
        assert_eq!([1, 2, 3, 4].map(&mut tried), ["a", "b", "c", "a"].map(|name| Some(id(name))));
        assert_eq!(tried(4), None);
    }

    #[test]
    fn when_one_fits_all_are_tried_and_it_is_over_when_all_fit() {
        let now = Instant::now();
        let mut outdated = losing(now);
        assert_eq!(outdated.fits(&id("another"), now), []);
        assert_eq!(outdated.fits(&id("b"), now), [id("a"), id("c")]);
        assert_eq!((outdated.fits(&id("a"), now), outdated.is_seen()), (vec![], true));
        assert_eq!((outdated.fits(&id("c"), now), outdated.is_seen()), (vec![], false));
        assert_eq!(outdated.due(now + AGAIN * 2), None);
        assert!(outdated.lost(&id("a"), now), "what comes again is news again");
    }

    #[test]
    fn a_status_that_only_has_no_such_field_any_longer_does_not_make_all_others_be_written_again_and_again() {
        let now = Instant::now();
        let mut outdated = losing(now);
        assert_eq!(outdated.fits(&id("a"), now).len(), 2);
        outdated.lost(&id("a"), now);
        assert_eq!(outdated.fits(&id("a"), now + AGAIN / 2), []);
        outdated.lost(&id("a"), now);
        assert_eq!(outdated.fits(&id("a"), now + AGAIN).len(), 2);
    }

    #[test]
    fn policies_that_are_gone_lose_nothing() {
        let now = Instant::now();
        let mut outdated = losing(now);
        ["a", "b", "c"].iter().for_each(|name| outdated.leave(&id(name)));
        assert_eq!((outdated.is_seen(), outdated.due(now + AGAIN)), (false, None));
    }
}
