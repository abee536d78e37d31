//! Metrics of the output to Kubernetes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use portcullis_kubernetes::{CallError, Failures};
use portcullis_process::{counter, counters, gauge};
use prometheus::{IntCounter, IntCounterVec, IntGauge, Registry};

use super::tally::Tally;
use crate::audit::AuditMetrics;

/// The metrics.
#[derive(Clone)]
pub(crate) struct ClusterMetrics {
    /// Failed calls, by what was being done and why.
    failures: IntCounterVec,
    /// 1 while this reporter leads.
    pub(crate) leads: IntGauge,
    /// Whether the API server drops fields of the status, or of the report.
    pub(crate) outdated: OutdatedGauge,
    /// Status objects written.
    pub(crate) writes: IntCounter,
    /// Status writes that met a newer version.
    pub(crate) conflicts: IntCounter,
    /// Events written.
    pub(crate) events: IntCounter,
    /// Events that were given up.
    pub(crate) events_lost: IntCounter,
    /// The gauges of policies by status.
    pub(crate) tally: Tally,
    /// The metrics of the audit.
    pub(crate) audit: AuditMetrics,
}

impl ClusterMetrics {
    /// Registers all metrics.
    ///
    /// # Errors
    /// When a name is taken already.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            failures: counters(
                registry,
                "portcullis_reporter_api_failures_total",
                "Failed calls to the API server",
                &["call", "code"],
            )?,
            leads: gauge(registry, "portcullis_reporter_leader", "1 while this reporter holds the Lease")?,
            outdated: OutdatedGauge::new(registry)?,
            writes: counter(
                registry,
                "portcullis_reporter_policy_status_writes_total",
                "Status of policies written to the API",
            )?,
            conflicts: counter(
                registry,
                "portcullis_reporter_policy_status_conflicts_total",
                "Writes of status that met a newer version of the policy and were decided again",
            )?,
            events: counter(registry, "portcullis_reporter_events_written_total", "Events written")?,
            events_lost: counter(
                registry,
                "portcullis_reporter_events_lost_total",
                "Events given up: too many, or refused",
            )?,
            tally: Tally::new(registry)?,
            audit: AuditMetrics::new(registry)?,
        })
    }

    /// Counts and logs the failures of one kind of call. `doing` is the label `call`.
    pub(crate) fn failures_to(&self, doing: &'static str) -> Failures {
        let failures = self.failures.clone();
        Failures::new(doing, move |error: &CallError| failures.with_label_values(&[doing, &error.label()]).inc())
    }
}

/// What an API server with an older definition drops fields of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Losing {
    /// The status of a policy, as the leader finds.
    Status,
    /// This pod's report.
    Report,
}

/// A gauge that is 1 while the API server drops fields of anything.
#[derive(Clone)]
pub(crate) struct OutdatedGauge {
    gauge: IntGauge,
    losing: Arc<[AtomicBool; 2]>,
}

impl OutdatedGauge {
    fn new(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = gauge(
            registry,
            "portcullis_reporter_status_schema_outdated",
            "1 when a CustomResourceDefinition is older than the reporter and drops fields of the status or of the report",
        )?;
        Ok(Self { gauge, losing: Arc::default() })
    }

    /// Sets whether fields of this are dropped.
    pub(crate) fn set(&self, what: Losing, is_losing: bool) {
        self.losing[what as usize].store(is_losing, Ordering::Relaxed);
        self.gauge.set(i64::from(self.losing.iter().any(|losing| losing.load(Ordering::Relaxed))));
    }

    #[cfg(test)]
    pub(crate) fn get(&self) -> i64 {
        self.gauge.get()
    }
}
