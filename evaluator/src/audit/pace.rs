//! How much time audits may take. Pure.

use std::time::{Duration, Instant};

/// The pauses between audits, by which they take no more than a share of one core's time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    percent: u32,
    /// When the next audit may begin; none before the first one.
    next: Option<Instant>,
}

impl Pace {
    /// Pauses for a share in percent, clamped to 1 to 100.
    pub(super) fn new(percent: u8) -> Self {
        Self { percent: u32::from(percent).clamp(1, 100), next: None }
    }

    /// Notes that an audit ended at `end` and took `time`.
    pub(super) fn took(&mut self, end: Instant, time: Duration) {
        let pause = time.saturating_mul(100 - self.percent) / self.percent;
        self.next = end.checked_add(pause);
    }

    /// How long the next audit waits.
    pub(super) fn pause(&self, now: Instant) -> Duration {
        self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The pause after an audit of one second.
    fn pause(percent: u8) -> Duration {
        let (mut pace, now) = (Pace::new(percent), Instant::now());
        assert_eq!(pace.pause(now), Duration::ZERO, "nothing was asked yet");
        pace.took(now, SECOND);
        pace.pause(now)
    }

    #[test]
    fn the_pause_leaves_the_rest_of_the_time_to_others() {
        assert_eq!(pause(100), Duration::ZERO);
        assert_eq!(pause(50), SECOND);
        assert_eq!(pause(25), 3 * SECOND);
        assert_eq!(pause(1), 99 * SECOND);
        assert_eq!((pause(0), pause(255)), (pause(1), pause(100)));
    }

    #[test]
    fn time_that_passed_meanwhile_counts() {
        let (mut pace, now) = (Pace::new(25), Instant::now());
        pace.took(now, SECOND);
        assert_eq!(pace.pause(now + 2 * SECOND), SECOND);
        assert_eq!(pace.pause(now + 10 * SECOND), Duration::ZERO);
    }

    #[test]
    fn an_audit_that_takes_for_ever_stops_nothing() {
        let (mut pace, now) = (Pace::new(1), Instant::now());
        pace.took(now, Duration::MAX);
        // The end of this pause is beyond what an `Instant` can be, so there is no pause.
        assert_eq!(pace.pause(now), Duration::ZERO);
    }
}
