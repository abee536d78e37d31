//! Metrics of the certificates.

use jiff::Timestamp;
use prometheus::{IntCounter, IntGaugeVec, Opts, Registry};

use super::decide::Which;

/// All of them.
#[derive(Clone)]
pub struct CertificateMetrics {
    seconds_left: IntGaugeVec,
    /// Turns that failed, at reading or at writing.
    pub(crate) errors: IntCounter,
}

impl CertificateMetrics {
    /// Makes and registers them.
    ///
    /// # Errors
    /// When another metric has one of their names.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let seconds_left = IntGaugeVec::new(
            Opts::new(
                "portcullis_controller_certificate_expiry_seconds",
                "Seconds left of a certificate (ca, serving)",
            ),
            &["certificate"],
        )?;
        let errors = IntCounter::new(
            "portcullis_controller_certificate_errors_total",
            "Times that the Secrets of the certificates could not be read, written or used",
        )?;
        registry.register(Box::new(seconds_left.clone()))?;
        registry.register(Box::new(errors.clone()))?;
        Ok(Self { seconds_left, errors })
    }

    /// What is left of each certificate there is. A controller that does not lead shows none.
    pub(crate) fn show(&self, ends: &[(Which, Timestamp)], now: Timestamp) {
        self.hide();
        for (which, end) in ends {
            self.seconds_left.with_label_values(&[which.as_str()]).set(end.as_second() - now.as_second());
        }
    }

    /// From now on somebody else looks after the certificates.
    pub(crate) fn hide(&self) {
        self.seconds_left.reset();
    }
}
