//! Telemetry of the evaluator, on its way to the collector that the loader's settings name.
//!
//! The evaluator may be under an attacker's control. So it chooses neither address nor path nor headers, does not see the collector's answer,
//! and may send a limited number of exports per second. The connection limits the bytes of each.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use portcullis_contract::Signal;
use portcullis_process::telemetry::{Collectors, OtlpClient, Outlet as _};
use portcullis_util::lock;
use tokio::sync::Semaphore;

use crate::ProvideError;

/// The most exports at the same time.
const RUNNING: usize = 2;
/// The most exports in a burst.
const BURST: u32 = 20;
/// The time after a burst until one more export is allowed.
const PAUSE: Duration = Duration::from_millis(50);
/// The shortest time between two log lines about one signal.
const QUIET: Duration = Duration::from_secs(60);

/// Posts what the evaluator exports.
pub(crate) struct Exports {
    traces: Destination,
    metrics: Destination,
    running: Semaphore,
    budget: Mutex<Budget>,
}

/// Where the exports of one signal go.
struct Destination {
    client: Option<OtlpClient>,
    logged: Mutex<Logged>,
}

/// What was last logged about a collector.
#[derive(Debug, Default)]
struct Logged {
    is_failing: bool,
    at: Option<Instant>,
}

/// How many exports are allowed now.
#[derive(Debug)]
struct Budget {
    left: u32,
    since: Instant,
}

impl Exports {
    pub(crate) fn new(collectors: Collectors) -> Self {
        let budget = Mutex::new(Budget { left: BURST, since: Instant::now() });
        let destination = |client| Destination { client, logged: Mutex::default() };
        let (traces, metrics) = (destination(collectors.traces), destination(collectors.metrics));
        Self { traces, metrics, running: Semaphore::new(RUNNING), budget }
    }

    /// Posts one body.
    ///
    /// # Errors
    /// When there is no collector, it does not take the body, or the evaluator exports too often.
    pub(crate) async fn post(&self, signal: Signal, body: Bytes) -> Result<Bytes, ProvideError> {
        let destination = match signal {
            Signal::Traces => &self.traces,
            Signal::Metrics => &self.metrics,
        };
        let Some(client) = &destination.client else {
            return Err(ProvideError::failed(
                "the loader has no OTEL_EXPORTER_OTLP_ENDPOINT, or one that it cannot use",
            ));
        };
        let has_budget = lock(&self.budget).take(Instant::now());
        let permit = self.running.try_acquire().ok().filter(|_| has_budget);
        let Some(_permit) = permit else { return Err(ProvideError::failed("too many exports")) };
        let result = client.send(body).await;
        let is_due = {
            let mut logged = lock(&destination.logged);
            logged.should_log(result.is_err(), Instant::now())
        };
        match result {
            Ok(()) => {
                if is_due {
                    tracing::info!(?signal, "the collector accepts the evaluator's telemetry again");
                }
                Ok(Bytes::new())
            }
            Err(problem) => {
                if is_due {
                    let problem = problem.to_string();
                    tracing::warn!(?signal, problem, "the collector rejects the evaluator's telemetry");
                }
                Err(ProvideError::failed("the collector does not take them; the loader's log says why"))
            }
        }
    }
}

impl Logged {
    /// Whether an outcome should be logged: it differs from the last one logged, and the last line is old enough.
    fn should_log(&mut self, is_failing: bool, now: Instant) -> bool {
        let is_quiet = self.at.is_none_or(|at| now.saturating_duration_since(at) >= QUIET);
        let is_due = is_quiet && is_failing != self.is_failing;
        if is_due {
            *self = Self { is_failing, at: Some(now) };
        }
        is_due
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
        // The unused part of a pause counts towards the next one.
        assert_eq!(taken(&mut budget, 100), 1);
        assert_eq!(taken(&mut budget, 10_000), 20);
    }

    #[test]
    fn a_collector_that_comes_and_goes_is_one_line_a_minute() {
        let (mut logged, start) = (Logged::default(), Instant::now());
        let mut should_log = |is_failing, seconds| logged.should_log(is_failing, start + Duration::from_secs(seconds));
        assert!(!should_log(false, 0) && should_log(true, 1) && !should_log(true, 2));
        assert!(!should_log(false, 3) && !should_log(true, 4) && !should_log(true, 70));
        assert!(should_log(false, 80) && !should_log(true, 81) && should_log(true, 150));
    }

    #[tokio::test]
    async fn without_a_collector_nothing_is_posted() {
        let error = Exports::new(Collectors::default()).post(Signal::Traces, Bytes::new()).await.expect_err("refused");
        assert!(error.to_string().contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "{error}");
    }
}
