//! How much time audits may take. Pure.

use std::time::{Duration, Instant};

/// The shortest pause that is made: timers count in milliseconds, and a shorter one would take longer than it should. Shorter ones add up.
const SHORTEST: Duration = Duration::from_millis(10);

/// The pauses between audits, by which they take no more than a share of one core's time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    percent: u32,
    /// The pause that is due since the end of the last audit.
    due: Duration,
    /// When the last audit ended; `None` before the first one.
    end: Option<Instant>,
}

impl Pace {
    /// A share in percent; what is beyond 1 to 100 counts as the nearest of them.
    pub(super) fn new(percent: u8) -> Self {
        Self { percent: u32::from(percent).clamp(1, 100), due: Duration::ZERO, end: None }
    }

    /// Notes the time of an audit. `is_shared` says whether others use the same share of the core at present, which leaves half of it.
    pub(super) fn took(&mut self, begin: Instant, end: Instant, is_shared: bool) {
        let time = end.saturating_duration_since(begin);
        let all = if is_shared { 200 } else { 100 };
        let pause = time.saturating_mul(all - self.percent) / self.percent;
        self.due = self.left(begin).saturating_add(pause);
        self.end = Some(end);
    }

    /// How long the next audit waits: for the whole pause that is due, or not at all while that is short.
    pub(super) fn pause(&self, now: Instant) -> Duration {
        let left = self.left(now);
        if left < SHORTEST { Duration::ZERO } else { left }
    }

    /// Whether a pause is due, however short.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        !self.left(now).is_zero()
    }

    /// What is left of the pause that is due. The time in which nobody asked counts as a pause.
    fn left(&self, now: Instant) -> Duration {
        self.end.map_or(Duration::ZERO, |end| self.due.saturating_sub(now.saturating_duration_since(end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The pause after an audit of one second.
    fn pause(percent: u8) -> Duration {
        pause_beside(percent, false)
    }

    fn pause_beside(percent: u8, is_shared: bool) -> Duration {
        let (mut pace, now) = (Pace::new(percent), Instant::now());
        assert_eq!(pace.pause(now), Duration::ZERO, "nothing was asked yet");
        pace.took(now, now + SECOND, is_shared);
        assert_eq!(pace.is_due(now + SECOND), !pace.pause(now + SECOND).is_zero());
        pace.pause(now + SECOND)
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
    fn who_shares_has_half() {
        assert_eq!((pause_beside(100, true), pause_beside(50, true)), (SECOND, 3 * SECOND));
        assert_eq!(pause_beside(25, true), 7 * SECOND);
    }

    #[test]
    fn time_that_passed_meanwhile_counts() {
        let (mut pace, now) = (Pace::new(25), Instant::now());
        pace.took(now, now + SECOND, false);
        assert_eq!(pace.pause(now + 3 * SECOND), SECOND);
        assert_eq!(pace.pause(now + 10 * SECOND), Duration::ZERO);
        pace.took(now + 10 * SECOND, now + 11 * SECOND, false);
        assert_eq!(pace.pause(now + 11 * SECOND), 3 * SECOND, "a pause that was too long is no credit");
    }

    #[test]
    fn short_pauses_add_up_to_one_that_a_timer_can_measure() {
        let (mut pace, mut now) = (Pace::new(25), Instant::now());
        let (audit, mut paused) = (Duration::from_millis(1), Duration::ZERO);
        for _ in 0..1000 {
            let pause = pace.pause(now);
            assert!(pause.is_zero() || pause >= SHORTEST, "{pause:?}");
            paused += pause;
            now += pause;
            pace.took(now, now + audit, false);
            now += audit;
        }
        // The last ones are still due.
        assert!(paused <= 3 * SECOND && paused > 3 * SECOND - 2 * SHORTEST, "{paused:?}");
    }
}
