//! The evaluator's metrics. Handles are looked up when a policy is loaded and never at a request.

pub(crate) mod kubewarden;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use portcullis_contract::{PolicyId, Reason, Stage};
use portcullis_process::{counters, gauges, registered};
use portcullis_util::lock;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use crate::metrics::kubewarden::{Kubewarden, PolicySeries};

/// Buckets of durations, in seconds: from 50 µs to 30 s.
const SECONDS: &[f64] = &[
    0.000_05, 0.000_1, 0.000_2, 0.000_4, 0.000_8, 0.001_6, 0.003_2, 0.006_4, 0.012_8, 0.025_6, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.0, 5.0, 10.0, 30.0,
];

/// The metrics that policies share, and the means to make those of one policy.
#[derive(Clone)]
pub struct Metrics {
    /// The registry that `/metrics` shows.
    pub registry: Registry,
    series: Series,
    /// The series of policies that are only checked. They are not in the registry, since they would come and go with each policy that somebody
    /// applies.
    unshown: Series,
    /// Kubewarden's metrics; none unless they are asked for.
    kubewarden: Option<Kubewarden>,
    /// Swaps of the table.
    pub swaps: IntCounter,
    /// Policies of which a generation serves.
    pub loaded: IntGauge,
    /// Policies of which no generation serves.
    pub failed: IntGauge,
    /// Manifests that could not be used.
    pub manifest_errors: IntCounter,
    /// 1 while the newest manifest cannot be used.
    pub manifest_unusable: IntGauge,
    /// 1 while changes of the volume are found by polling only.
    pub watch_polling: IntGauge,
    /// Instances in use now.
    pub instances: IntGauge,
    /// The most instances at the same time.
    pub instance_limit: IntGauge,
    /// Memory that instances and their floors hold.
    pub guest_memory: IntGauge,
    /// Memory that they may hold together.
    pub guest_memory_limit: IntGauge,
    /// Times that an instance or a request waited for memory.
    pub guest_memory_waits: IntCounter,
    /// Times that an instance or a request got no memory.
    pub guest_memory_refused: IntCounter,
    /// Requests refused because too many were under way or memory was exhausted. It is counted where a request is refused and not where what it
    /// needs is shared: loads, checks and audits need the same.
    pub overloaded: IntCounter,
    /// Markers of the controller that were answered.
    pub markers: IntCounter,
    /// Open connections of the admission port.
    pub connections: IntGauge,
    /// Connections closed because there were too many.
    pub connections_closed: IntCounter,
    /// Bodies of requests given up because they came too slowly.
    pub bodies_too_slow: IntCounter,
    /// Bodies of requests refused because there was no memory for large ones.
    pub bodies_without_room: IntCounter,
    /// TLS handshakes that failed.
    pub handshakes_failed: IntCounter,
    /// Seconds until the serving certificate expires; negative after that. It has no labels, and no series before the first certificate, since
    /// 0 would mean one that has expired.
    certificate_seconds_left: IntGaugeVec,
    /// Certificates that could not be used.
    pub certificate_errors: IntCounter,
    /// 1 where Landlock is fully in force.
    pub landlock: IntGauge,
    /// 1 where the kernel shows which pages of guests' memory were written.
    pub written_pages_found: IntGauge,
    /// 1 where the seccomp filter is in force.
    pub seccomp: IntGauge,
    /// Panics in request handlers.
    pub panics: IntCounter,
    /// 1 while the broker is connected.
    pub broker_connected: IntGauge,
    /// Calls of guests that went to the broker, by capability and outcome (done, negative, denied, failed).
    pub capability_calls: IntCounterVec,
    /// Policies that somebody applied, by outcome (passed, refused, unknown, skipped).
    pub checks: IntCounterVec,
    /// Objects that exist and that a policy was asked about, by outcome (allowed, denied, changes, failed, postponed, refused).
    pub audits: IntCounterVec,
}

/// The metrics of single policies.
#[derive(Clone)]
struct Series {
    evaluations: IntCounterVec,
    errors: IntCounterVec,
    seconds: HistogramVec,
    wait_seconds: HistogramVec,
    log_lines_dropped: IntCounterVec,
    passed_over: IntCounterVec,
}

