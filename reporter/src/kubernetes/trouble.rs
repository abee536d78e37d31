//! Trouble with the API server is counted each time and told once: one log line when it lasts, one when it is over.

use std::time::{Duration, Instant};

use prometheus::IntCounterVec;

use super::call::CallError;

/// What is over before this is not worth a line. A new leader, for one, may be refused for some seconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// The trouble with one kind of call.
pub(crate) struct Trouble {
    /// What is being done, for instance `write status`.
    doing: &'static str,
    failures: IntCounterVec,
    since: Option<Instant>,
    told: bool,
}

impl Trouble {
    /// No trouble. `failures` has the labels `call` and `code`.
    pub(crate) fn new(doing: &'static str, failures: IntCounterVec) -> Self {
        Self { doing, failures, since: None, told: false }
    }

    /// A call had no success.
    pub(crate) fn is(&mut self, error: &CallError) {
        self.failures.with_label_values(&[self.doing, &error.label()]).inc();
        let since = *self.since.get_or_insert_with(Instant::now);
        if !self.told && since.elapsed() >= PATIENCE {
            tracing::warn!(%error, "failed to {}; it is tried again", self.doing);
            self.told = true;
        } else {
            tracing::debug!(%error, "failed to {}", self.doing);
        }
    }

    /// It works.
    pub(crate) fn over(&mut self) {
        self.since = None;
        if std::mem::take(&mut self.told) {
            tracing::info!("{} works again", self.doing);
        }
    }
}
