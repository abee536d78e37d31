//! Failures that repeat: each is counted, and the log has one line when they begin and one when they end.

use std::time::{Duration, Instant};

use crate::CallError;

/// Failures of calls that end sooner are not logged. A new leader, for one, may be refused for some seconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Decides which of the failures in a row are worth a log line: one when they have lasted for a while, one for each change of the
/// problem, and one when they are over. Pure.
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

    /// Something failed. `problem` tells failures apart. Whether to log it.
    pub fn fails(&mut self, problem: &str, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        let is_due = now.duration_since(since) >= self.patience && self.logged.as_deref() != Some(problem);
        if is_due {
            self.logged = Some(problem.to_owned());
        }
        is_due
    }

    /// It works. Whether to log that the failures are over.
    pub fn works(&mut self) -> bool {
        self.since = None;
        self.logged.take().is_some()
    }
}

/// The failures of one kind of call.
pub struct Failures {
    doing: &'static str,
    count: Box<dyn Fn(&CallError) + Send + Sync>,
    over: Box<dyn Fn() + Send + Sync>,
    log: LogOnce,
}

impl Failures {
    /// No failure yet. `doing` names the call, for instance `write status`; `count` is called with each failure.
    pub fn new(doing: &'static str, count: impl Fn(&CallError) + Send + Sync + 'static) -> Self {
        Self { doing, count: Box::new(count), over: Box::new(|| ()), log: LogOnce::after(PATIENCE) }
    }

    /// The same, and `over` is called with each success.
    #[must_use]
    pub fn and_over(self, over: impl Fn() + Send + Sync + 'static) -> Self {
        Self { over: Box::new(over), ..self }
    }

    /// A call failed, and will be tried again.
    pub fn failed(&mut self, error: &CallError) {
        (self.count)(error);
        // One line, however the problem changes meanwhile.
        if self.log.fails("", Instant::now()) {
            tracing::warn!(%error, "failed to {}; it is tried again", self.doing);
        } else {
            tracing::debug!(%error, "failed to {}", self.doing);
        }
    }

    /// A call succeeded.
    pub fn over(&mut self) {
        (self.over)();
        if self.log.works() {
            tracing::info!("able to {} again", self.doing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
