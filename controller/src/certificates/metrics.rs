//! Metrics of the certificates.

use jiff::Timestamp;
use portcullis_process::{counter, gauges};
use prometheus::{IntCounter, IntGaugeVec, Registry};

use super::decide::Which;
use super::rules::Purpose;

/// The metrics.
#[derive(Clone)]
pub struct CertificateMetrics {
    seconds_left: IntGaugeVec,
    /// The number of rounds that failed to read, write or use a Secret.
    pub(crate) errors: IntCounter,
}

impl CertificateMetrics {
    /// Creates and registers the metrics.
    ///
    /// # Errors
    /// When one of the names is taken.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let seconds_left = gauges(
            registry,
            "portcullis_controller_certificate_expiry_seconds",
            "Seconds until a certificate expires (ca, serving, siblings-ca, siblings)",
            &["certificate"],
        )?;
        let errors = counter(
            registry,
            "portcullis_controller_certificate_errors_total",
            "Failures to read, write or use the Secrets of the certificates",
        )?;
        Ok(Self { seconds_left, errors })
    }

    /// Shows the time left of each certificate. A controller that does not lead shows none.
    pub(crate) fn show(&self, purpose: Purpose, ends: &[(Which, Timestamp)], now: Timestamp) {
        self.hide(purpose);
        for (which, end) in ends {
            self.seconds_left.with_label_values(&[label(purpose, *which)]).set(end.as_second() - now.as_second());
        }
    }

    /// Removes the certificates of this purpose, because another controller leads now.
    pub(crate) fn hide(&self, purpose: Purpose) {
        for which in [Which::Ca, Which::Serving] {
            // It fails for a certificate that was not shown.
            let _ = self.seconds_left.remove_label_values(&[label(purpose, which)]);
        }
    }
}

fn label(purpose: Purpose, which: Which) -> &'static str {
    match (purpose, which) {
        (Purpose::Webhooks, Which::Ca) => "ca",
        (Purpose::Webhooks, Which::Serving) => "serving",
        (Purpose::Siblings, Which::Ca) => "siblings-ca",
        (Purpose::Siblings, Which::Serving) => "siblings",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_certificate_is_shown_while_somebody_keeps_it() {
        let registry = Registry::new();
        let metrics = CertificateMetrics::new(&registry).expect("metrics");
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().expect("a time");
        let ends = [(Which::Ca, now), (Which::Serving, now)];
        let shown = || registry.gather().iter().map(|family| family.get_metric().len()).max();
        metrics.show(Purpose::Webhooks, &ends, now);
        metrics.show(Purpose::Siblings, &ends, now);
        assert_eq!(shown(), Some(4));
        metrics.show(Purpose::Siblings, &ends[..1], now);
        assert_eq!(shown(), Some(3));
        metrics.hide(Purpose::Webhooks);
        assert_eq!(shown(), Some(1));
    }
}
