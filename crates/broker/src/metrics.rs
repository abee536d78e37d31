//! The broker's metrics, on the loader's port.

use portcullis_process::{counters, gauge};
use prometheus::{IntCounterVec, IntGauge, Registry};

/// The broker's metrics.
#[derive(Clone)]
pub struct Metrics {
    /// Calls by capability and outcome.
    pub(crate) calls: IntCounterVec,
    /// Calls that are being worked on.
    pub(crate) running: IntGauge,
    /// Collections that are watched for policies.
    pub(crate) watches: IntGauge,
    /// Bytes of the objects in these collections.
    pub(crate) watched_bytes: IntGauge,
}

impl Metrics {
    /// Creates and registers the metrics.
    ///
    /// # Errors
    /// When the registry already has metrics of these names.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let calls = counters(
            registry,
            "portcullis_broker_calls_total",
            "Calls of policies that the broker answered, by capability and outcome (done, negative, denied, failed)",
            &["capability", "outcome"],
        )?;
        let gauge = |name: &str, help: &str| gauge(registry, name, help);
        Ok(Self {
            calls,
            running: gauge("portcullis_broker_calls_running", "Calls of policies that the broker works on")?,
            watches: gauge("portcullis_broker_watches", "Collections of the API server that are watched for policies")?,
            watched_bytes: gauge(
                "portcullis_broker_watched_bytes",
                "Bytes of the objects that are watched for policies, and of the lists that were made of them",
            )?,
        })
    }
}
