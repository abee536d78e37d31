//! Metrics of the controller.

use portcullis_process::{counter, counters, gauge, gauges, registered};
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use crate::failed::{Cause, Failed};

/// The controller's metrics.
#[derive(Clone)]
pub(crate) struct Metrics {
    /// Whether this program holds the Lease.
    pub(crate) leader: IntGauge,
    /// The number of policies, revisions and webhook configurations.
    pub(crate) objects: IntGaugeVec,
    /// Writes and questions, by verb.
    pub(crate) actions: IntCounterVec,
    /// Writes and questions that failed, by verb, except for those whose object had changed meanwhile.
    failures: IntCounterVec,
    /// Webhooks that were repaired after they had been changed or deleted.
    pub(crate) repairs: IntCounter,
    /// Lists and watches that failed.
    pub(crate) watch_failures: IntCounter,
    /// How long a decision takes.
    pub(crate) decisions: Histogram,
}

impl Metrics {
    /// Registers all of them.
    ///
    /// # Errors
    /// When one of the names is taken.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            leader: gauge(registry, "portcullis_controller_leader", "1 while this program holds the Lease")?,
            objects: gauges(
                registry,
                "portcullis_controller_objects",
                "Number of policies, revisions and webhook configurations",
                &["kind"],
            )?,
            actions: counters(
                registry,
                "portcullis_controller_actions_total",
                "Writes and questions to the API server",
                &["action"],
            )?,
            failures: counters(
                registry,
                "portcullis_controller_action_failures_total",
                "Writes and questions that failed",
                &["action"],
            )?,
            repairs: counter(
                registry,
                "portcullis_controller_webhook_repairs_total",
                "Webhook configurations repaired after something else had changed or deleted them",
            )?,
            watch_failures: counter(
                registry,
                "portcullis_controller_watch_failures_total",
                "Lists and watches that failed",
            )?,
            decisions: registered(
                registry,
                Histogram::with_opts(
                    HistogramOpts::new("portcullis_controller_decision_seconds", "How long one decision takes")
                        .buckets(vec![0.0001, 0.001, 0.01, 0.1, 1.0]),
                )?,
            )?,
        })
    }

    /// Counts a failed action. One whose object had changed meanwhile is simply decided again, which is no failure of the API server.
    pub(crate) fn failed(&self, verb: &str, failed: &Failed) {
        if failed.cause != Cause::Overtaken {
            self.failures.with_label_values(&[verb]).inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_else_overtook_is_not_counted_as_a_failure() {
        let metrics = Metrics::new(&Registry::new()).expect("metrics");
        metrics.failed("mark_revision", &Failed::overtaken("the object has been modified"));
        assert_eq!(metrics.failures.with_label_values(&["mark_revision"]).get(), 0);
        metrics.failed("mark_revision", &Failed::other("down".to_owned()));
        assert_eq!(metrics.failures.with_label_values(&["mark_revision"]).get(), 1);
    }
}
