//! When a call that had no success is tried again. Pure, but for the dice.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use super::call::CallError;

/// First pause; it doubles.
const FIRST: Duration = Duration::from_millis(250);
/// Longest pause while the API server is away or busy: what it missed is written within seconds of its return.
const LONGEST_AWAY: Duration = Duration::from_secs(4);
/// Longest pause while it refuses: somebody has to change something first.
const LONGEST_REFUSED: Duration = Duration::from_secs(15);

/// Failures in a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// It worked.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// It failed: how long to wait, `dice` being from 0 to 1. What the API server asks for counts, and a little more, so that
    /// not all come at the same time.
    pub(crate) fn pause(&mut self, error: &CallError, dice: f64) -> Duration {
        let longest = match error.code() {
            Some(400..=428 | 430..=499) => LONGEST_REFUSED,
            _ => LONGEST_AWAY,
        };
        let doubled = FIRST.saturating_mul(1 << self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        match error {
            CallError::Refused { retry_after: Some(asked), .. } => *asked + FIRST.mul_f64(4.0 * dice),
            _ => doubled.min(longest).mul_f64(0.5 + dice / 2.0),
        }
    }
}

/// A number from 0 to 1, another each time.
pub(crate) fn dice() -> f64 {
    let random = RandomState::new().build_hasher().finish() >> 11;
    random as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, retry_after: Option<u64>) -> CallError {
        CallError::Refused { code, retry_after: retry_after.map(Duration::from_secs), message: String::new() }
    }

    fn pauses(error: &CallError, dice: f64) -> Vec<u128> {
        let mut backoff = Backoff::default();
        (0..8).map(|_| backoff.pause(error, dice).as_millis()).collect()
    }

    #[test]
    fn pauses_double_up_to_a_limit() {
        let away = CallError::Unreachable(String::new());
        assert_eq!(pauses(&away, 1.0), [250, 500, 1000, 2000, 4000, 4000, 4000, 4000]);
        assert_eq!(pauses(&refused(403, None), 1.0)[7], 15_000);
        assert_eq!(pauses(&refused(500, None), 0.0)[7], 2000);
    }

    #[test]
    fn the_api_server_s_own_word_counts() {
        assert_eq!(pauses(&refused(429, Some(30)), 0.0)[0], 30_000);
        assert_eq!(pauses(&refused(429, Some(30)), 0.5)[0], 30_500);
    }

    #[test]
    fn after_a_success_it_begins_anew() {
        let mut backoff = Backoff::default();
        let away = CallError::TimedOut;
        backoff.pause(&away, 1.0);
        backoff.pause(&away, 1.0);
        backoff.reset();
        assert_eq!(backoff.pause(&away, 1.0), FIRST);
    }

    #[test]
    fn dice_fall_between_zero_and_one() {
        assert!((0..100).map(|_| dice()).all(|dice| (0.0..=1.0).contains(&dice)));
    }
}
