//! Metrics of the keys.

use prometheus::{IntCounter, IntGauge, Registry};

/// All of them.
#[derive(Clone)]
pub(crate) struct PathKeyMetrics {
    /// Since when the newest key is there.
    pub(super) age: IntGauge,
    /// Turns that failed.
    pub(super) errors: IntCounter,
}

impl PathKeyMetrics {
    /// Makes and registers them.
    ///
    /// # Errors
    /// When another metric has one of their names.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            age: IntGauge::new(
                "portcullis_controller_path_key_age_seconds",
                "Seconds since the newest key of webhook paths was made; 0 where paths have no code and where another controller leads",
            )?,
            errors: IntCounter::new(
                "portcullis_controller_path_key_errors_total",
                "Times that the Secret of the keys of webhook paths could not be read or written, or that nobody could be asked who follows a change",
            )?,
        };
        registry.register(Box::new(metrics.age.clone()))?;
        registry.register(Box::new(metrics.errors.clone()))?;
        Ok(metrics)
    }
}
