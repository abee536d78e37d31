//! Metrics of the reporter.

use std::collections::BTreeMap;

use portcullis_process::{counter, counters, gauges};
use prometheus::{IntCounter, IntGaugeVec, Registry};

/// The reporter's metrics.
pub struct Metrics {
    policies: IntGaugeVec,
    /// Status objects written.
    pub writes: IntCounter,
    /// Status objects or events that could not be written.
    pub write_failures: IntCounter,
    /// Failed attempts to ask the loader.
    pub loader_failures: IntCounter,
    /// Failed attempts to ask the evaluator.
    pub evaluator_failures: IntCounter,
}

impl Metrics {
    /// Registers all metrics.
    ///
    /// # Errors
    /// When a name is taken already.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let policies =
            gauges(registry, "portcullis_reporter_policies", "Policies by the reason of Ready", &["status"])?;
        let writes = counter(registry, "portcullis_reporter_status_writes_total", "Status objects written")?;
        let write_failures = counter(
            registry,
            "portcullis_reporter_status_write_failures_total",
            "Status objects or events that could not be written",
        )?;
        let reads = counters(
            registry,
            "portcullis_reporter_state_read_failures_total",
            "Failed attempts to ask a program of this pod",
            &["program"],
        )?;
        let [loader_failures, evaluator_failures] =
            ["loader", "evaluator"].map(|program| reads.with_label_values(&[program]));
        Ok(Self { policies, writes, write_failures, loader_failures, evaluator_failures })
    }

    /// Shows how many policies have which reason of `Ready`. `words` has the reason of each policy.
    pub fn count<'w>(&self, words: impl Iterator<Item = &'w str>) {
        let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
        for word in words {
            *counts.entry(word).or_default() += 1;
        }
        self.policies.reset();
        for (word, count) in counts {
            self.policies.with_label_values(&[word]).set(count);
        }
    }
}
