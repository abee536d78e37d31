//! Failures that repeat: each is counted, and the log has one line when they begin and one when they end.

use std::time::{Duration, Instant};

use portcullis_util::LogOnce;

use crate::CallError;

/// Failures that are over sooner are not logged. A new leader, for example, may be refused for some seconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// The failures of one kind of call.
pub struct Failures {
    doing: &'static str,
    count: Box<dyn Fn(&CallError) + Send + Sync>,
    over: Box<dyn Fn() + Send + Sync>,
    log: LogOnce,
}

impl Failures {
    /// Without a failure yet. `doing` names the call, for instance `write status`; `count` is called with each failure.
    pub fn new(doing: &'static str, count: impl Fn(&CallError) + Send + Sync + 'static) -> Self {
        Self { doing, count: Box::new(count), over: Box::new(|| ()), log: LogOnce::after(PATIENCE) }
    }

    /// Makes each success call `over` as well.
    #[must_use]
    pub fn and_over(self, over: impl Fn() + Send + Sync + 'static) -> Self {
        Self { over: Box::new(over), ..self }
    }

    /// Notes that a call failed and will be tried again.
    pub fn failed(&mut self, error: &CallError) {
        self.failed_at(error, Instant::now());
    }

    /// The same at a given time.
    pub fn failed_at(&mut self, error: &CallError, now: Instant) {
        (self.count)(error);
        // One line, even if the problem changes in the meantime.
        if self.log.fails("", now) {
            tracing::warn!(%error, "failed to {}; it is tried again", self.doing);
        } else {
            tracing::debug!(%error, "failed to {}", self.doing);
        }
    }

    /// Notes that a call succeeded.
    pub fn over(&mut self) {
        (self.over)();
        if self.log.works() {
            tracing::info!("able to {} again", self.doing);
        }
    }
}
