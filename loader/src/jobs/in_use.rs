//! Modules that must stay on the volume although a pruning may not know them: what it keeps was planned before they were fetched.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use portcullis_contract::Digest;
use portcullis_util::lock;

/// How long a module stays after its last use while the plan does not know it.
const UNKNOWN: Duration = Duration::from_secs(10);

/// The modules that jobs use, and those that were used a moment ago.
#[derive(Debug, Default)]
pub(super) struct InUse(Mutex<HashMap<Digest, Use>>);

#[derive(Debug)]
struct Use {
    /// How many jobs use the module.
    jobs: usize,
    /// When it was used last.
    last: Instant,
}

/// A module that a job uses until this is dropped. A job may wait for minutes for its turn to compile.
pub(super) struct Held<'a> {
    all: &'a InUse,
    digest: Digest,
}

impl InUse {
    /// Notes that a module is used now.
    pub(super) fn touch(&self, digest: Digest) {
        self.change(digest, |jobs| jobs);
    }

    /// Keeps a module while a job runs.
    pub(super) fn hold(&self, digest: Digest) -> Held<'_> {
        self.change(digest, |jobs| jobs + 1);
        Held { all: self, digest }
    }

    fn change(&self, digest: Digest, jobs: impl Fn(usize) -> usize) {
        let mut all = lock(&self.0);
        let one = all.entry(digest).or_insert_with(|| Use { jobs: 0, last: Instant::now() });
        *one = Use { jobs: jobs(one.jobs), last: Instant::now() };
    }

    /// The modules that must stay at this time.
    pub(super) fn digests(&self, now: Instant) -> Vec<Digest> {
        lock(&self.0).iter().filter(|(_, one)| one.stays(now)).map(|(digest, _)| *digest).collect()
    }

    /// Forgets the modules that no job uses and that the plan knows, or that it had time to know.
    pub(super) fn forget(&self, known: &HashSet<Digest>, now: Instant) {
        lock(&self.0).retain(|digest, one| one.jobs > 0 || (!known.contains(digest) && one.stays(now)));
    }
}

impl Use {
    fn stays(&self, now: Instant) -> bool {
        self.jobs > 0 || now.saturating_duration_since(self.last) < UNKNOWN
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.all.change(self.digest, |jobs| jobs - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn z08_a_module_stays_while_a_job_waits_for_its_turn_and_until_the_plan_can_know_it() {
        let (all, one, none) = (InUse::default(), Digest::of(b"one"), HashSet::new());
        let later = Instant::now() + 100 * UNKNOWN;
        all.touch(one);
        let (first, second) = (all.hold(one), all.hold(one));
        drop(first);
        all.forget(&HashSet::from([one]), later);
        assert_eq!(all.digests(later), [one], "a job still uses it");
        drop(second);
        assert_eq!(all.digests(Instant::now()), [one], "the plan may not know it yet");
        all.forget(&none, Instant::now());
        assert_eq!(all.digests(Instant::now()), [one]);
        assert!(all.digests(later).is_empty(), "the plan had time to know it");
    }

    #[test]
    fn what_the_plan_knows_is_forgotten() {
        let (all, one, other) = (InUse::default(), Digest::of(b"one"), Digest::of(b"other"));
        all.touch(one);
        all.touch(other);
        all.forget(&HashSet::from([one]), Instant::now());
        assert_eq!(all.digests(Instant::now()), [other]);
    }
}
