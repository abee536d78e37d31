//! How much processor time a load has had, and whether that was enough to judge its module.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use portcullis_util::lock;

/// A load that gets less than this part of the time that it may take, as a divisor, says nothing about its module.
const LEAST_PART: u32 = 5;

/// The times of a load so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LoadTimes {
    /// The processor time that it has used.
    pub(crate) used: Duration,
    /// How long it waited for something else than a processor, such as the answer to a call of the host.
    pub(crate) waited: Duration,
}

impl LoadTimes {
    /// Whether a load that was not done within `limit` had so little processor time that the machine is to blame and not its module.
    pub(crate) fn is_starved(self, limit: Duration) -> bool {
        self.used < limit.saturating_sub(self.waited) / LEAST_PART
    }
}

/// The times of a load while it runs.
#[derive(Debug, Default)]
pub(super) struct Record(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    times: LoadTimes,
    /// Since when it has waited for something else than a processor; none if it does not.
    waits_since: Option<Instant>,
}

impl Record {
    /// A turn begins.
    pub(super) fn begin_turn(&self, now: Instant) {
        let mut state = lock(&self.0);
        if let Some(since) = state.waits_since.take() {
            state.times.waited += now.saturating_duration_since(since);
        }
    }

    /// A turn has ended that used this much processor time. `waits` says whether the load now waits for something else than the next turn.
    pub(super) fn end_turn(&self, now: Instant, used: Duration, waits: bool) {
        let mut state = lock(&self.0);
        state.times.used += used;
        state.waits_since = waits.then_some(now);
    }

    /// The times until now.
    pub(super) fn times(&self, now: Instant) -> LoadTimes {
        let state = lock(&self.0);
        let LoadTimes { used, waited } = state.times;
        let waits = state.waits_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        LoadTimes { used, waited: waited + waits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn only_who_had_little_of_the_time_left_after_waiting_was_starved() {
        let is_starved = |used, waited| LoadTimes { used: millis(used), waited: millis(waited) }.is_starved(LIMIT);
        assert!(is_starved(0, 0) && is_starved(399, 0) && !is_starved(400, 0));
        assert!(is_starved(199, 1000) && !is_starved(200, 1000), "half of the time it waited");
        assert!(!is_starved(0, 2000) && !is_starved(0, 2400), "it waited all the time");
    }

    #[test]
    fn what_it_waits_for_counts_until_its_next_turn_or_until_now() {
        let (record, begin) = (Record::default(), Instant::now());
        let at = |ms| begin + millis(ms);
        record.begin_turn(at(10));
        record.end_turn(at(20), millis(5), false);
        assert_eq!(record.times(at(100)), LoadTimes { used: millis(5), waited: millis(0) }, "it waits for a turn");
        record.begin_turn(at(100));
        record.end_turn(at(110), millis(5), true);
        record.begin_turn(at(150));
        assert_eq!(record.times(at(160)), LoadTimes { used: millis(5 + 5), waited: millis(40) });
        record.end_turn(at(170), millis(1), true);
        for (until, waited) in [(180, 50), (180, 50), (190, 60)] {
            assert_eq!(record.times(at(until)), LoadTimes { used: millis(11), waited: millis(waited) });
        }
    }
}