/// The counters of one policy.
pub struct PolicyMetrics {
    /// Admissions without a change of the object.
    pub allowed: IntCounter,
    /// Denials.
    pub denied: IntCounter,
    /// Admissions with a patch.
    pub mutated: IntCounter,
    /// Evaluations without a verdict.
    pub failed: IntCounter,
    /// Requests whose match group passed over the policy. They are not evaluations and do not change the policy's share of errors.
    pub passed_over: IntCounter,
    /// Time of an evaluation, without waiting.
    pub seconds: Histogram,
    /// Time between a request's arrival and the start of its evaluation.
    pub wait_seconds: Histogram,
    /// Log lines of the guest beyond its share, which were dropped.
    pub log_lines_dropped: IntCounter,
    /// Its series under Kubewarden's names; none unless they are asked for.
    pub(crate) kubewarden: Option<PolicySeries>,
    errors: IntCounterVec,
    /// Evaluations that failed since the policy was first listed, by reason.
    failures: Mutex<BTreeMap<Reason, u64>>,
    policy: PolicyId,
    is_forgotten: AtomicBool,
}

/// The counters of a policy at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Evaluations with a verdict, whatever it was.
    pub(crate) verdicts: u64,
    /// Evaluations without a verdict.
    pub(crate) failures: BTreeMap<Reason, u64>,
}

/// What a verdict counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// An admission without a change.
    Allowed,
    /// A denial.
    Denied,
    /// An admission with a change of the object.
    Mutated,
    /// A change that may not be sent.
    PatchInvalid,
}

impl Count {
    /// The value of the label `verdict`.
    pub(crate) fn verdict(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Mutated => "mutated",
            Self::PatchInvalid => "error",
        }
    }

    /// Why there is no verdict; none if there is one.
    pub(crate) fn reason(self) -> Option<Reason> {
        (self == Self::PatchInvalid).then_some(Reason::PatchInvalid)
    }
}

impl PolicyMetrics {
    /// Counts a verdict.
    pub(crate) fn count(&self, count: Count) {
        match count {
            Count::Allowed => self.allowed.inc(),
            Count::Denied => self.denied.inc(),
            Count::Mutated => self.mutated.inc(),
            Count::PatchInvalid => self.error(Reason::PatchInvalid),
        }
    }

    /// Counts an evaluation that failed, or an answer of a policy with nothing that serves.
    pub fn error(&self, reason: Reason) {
        self.failed.inc();
        if reason.stage() == Stage::Evaluate {
            let mut failures = lock(&self.failures);
            *failures.entry(reason).or_default() += 1;
        }
        // An evaluation that outlives its policy would bring back a series that is never removed.
        if self.is_forgotten.load(Ordering::Relaxed) {
            return;
        }
        self.errors.with_label_values(&[self.policy.as_str(), reason.as_str()]).inc();
    }

    /// Verdicts and failed evaluations so far.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            verdicts: self.allowed.get() + self.denied.get() + self.mutated.get(),
            failures: lock(&self.failures).clone(),
        }
    }
}

