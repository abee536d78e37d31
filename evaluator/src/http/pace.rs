//! How fast the body of a request has to come. Pure.

use std::time::Duration;

/// The longest time for a body.
pub(super) const LONGEST: Duration = Duration::from_secs(10);
/// How long a body may take before its rate is judged: lost packets are sent again within that time.
const GRACE: Duration = Duration::from_secs(3);
/// The minimum rate after that, in bytes a second. API servers send a thousand times as fast.
const LEAST: u64 = 16 << 10;
/// The longest time for a body where other requests wait for its connection or its memory.
const IN_TIME: Duration = Duration::from_secs(8);
/// How long a body may lag before it is given up for other requests.
const PATIENCE: Duration = Duration::from_secs(1);

/// How far a body has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    /// The announced size, in bytes.
    pub announced: u64,
    /// The part that has come, in bytes.
    pub received: u64,
    /// The time since the first read.
    pub elapsed: Duration,
}

impl Progress {
    /// Whether the body is so slow that it is given up in any case.
    pub(super) fn is_too_slow(self) -> bool {
        self.elapsed > LONGEST.min(GRACE + Duration::from_millis(self.received.saturating_mul(1000) / LEAST))
    }

    /// Whether the body is given up where other requests wait: it will not be complete in time for them, or is below the minimum rate.
    pub(super) fn lags(self) -> bool {
        let elapsed = millis(self.elapsed);
        // Amounts are compared rather than rates, so that nothing is divided by a time of zero.
        let on_time = self.announced.saturating_mul(elapsed) / millis(IN_TIME);
        let least = LEAST * elapsed / 1000;
        self.elapsed > PATIENCE && self.received < on_time.max(least)
    }

    /// The rate in bytes a second.
    pub(super) fn rate(self) -> u64 {
        self.received.saturating_mul(1000) / millis(self.elapsed).max(1)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(announced: u64, received: u64, millis: u64) -> Progress {
        Progress { announced, received, elapsed: Duration::from_millis(millis) }
    }

    #[test]
    fn a_body_has_a_grace_and_then_a_least_rate_and_an_end() {
        // A byte every 200 ms.
        assert!(!progress(3000, 14, 3000).is_too_slow());
        assert!(progress(3000, 15, 3010).is_too_slow());
        // As slow as is allowed.
        assert!(!progress(1 << 20, 64 << 10, 7000).is_too_slow());
        assert!(progress(1 << 20, 64 << 10, 7001).is_too_slow());
        // Fast, but too large for the time.
        assert!(!progress(1 << 30, 1 << 29, 10_000).is_too_slow());
        assert!(progress(1 << 30, 1 << 29, 10_001).is_too_slow());
    }

    #[test]
    fn a_body_lags_that_will_not_be_whole_soon() {
        assert!(!progress(7 << 20, 0, 1000).lags(), "it has only just begun");
        assert!(progress(7 << 20, 1 << 20, 2000).lags(), "at this pace it takes 14 seconds");
        assert!(!progress(7 << 20, 2 << 20, 2000).lags(), "at this pace it takes 7 seconds");
        assert!(progress(4 << 10, 3 << 10, 2000).lags(), "it would be whole in time, but is below the least rate");
        assert!(!progress(40 << 10, 33 << 10, 2000).lags());
    }

    #[test]
    fn rates_are_known_from_the_beginning() {
        assert_eq!(progress(10, 10, 0).rate(), 10_000);
        assert_eq!(progress(100, 10, 2000).rate(), 5);
    }
}
