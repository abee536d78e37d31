//! How much of a scan's time slow writes of reports may take, in a namespace and in all together. Pure.
//!
//! Reports are written one after the other. In a namespace with a webhook about reports that is slow or never answers, each write can take half
//! a minute, so a few reports there would hold up those of all other namespaces.

use std::collections::HashMap;
use std::time::Duration;

/// What slow writes of all namespaces together may take in a scan, but for [`LEAST`] of each. A tenth of it is more than the 30 s that an API
/// server waits for a webhook at most, so that a namespace in which each write takes that long still gets one.
const ALL: Duration = Duration::from_secs(6 * 60);
/// The part of what is left of that for one namespace. It leaves something to every further one, so none can use up all.
const PART: u32 = 10;
/// What a namespace may take in any case, so that a healthy one has its reports however many others are slow.
const LEAST: Duration = Duration::from_secs(1);
/// What each write may take without counting as slow: more than an API server with a busy disk and some webhooks takes, so that only few
/// installations ever leave a report for later.
const QUICK: Duration = Duration::from_millis(250);

/// What slow writes have taken since a scan began.
#[derive(Debug)]
pub(super) struct SlowWrites {
    /// [`ALL`]; shorter in tests.
    all: Duration,
    /// What was lost in all namespaces.
    lost: Duration,
    /// The namespaces in which time was lost. The empty name stands for objects in no namespace.
    namespaces: HashMap<String, Account>,
}

#[derive(Debug, Default)]
struct Account {
    lost: Duration,
    /// Whether this scan has left reports of it for the next one.
    is_left: bool,
}

impl Default for SlowWrites {
    fn default() -> Self {
        Self::within(ALL)
    }
}

impl SlowWrites {
    /// With this time for all namespaces together in a scan.
    pub(super) fn within(all: Duration) -> Self {
        Self { all, lost: Duration::ZERO, namespaces: HashMap::new() }
    }

    /// Begins a scan.
    pub(super) fn begin(&mut self) {
        *self = Self::within(self.all);
    }

    /// How long the next try of a write in a namespace may take; none if the reports there are left for the next scan.
    pub(super) fn limit(&self, namespace: &str) -> Option<Duration> {
        let own = self.lost(namespace);
        let others = self.lost.saturating_sub(own);
        let most = (self.all.saturating_sub(others) / PART).max(LEAST);
        (own < most).then(|| most - own + QUICK)
    }

    /// Notes what a try took, whether it succeeded or not.
    pub(super) fn tried(&mut self, namespace: &str, took: Duration) {
        self.lose(namespace, took.saturating_sub(QUICK));
    }

    /// Notes what the pause after a try took.
    pub(super) fn paused(&mut self, namespace: &str, took: Duration) {
        self.lose(namespace, took);
    }

    /// Notes that a report is left for the next scan. True if it is the first of its namespace in this scan.
    pub(super) fn leave(&mut self, namespace: &str) -> bool {
        !std::mem::replace(&mut self.account(namespace).is_left, true)
    }

    /// What was lost in a namespace.
    pub(super) fn lost(&self, namespace: &str) -> Duration {
        self.namespaces.get(namespace).map_or(Duration::ZERO, |account| account.lost)
    }

    fn lose(&mut self, namespace: &str, time: Duration) {
        if time.is_zero() {
            return;
        }
        self.account(namespace).lost += time;
        self.lost += time;
    }

    fn account(&mut self, namespace: &str) -> &mut Account {
        self.namespaces.entry(namespace.to_owned()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries writes in a namespace that take this time, cut at their limit, while it has time left, at most this many.
    fn tries(slow: &mut SlowWrites, namespace: &str, time: Duration, most: usize) -> usize {
        let mut tries = 0;
        while let Some(limit) = slow.limit(namespace).filter(|_| tries < most) {
            slow.tried(namespace, time.min(limit));
            tries += 1;
        }
        tries
    }

    #[test]
    fn a_namespace_whose_webhook_never_answers_gets_a_try_and_one_that_is_slow_some() {
        let never = Duration::MAX;
        for (time, writes) in [(never, 1), (Duration::from_secs(30), 2), (Duration::from_secs(10), 4)] {
            let mut slow = SlowWrites::default();
            assert_eq!(tries(&mut slow, "a", time, 99), writes, "{time:?}");
            assert_eq!(slow.lost, ALL / PART, "{time:?}");
            assert_eq!((slow.leave("a"), slow.leave("a"), slow.limit("a")), (true, false, None));
            assert!(slow.limit("b").is_some_and(|limit| limit > Duration::from_secs(30)));
            slow.begin();
            assert_eq!((slow.limit("a"), slow.leave("a")), (Some(ALL / PART + QUICK), true), "the next scan");
        }
    }

    #[test]
    fn writes_that_are_quick_are_never_left_however_many_they_are() {
        let mut slow = SlowWrites::default();
        assert_eq!(tries(&mut slow, "a", QUICK, 100_000), 100_000);
        assert_eq!((slow.lost, slow.namespaces.len()), (Duration::ZERO, 0));
    }

    #[test]
    fn many_slow_namespaces_together_take_a_limited_time_and_leave_each_other_one_a_second() {
        let names: Vec<String> = (0..1000).map(|number| format!("slow-{number}")).collect();
        for at_a_time in [1, 99] {
            let mut slow = SlowWrites::default();
            // In turn, as lists are in the order of namespaces, several times, as there are lists of several kinds.
            for _ in 0..50 {
                for name in &names {
                    tries(&mut slow, name, Duration::from_secs(2), at_a_time);
                }
            }
            assert!(slow.lost <= ALL + LEAST * 1000, "{:?}", slow.lost);
            assert!(slow.limit("healthy").is_some_and(|limit| limit >= LEAST + QUICK));
            assert!(names.iter().all(|name| slow.limit(name).is_none()));
        }
    }

    #[test]
    fn a_pause_counts_in_full() {
        let mut slow = SlowWrites::default();
        slow.paused("", QUICK);
        assert_eq!((slow.lost(""), slow.lost), (QUICK, QUICK));
        assert_eq!(slow.limit(""), Some(ALL / PART));
    }
}