impl Metrics {
    /// Makes and registers the metrics.
    ///
    /// # Errors
    /// Never, with the names given here.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let series = Series::new()?;
        series.register(&registry)?;
        let capability_calls = counters(
            &registry,
            "portcullis_capability_calls_total",
            "Calls of policies to the broker by capability and outcome (done, negative, denied, failed)",
            &["capability", "outcome"],
        )?;
        let checks = counters(
            &registry,
            "portcullis_checks_total",
            "Policies that somebody applied, by what the check found (passed, refused, unknown, skipped)",
            &["outcome"],
        )?;
        let audits = counters(
            &registry,
            "portcullis_audits_total",
            "Questions of the reporter about objects that exist, by outcome (allowed, denied, changes, failed, postponed, refused)",
            &["outcome"],
        )?;
        let counter = |name: &str, help: &str| registered(&registry, IntCounter::new(name, help)?);
        let gauge = |name: &str, help: &str| registered(&registry, IntGauge::new(name, help)?);
        Ok(Self {
            swaps: counter("portcullis_swaps_total", "Swaps of the table of policies")?,
            loaded: gauge("portcullis_policies_loaded", "Policies with something that serves")?,
            failed: gauge("portcullis_policies_failed", "Policies with nothing that serves")?,
            manifest_errors: counter("portcullis_manifest_errors_total", "Manifests that could not be used")?,
            manifest_unusable: gauge("portcullis_manifest_unusable", "1 while the newest manifest cannot be used")?,
            watch_polling: gauge(
                "portcullis_watch_polling",
                "1 while changes of the volume are found by polling only",
            )?,
            instances: gauge("portcullis_instances", "Policy instances in use")?,
            instance_limit: gauge("portcullis_instances_limit", "Policy instances that there may be")?,
            guest_memory: gauge(
                "portcullis_guest_memory_bytes",
                "Memory set aside for policy instances in use, and for what requests keep",
            )?,
            guest_memory_limit: gauge(
                "portcullis_guest_memory_limit_bytes",
                "Memory that policy instances may have together",
            )?,
            guest_memory_waits: counter(
                "portcullis_guest_memory_waits_total",
                "Times that an instance or a request waited for memory",
            )?,
            guest_memory_refused: counter(
                "portcullis_guest_memory_refused_total",
                "Times that an instance or a request got no memory",
            )?,
            overloaded: counter("portcullis_overloaded_total", "Requests refused because too much was under way")?,
            markers: counter("portcullis_markers_total", "Markers of the controller that were answered")?,
            connections: gauge("portcullis_connections", "Open connections of the admission port")?,
            connections_closed: counter("portcullis_connections_closed_total", "Connections closed to make room")?,
            bodies_too_slow: counter("portcullis_bodies_too_slow_total", "Bodies of requests that came too slowly")?,
            bodies_without_room: counter(
                "portcullis_bodies_without_room_total",
                "Large bodies of requests refused because others had all the memory for them",
            )?,
            handshakes_failed: counter("portcullis_tls_handshakes_failed_total", "TLS handshakes that failed")?,
            certificate_seconds_left: gauges(
                &registry,
                "portcullis_certificate_seconds_left",
                "Seconds left of the serving certificate",
                &[],
            )?,
            certificate_errors: counter("portcullis_certificate_errors_total", "Certificates that could not be taken")?,
            written_pages_found: gauge(
                "portcullis_written_pages_found",
                "1 where the kernel tells which pages of memory a policy wrote (PAGEMAP_SCAN), which saves CPU time",
            )?,
            landlock: gauge("portcullis_landlock_enforced", "1 where Landlock is fully in force")?,
            seccomp: gauge("portcullis_seccomp_enforced", "1 where the seccomp filter is in force")?,
            panics: counter("portcullis_panics_total", "Panics in request handlers")?,
            broker_connected: gauge("portcullis_broker_connected", "1 while the broker in the loader is connected")?,
            series,
            unshown: Series::new()?,
            capability_calls,
            checks,
            audits,
            kubewarden: None,
            registry,
        })
    }

    /// These metrics, and also those with Kubewarden's names.
    ///
    /// # Errors
    /// When they are registered already.
    pub(crate) fn with_kubewarden(self) -> prometheus::Result<Self> {
        let kubewarden = Some(Kubewarden::new(&self.registry)?);
        Ok(Self { kubewarden, ..self })
    }

    /// Shows the seconds until the certificate in use expires; negative after that.
    pub(crate) fn certificate_lasts(&self, seconds: i64) {
        self.certificate_seconds_left.with_label_values::<&str>(&[]).set(seconds);
    }

    /// Whether requests are counted under Kubewarden's names as well.
    pub(crate) fn has_kubewarden(&self) -> bool {
        self.kubewarden.is_some()
    }

    /// The counters of one policy. `/metrics` does not show those of a policy that is only checked.
    pub fn policy(&self, id: &PolicyId) -> Arc<PolicyMetrics> {
        let series = self.series(id);
        let verdict = |verdict: &str| series.evaluations.with_label_values(&[id.as_str(), verdict]);
        let kubewarden = self.kubewarden.as_ref().filter(|_| !id.is_check());
        Arc::new(PolicyMetrics {
            allowed: verdict("allowed"),
            denied: verdict("denied"),
            mutated: verdict("mutated"),
            failed: verdict("error"),
            passed_over: series.passed_over.with_label_values(&[id.as_str()]),
            seconds: series.seconds.with_label_values(&[id.as_str()]),
            wait_seconds: series.wait_seconds.with_label_values(&[id.as_str()]),
            log_lines_dropped: series.log_lines_dropped.with_label_values(&[id.as_str()]),
            kubewarden: kubewarden.map(|kubewarden| kubewarden.policy(id)),
            errors: series.errors.clone(),
            failures: Mutex::default(),
            policy: id.clone(),
            is_forgotten: AtomicBool::new(false),
        })
    }

    /// Removes the series of a policy that is gone, so that they do not pile up.
    pub fn forget(&self, policy: &PolicyMetrics) {
        policy.is_forgotten.store(true, Ordering::Relaxed);
        self.series(&policy.policy).forget(&policy.policy);
        if let Some(kubewarden) = &policy.kubewarden {
            kubewarden.forget();
        }
    }

    fn series(&self, id: &PolicyId) -> &Series {
        if id.is_check() { &self.unshown } else { &self.series }
    }
}

