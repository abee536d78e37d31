//! One log line when failures begin, and one when they end.

use std::time::{Duration, Instant};

/// Decides which of the failures in a row are logged: one when they have lasted for a while, one for each change of the problem,
/// and one when they are over. Pure.
#[derive(Debug, Default)]
pub struct LogOnce {
    patience: Duration,
    since: Option<Instant>,
    logged: Option<String>,
}

impl LogOnce {
    /// Failures that are over before `patience` has passed are not logged.
    pub fn after(patience: Duration) -> Self {
        Self { patience, ..Self::default() }
    }

    /// Notes a failure. Returns whether to log it. `problem` distinguishes failures; an empty one does not.
    pub fn fails(&mut self, problem: &str, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        let is_due = now.duration_since(since) >= self.patience && self.logged.as_deref() != Some(problem);
        if is_due {
            self.logged = Some(problem.to_owned());
        }
        is_due
    }

    /// Notes a success. Returns whether to log that the failures are over.
    pub fn works(&mut self) -> bool {
        self.since = None;
        self.logged.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);

    #[test]
    fn failures_in_a_row_are_logged_once_and_so_is_their_end() {
        let (mut log, now) = (LogOnce::default(), Instant::now());
        assert!(!log.works());
        assert!(log.fails("a", now) && !log.fails("a", now));
        assert!(log.fails("b", now), "another problem");
        assert!(log.works() && !log.works());
        assert!(log.fails("b", now), "it is back");
    }

    #[test]
    fn failures_that_are_over_soon_are_not_logged() {
        let (mut log, now) = (LogOnce::after(PATIENCE), Instant::now());
        assert!(!log.fails("a", now) && !log.works());
        assert!(!log.fails("a", now + PATIENCE), "counted from the first one since it worked");
        assert!(log.fails("a", now + 2 * PATIENCE));
    }
}
