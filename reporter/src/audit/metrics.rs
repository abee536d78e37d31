//! Metrics of the audit.

use std::collections::BTreeMap;

use portcullis_process::{counter, counters, gauges, registered};
use prometheus::core::Collector as _;
use prometheus::{Gauge, IntCounter, IntCounterVec, IntGaugeVec, Registry};

/// The metrics.
#[derive(Clone)]
pub(crate) struct AuditMetrics {
    /// Scans that were done to their end.
    pub(super) scans: IntCounter,
    objects: IntCounterVec,
    /// How long the last scan took.
    pub(super) seconds: Gauge,
    violations: IntGaugeVec,
    writes: IntCounterVec,
}

impl AuditMetrics {
    /// Registers all metrics.
    ///
    /// # Errors
    /// When a name is taken already.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            scans: counter(registry, "portcullis_audit_scans_total", "Scans that were done to their end")?,
            objects: counters(
                registry,
                "portcullis_audit_objects_total",
                "Objects, once for each policy that matches them",
                &["outcome"],
            )?,
            seconds: registered(registry, Gauge::new("portcullis_audit_scan_seconds", "Duration of the last scan")?)?,
            violations: gauges(
                registry,
                "portcullis_audit_violations",
                "Objects that a policy rejects, as of the last scan",
                &["policy"],
            )?,
            writes: counters(
                registry,
                "portcullis_audit_report_writes_total",
                "Reports written and deleted",
                &["result"],
            )?,
        })
    }

    /// Counts an object and a policy by the outcome.
    pub(super) fn object(&self, outcome: &str) {
        self.objects.with_label_values(&[outcome]).inc();
    }

    /// Counts a write of a report by its result.
    pub(super) fn write(&self, result: &str) {
        self.writes.with_label_values(&[result]).inc();
    }

    /// Shows these numbers of violations by policy, and removes the series of all other policies.
    pub(crate) fn show(&self, violations: &BTreeMap<String, i64>) {
        for metric in self.violations.collect().iter().flat_map(|family| family.get_metric()) {
            for label in metric.get_label() {
                if !violations.contains_key(label.value()) {
                    // An error would mean that the series is gone already.
                    self.violations.remove_label_values(&[label.value()]).ok();
                }
            }
        }
        for (policy, number) in violations {
            self.violations.with_label_values(&[policy]).set(*number);
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;

    #[test]
    fn only_policies_that_there_are_have_a_number() {
        let registry = Registry::new();
        let metrics = AuditMetrics::new(&registry).expect("registers");
        let shown = || {
            let text = TextEncoder::new().encode_to_string(&registry.gather()).expect("text");
            text.lines()
                .filter(|line| line.starts_with("portcullis_audit_violations"))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        metrics.show(&BTreeMap::from([("cluster/a".to_owned(), 2), ("cluster/b".to_owned(), 0)]));
        metrics.show(&BTreeMap::from([("cluster/b".to_owned(), 1)]));
        assert_eq!(shown(), ["portcullis_audit_violations{policy=\"cluster/b\"} 1"]);
    }
}