impl Series {
    fn new() -> prometheus::Result<Self> {
        let histogram = |name: &str, help: &str| {
            HistogramVec::new(HistogramOpts::new(name, help).buckets(SECONDS.to_vec()), &["policy"])
        };
        Ok(Self {
            evaluations: IntCounterVec::new(
                Opts::new(
                    "portcullis_policy_evaluations_total",
                    "Answers by policy and verdict (allowed, denied, mutated, error)",
                ),
                &["policy", "verdict"],
            )?,
            errors: IntCounterVec::new(
                Opts::new(
                    "portcullis_policy_evaluation_errors_total",
                    "Requests without a verdict, by policy and reason",
                ),
                &["policy", "reason"],
            )?,
            seconds: histogram("portcullis_policy_evaluation_seconds", "Time of an evaluation, without waiting")?,
            wait_seconds: histogram(
                "portcullis_policy_wait_seconds",
                "Time from a request's arrival to its evaluation",
            )?,
            log_lines_dropped: IntCounterVec::new(
                Opts::new("portcullis_policy_log_lines_dropped_total", "Log lines of a policy beyond its share"),
                &["policy"],
            )?,
            passed_over: IntCounterVec::new(
                Opts::new(
                    "portcullis_policy_passed_over_total",
                    "Requests whose match group passed over the policy, which was never enforced and is not loaded here",
                ),
                &["policy"],
            )?,
        })
    }

    fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        for collector in [&self.evaluations, &self.errors, &self.log_lines_dropped, &self.passed_over] {
            registry.register(Box::new(collector.clone()))?;
        }
        for collector in [&self.seconds, &self.wait_seconds] {
            registry.register(Box::new(collector.clone()))?;
        }
        Ok(())
    }

    /// Removes the series of a policy.
    fn forget(&self, id: &PolicyId) {
        for verdict in ["allowed", "denied", "mutated", "error"] {
            // An error means that there is no such series, which is fine.
            let _ = self.evaluations.remove_label_values(&[id.as_str(), verdict]);
        }
        for reason in Reason::ALL {
            let _ = self.errors.remove_label_values(&[id.as_str(), reason.as_str()]);
        }
        let _ = self.seconds.remove_label_values(&[id.as_str()]);
        let _ = self.wait_seconds.remove_label_values(&[id.as_str()]);
        let _ = self.log_lines_dropped.remove_label_values(&[id.as_str()]);
        let _ = self.passed_over.remove_label_values(&[id.as_str()]);
    }
}

#[cfg(test)]
mod tests {
    use prometheus::core::Collector as _;

    use super::*;

    #[test]
    fn a_forgotten_policy_leaves_no_series() {
        let metrics = Metrics::new().expect("registers");
        let id: PolicyId = "cluster/a".parse().expect("an id");
        let policy = metrics.policy(&id);
        policy.allowed.inc();
        policy.error(Reason::Overloaded);
        metrics.forget(&policy);
        // This evaluation was under way when the policy went.
        policy.error(Reason::EvaluationTimedOut);
        let text = prometheus::TextEncoder::new().encode_to_string(&metrics.registry.gather()).expect("encodes");
        assert!(!text.contains("cluster/a"), "{text}");
    }

    #[test]
    fn a_policy_that_is_only_tried_is_not_shown_and_leaves_nothing() {
        let metrics = Metrics::new().expect("registers").with_kubewarden().expect("registers");
        for id in ["check/7", "check/team-a/8"] {
            let policy = metrics.policy(&id.parse().expect("an id"));
            policy.allowed.inc();
            policy.seconds.observe(0.1);
            policy.error(Reason::Overloaded);
            assert!(policy.kubewarden.is_none());
            let text = prometheus::TextEncoder::new().encode_to_string(&metrics.registry.gather()).expect("encodes");
            assert!(!text.contains("check/"), "{text}");
            metrics.forget(&policy);
        }
        let left: usize = metrics.unshown.evaluations.collect().iter().map(|family| family.get_metric().len()).sum();
        assert_eq!(left, 0);
    }
}
