//! Telemetry of the evaluator, on its way to the collector that the loader's settings name.
//!
//! The evaluator may be in a stranger's hands. So it chooses neither address nor path nor headers, learns nothing of the collector's answer, and
//! has a limit of bytes and of exports in a second.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use portcullis_contract::{MAX_EXPORT, Signal};
use portcullis_process::telemetry::{Collectors, Outlet as _};
use tokio::sync::Semaphore;

use crate::ProvideError;

/// Exports at the same time.
const RUNNING: usize = 2;
/// Exports in a row.
const BURST: u32 = 20;
/// The time after which there may be one more.
const PAUSE: Duration = Duration::from_millis(50);

/// Posts what the evaluator exports.
pub(crate) struct Exports {
    collectors: Collectors,
    running: Semaphore,
    budget: Mutex<Budget>,
    /// Whether the collector did not take the last one.
    is_failing: AtomicBool,
}

/// How many exports there may be now.
#[derive(Debug)]
struct Budget {
    left: u32,
    since: Instant,
}

impl Exports {
    pub(crate) fn new(collectors: Collectors) -> Self {
        let budget = Mutex::new(Budget { left: BURST, since: Instant::now() });
        Self { collectors, running: Semaphore::new(RUNNING), budget, is_failing: AtomicBool::new(false) }
    }

    /// Posts one body.
    ///
    /// # Errors
    /// When there is no collector, it does not take the body, or the evaluator sends too much.
    pub(crate) async fn post(&self, signal: Signal, body: Bytes) -> Result<Bytes, ProvideError> {
        let client = match signal {
            Signal::Traces => &self.collectors.traces,
            Signal::Metrics => &self.collectors.metrics,
        };
        let Some(client) = client else {
            return Err(ProvideError::failed(
                "the loader has no OTEL_EXPORTER_OTLP_ENDPOINT, or one that it cannot use",
            ));
        };
        if body.len() > MAX_EXPORT {
            let text = format!("the export has {} bytes, the limit is {MAX_EXPORT}", body.len());
            return Err(ProvideError::failed(text));
        }
        let has_budget = self.budget.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now());
        let permit = self.running.try_acquire().ok().filter(|_| has_budget);
        let Some(_permit) = permit else { return Err(ProvideError::failed("too many exports")) };
        match client.send(body).await {
            Ok(()) => {
                if self.is_failing.swap(false, Ordering::Relaxed) {
                    tracing::info!("the collector takes what the evaluator exports again");
                }
                Ok(Bytes::new())
            }
            Err(problem) => {
                if !self.is_failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(problem, "the collector does not take what the evaluator exports");
                }
                Err(ProvideError::failed("the collector does not take them; the loader's log says why"))
            }
        }
    }
}

impl Budget {
    fn take(&mut self, now: Instant) -> bool {
        let pauses = now.saturating_duration_since(self.since).as_millis() / PAUSE.as_millis();
        let more = u32::try_from(pauses).unwrap_or(u32::MAX);
        self.since += PAUSE * more.min(1_000_000);
        self.left = self.left.saturating_add(more).min(BURST);
        let has = self.left > 0;
        self.left = self.left.saturating_sub(1);
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_have_a_budget() {
        let start = Instant::now();
        let mut budget = Budget { left: BURST, since: start };
        let taken = |budget: &mut Budget, after: u64| {
            let now = start + Duration::from_millis(after);
            (0..100).filter(|_| budget.take(now)).count()
        };
        assert_eq!(taken(&mut budget, 0), 20);
        assert_eq!(taken(&mut budget, 30), 0);
        assert_eq!(taken(&mut budget, 60), 1);
        // What is left of a pause counts on.
        assert_eq!(taken(&mut budget, 100), 1);
        assert_eq!(taken(&mut budget, 10_000), 20);
    }

    #[tokio::test]
    async fn without_a_collector_nothing_is_posted() {
        let error = Exports::new(Collectors::default()).post(Signal::Traces, Bytes::new()).await.expect_err("refused");
        assert!(error.to_string().contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "{error}");
    }
}
