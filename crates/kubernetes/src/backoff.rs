//! How long to wait after failures.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// Waits that double from the shortest to the longest, each with jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure.
    pub shortest: Duration,
    /// After many.
    pub longest: Duration,
}

impl Backoff {
    /// The wait after this many failures in a row, from half of its nominal length up to the whole of it; `random` is from 0 to 1.
    pub fn wait(&self, failures: u32, random: f64) -> Duration {
        let doubled = self.shortest.saturating_mul(1 << failures.saturating_sub(1).min(20));
        doubled.min(self.longest).mul_f64(0.5 + 0.5 * random.clamp(0.0, 1.0))
    }
}

/// A number from 0 to 1 that is good enough for jitter.
pub fn random() -> f64 {
    // Each state has keys of its own.
    let bits = u32::try_from(RandomState::new().hash_one(0u8) >> 32).unwrap_or(0);
    f64::from(bits) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let backoff = Backoff { shortest: Duration::from_millis(200), longest: Duration::from_secs(10) };
        let waits = [1, 2, 3, 7, 99].map(|failures| backoff.wait(failures, 1.0).as_millis());
        assert_eq!(waits, [200, 400, 800, 10_000, 10_000]);
        assert_eq!(backoff.wait(2, 0.0), Duration::from_millis(200));
    }

    #[test]
    fn jitter_stays_in_its_bounds() {
        assert!((0..100).map(|_| random()).all(|number| (0.0..=1.0).contains(&number)));
    }
}
