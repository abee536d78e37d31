//! Metrics of the keys of webhook paths.

use portcullis_process::{counter, gauge};
use prometheus::{IntCounter, IntGauge, Registry};

/// The metrics.
#[derive(Clone)]
pub(crate) struct PathKeyMetrics {
    /// The age of the newest key, in seconds.
    pub(super) age: IntGauge,
    /// The number of rounds that failed.
    pub(super) errors: IntCounter,
}

impl PathKeyMetrics {
    /// Creates and registers the metrics.
    ///
    /// # Errors
    /// When one of the names is taken.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            age: gauge(
                registry,
                "portcullis_controller_path_key_age_seconds",
                "Seconds since the newest key of webhook paths was made; 0 if paths have no code or another controller leads",
            )?,
            errors: counter(
                registry,
                "portcullis_controller_path_key_errors_total",
                "Failures to read or write the Secret of the keys of webhook paths, or to find out whether replicas and webhooks follow a change",
            )?,
        })
    }
}
