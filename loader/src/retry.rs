//! When to try again after a failure: by its class, with full jitter.

use std::time::Duration;

use portcullis_contract::{Class, Reason};
use portcullis_util::Backoff;

/// The times between attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Upper bound of the first wait for class R; it doubles with each attempt.
    pub initial: Duration,
    /// Largest upper bound for class R.
    pub cap: Duration,
    /// The wait for class S, and for class F where another attempt may help all the same.
    pub outside: Duration,
}

/// Shortest wait, so that jitter never means "at once".
const SHORTEST: Duration = Duration::from_millis(50);

impl Retry {
    /// The wait after the `attempts`th attempt failed (1 is the first); `None` if trying again cannot help.
    /// `random` is in [0, 1). The wait is never shorter than `retry_after`, which a source asked for. After a final failure, `Some` says that
    /// another attempt may help.
    pub fn wait(&self, reason: Reason, attempts: u32, retry_after: Option<Duration>, random: f64) -> Option<Duration> {
        let wait = match reason.class() {
            Class::Retry => self.bound(attempts).mul_f64(random.clamp(0.0, 1.0)).max(SHORTEST.min(self.initial)),
            Class::Final if retry_after.is_none() => return None,
            Class::Outside | Class::Final => self.outside,
        };
        Some(wait.max(retry_after.unwrap_or_default()))
    }

    /// The upper bound for class R after this many attempts.
    pub fn bound(&self, attempts: u32) -> Duration {
        Backoff { shortest: self.initial, longest: self.cap }.bound(attempts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Retry =
        Retry { initial: Duration::from_secs(1), cap: Duration::from_secs(300), outside: Duration::from_secs(600) };

    #[test]
    fn the_backoff_table() {
        let bounds: Vec<u64> = (1..=11).map(|attempts| RETRY.bound(attempts).as_secs()).collect();
        assert_eq!(bounds, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(RETRY.bound(u32::MAX), RETRY.cap);
    }

    #[test]
    fn class_r_has_full_jitter() {
        let wait = |random| RETRY.wait(Reason::RegistryTimeout, 4, None, random);
        assert_eq!(wait(0.5), Some(Duration::from_secs(4)));
        assert_eq!(wait(0.0), Some(SHORTEST));
        assert!(wait(0.999_999) < Some(Duration::from_secs(8)));
    }

    #[test]
    fn class_s_waits_long_and_class_f_for_ever_unless_another_attempt_may_help() {
        assert_eq!(RETRY.wait(Reason::NotFound, 1, None, 0.0), Some(RETRY.outside));
        assert_eq!(RETRY.wait(Reason::ModuleInvalid, 1, None, 0.0), None);
        assert_eq!(RETRY.wait(Reason::SourceNotAllowed, 9, None, 0.9), None);
        assert_eq!(RETRY.wait(Reason::SourceNotAllowed, 9, Some(Duration::ZERO), 0.9), Some(RETRY.outside));
    }

    #[test]
    fn l05_a_source_that_asks_for_time_gets_it() {
        let wait = RETRY.wait(Reason::RegistryThrottled, 1, Some(Duration::from_secs(7)), 0.0);
        assert_eq!(wait, Some(Duration::from_secs(7)));
    }
}
