//! How long to wait after failures. Pure: the random numbers for jitter come from the caller.

use std::time::Duration;

/// Waits that double from the shortest to the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The wait after the first failure.
    pub shortest: Duration,
    /// The longest wait.
    pub longest: Duration,
}

impl Backoff {
    /// The wait after this many failures in a row: between half of its bound and the whole of it. `random` is from 0 to
    /// 1.
    pub fn wait(&self, failures: u32, random: f64) -> Duration {
        self.bound(failures).mul_f64(0.5 + 0.5 * random.clamp(0.0, 1.0))
    }

    /// The longest wait after this many failures in a row.
    pub fn bound(&self, failures: u32) -> Duration {
        let doubled = 1_u32.checked_shl(failures.saturating_sub(1).min(31)).unwrap_or(u32::MAX);
        self.shortest.saturating_mul(doubled).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_a_longest_one() {
        let backoff = Backoff { shortest: Duration::from_millis(200), longest: Duration::from_secs(10) };
        let waits = [1, 2, 3, 7, 99, u32::MAX].map(|failures| backoff.wait(failures, 1.0).as_millis());
        assert_eq!(waits, [200, 400, 800, 10_000, 10_000, 10_000]);
        assert_eq!(backoff.wait(2, 0.0), Duration::from_millis(200));
    }
}
