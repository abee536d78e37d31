//! Kubewarden's metrics, for dashboards and alerts that exist already: its names, labels and values (docs/metrics.md).
//!
//! Kinds and namespaces come from requests, and codes from guests. So the number of series has a limit, for a policy and in all; above it
//! such a value becomes `other`.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_contract::{Mode, PolicyId, Reason};
use portcullis_process::registered;
use portcullis_util::lock;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};
use serde_json::value::RawValue;

use crate::review::Review;

/// The most label sets of one policy that have values of requests and guests.
const SETS_OF_POLICY: usize = 100;
/// The most such label sets of all policies. Each is a counter and a histogram: some 20 lines of `/metrics`.
const SETS: usize = 1000;
/// Replaces a value above a limit, and one that Kubernetes does not have.
const OTHER: &str = "other";
/// The longest kind or namespace, in bytes.
const LONGEST: usize = 63;
/// Buckets of durations, in milliseconds: OpenTelemetry's default for histograms, which upstream uses.
const MILLISECONDS: &[f64] =
    &[0.0, 5.0, 10.0, 25.0, 50.0, 75.0, 100.0, 250.0, 500.0, 750.0, 1000.0, 2500.0, 5000.0, 7500.0, 10_000.0];
/// Labels in the order of [`Labels`]. Only the counter has the last one. An empty label is the same as none to Prometheus.
const LABELS: [&str; 10] = [
    "policy_name",
    "policy_mode",
    "resource_kind",
    "resource_namespace",
    "resource_request_operation",
    "accepted",
    "mutated",
    "request_origin",
    "error_code",
    "initialization_error",
];

/// The values of all labels; those that do not apply are empty.
type Labels = [String; 10];

/// Kubewarden's metrics.
#[derive(Clone)]
pub(crate) struct Kubewarden {
    evaluations: IntCounterVec,
    latency: HistogramVec,
    /// Label sets in use that have values of requests and guests.
    sets: Arc<AtomicUsize>,
}

/// The series of one policy.
pub(crate) struct PolicySeries {
    of: Kubewarden,
    id: PolicyId,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// Every label set that was counted.
    labels: HashSet<Labels>,
    /// How many of them have values of requests and guests.
    sets: usize,
    is_forgotten: bool,
}

/// A request, as these metrics describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequestLabels {
    /// An admission review.
    Review {
        /// The kind that the client asked for; empty where the review does not name it.
        kind: String,
        /// The namespace; empty for objects without one.
        namespace: String,
        /// CREATE, UPDATE, DELETE, CONNECT, or `other`.
        operation: &'static str,
        /// `validate` or `audit`.
        origin: &'static str,
    },
    /// A raw request.
    Raw,
}

/// A guest's verdict before mode and mutation rules are applied, or values that replace it when the evaluation failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct VerdictLabels {
    /// Whether the guest accepts.
    pub(crate) accepted: bool,
    /// Whether it changed the object.
    pub(crate) mutated: bool,
    /// The HTTP code that the guest chose, or that of the failure.
    pub(crate) code: Option<u16>,
}

impl RequestLabels {
    /// The labels of a review. `audit` says whether it came from the audit.
    pub(crate) fn review(review: &Review<'_>, audit: bool) -> Self {
        let kind = review.kinds[2].and_then(|parts| parts[2]);
        Self::Review {
            kind: value(kind),
            namespace: value(review.wire.namespace),
            operation: operation(review.wire.operation),
            origin: if audit { "audit" } else { "validate" },
        }
    }
}

/// A kind or namespace from a request; `other` if it is not one that Kubernetes could have.
fn value(json: Option<&RawValue>) -> String {
    let Some(json) = json else { return String::new() };
    let text: String = serde_json::from_str(json.get()).unwrap_or_default();
    let is_good = text.len() <= LONGEST && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if is_good { text } else { OTHER.to_owned() }
}

fn operation(json: Option<&RawValue>) -> &'static str {
    match json.map(RawValue::get) {
        Some(r#""CREATE""#) => "CREATE",
        Some(r#""UPDATE""#) => "UPDATE",
        Some(r#""DELETE""#) => "DELETE",
        Some(r#""CONNECT""#) => "CONNECT",
        _ => OTHER,
    }
}

/// The name that Kubewarden gives a policy: `clusterwide-NAME` or `namespaced-NAMESPACE-NAME`, with `group-` for policy groups. A policy of
/// a `policies.yml` keeps its name.
fn name(id: &PolicyId, is_group: bool) -> String {
    let group = if is_group { "group-" } else { "" };
    match id.namespace() {
        Some(namespace) => format!("namespaced-{group}{namespace}-{}", id.name()),
        None if id.is_bare() => id.as_str().to_owned(),
        None => format!("clusterwide-{group}{}", id.name()),
    }
}

impl Kubewarden {
    /// Makes and registers the metrics.
    ///
    /// # Errors
    /// Never, with the names given here.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let evaluations = IntCounterVec::new(
            Opts::new("kubewarden_policy_evaluations_total", "Evaluations, with the names and labels of Kubewarden"),
            &LABELS,
        )?;
        let latency = HistogramVec::new(
            HistogramOpts::new(
                "kubewarden_policy_evaluation_latency_milliseconds",
                "Time of an evaluation in whole milliseconds, with the names and labels of Kubewarden",
            )
            .buckets(MILLISECONDS.to_vec()),
            &LABELS[..9],
        )?;
        let (evaluations, latency) = (registered(registry, evaluations)?, registered(registry, latency)?);
        Ok(Self { evaluations, latency, sets: Arc::default() })
    }

    /// The series of one policy.
    pub(crate) fn policy(&self, id: &PolicyId) -> PolicySeries {
        PolicySeries { of: self.clone(), id: id.clone(), held: Mutex::default() }
    }
}

impl PolicySeries {
    /// Counts an evaluation that took this long, including the time it waited.
    pub(crate) fn evaluated(
        &self,
        is_group: bool,
        mode: Mode,
        asked: &RequestLabels,
        said: VerdictLabels,
        took: Duration,
    ) {
        let mut labels = Labels::default();
        labels[0] = name(&self.id, is_group);
        labels[1] = mode.as_str().to_owned();
        if let RequestLabels::Review { kind, namespace, operation, origin } = asked {
            labels[2].clone_from(kind);
            labels[3].clone_from(namespace);
            labels[4] = (*operation).to_owned();
            labels[7] = (*origin).to_owned();
        }
        labels[5] = said.accepted.to_string();
        labels[6] = said.mutated.to_string();
        labels[8] = said.code.map(|code| code.to_string()).unwrap_or_default();
        let milliseconds = u32::try_from(took.as_millis()).unwrap_or(u32::MAX);
        self.count(labels, |of, labels| {
            of.latency.with_label_values(&labels[..9]).observe(milliseconds.into());
        });
    }

    /// Counts a request to a policy with nothing that serves.
    pub(crate) fn not_initialized(&self, is_group: bool, reason: Reason) {
        let mut labels = Labels::default();
        labels[0] = name(&self.id, is_group);
        labels[9] = reason.as_str().to_owned();
        self.count(labels, |_, _| {});
    }

    fn count(&self, labels: Labels, more: impl FnOnce(&Kubewarden, &Labels)) {
        let mut held = lock(&self.held);
        // An evaluation that outlives its policy would bring back series that are never removed.
        if held.is_forgotten {
            return;
        }
        let labels = held.bounded(labels, &self.of.sets);
        self.of.evaluations.with_label_values(&labels).inc();
        more(&self.of, &labels);
        held.labels.insert(labels);
    }

    /// Removes all series of the policy.
    pub(crate) fn forget(&self) {
        let mut held = lock(&self.held);
        held.is_forgotten = true;
        for labels in std::mem::take(&mut held.labels) {
            // An error means that there is no such series, which is fine.
            let _ = self.of.evaluations.remove_label_values(&labels);
            let _ = self.of.latency.remove_label_values(&labels[..9]);
        }
        self.of.sets.fetch_sub(std::mem::take(&mut held.sets), Ordering::Relaxed);
    }
}

impl Held {
    /// The labels, with `other` for values from requests and guests if there are too many label sets.
    fn bounded(&mut self, mut labels: Labels, all: &AtomicUsize) -> Labels {
        const FOREIGN: [usize; 3] = [2, 3, 8];
        let is_own = FOREIGN.iter().all(|place| matches!(labels[*place].as_str(), "" | OTHER));
        if is_own || self.labels.contains(&labels) {
            return labels;
        }
        let more = |sets: usize| (sets < SETS).then_some(sets + 1);
        if self.sets < SETS_OF_POLICY && all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok() {
            self.sets += 1;
            return labels;
        }
        for place in FOREIGN {
            if !labels[place].is_empty() {
                OTHER.clone_into(&mut labels[place]);
            }
        }
        labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCEPTED: VerdictLabels = VerdictLabels { accepted: true, mutated: false, code: None };

    fn metrics() -> (Registry, Kubewarden) {
        let registry = Registry::new();
        let metrics = Kubewarden::new(&registry).expect("registers");
        (registry, metrics)
    }

    fn text(registry: &Registry) -> String {
        prometheus::TextEncoder::new().encode_to_string(&registry.gather()).expect("encodes")
    }

    fn id(text: &str) -> PolicyId {
        text.parse().expect("an id")
    }

    fn pod(namespace: &str) -> RequestLabels {
        let (kind, namespace) = ("Pod".to_owned(), namespace.to_owned());
        RequestLabels::Review { kind, namespace, operation: "CREATE", origin: "validate" }
    }

    #[test]
    fn policies_have_the_names_that_kubewarden_gives_them() {
        for (text, of_policy, of_group) in [
            ("cluster/a", "clusterwide-a", "clusterwide-group-a"),
            ("namespaced/team-a/b", "namespaced-team-a-b", "namespaced-group-team-a-b"),
            ("clusterwide-a", "clusterwide-a", "clusterwide-a"),
        ] {
            assert_eq!([name(&id(text), false), name(&id(text), true)], [of_policy, of_group]);
        }
    }

    #[test]
    fn series_look_like_those_of_kubewarden() {
        let (registry, metrics) = metrics();
        let policy = metrics.policy(&id("cluster/a"));
        let took = Duration::from_micros(7900);
        let denied = VerdictLabels { accepted: false, mutated: false, code: Some(403) };
        policy.evaluated(false, Mode::Protect, &pod("shop"), denied, took);
        policy.evaluated(false, Mode::Monitor, &RequestLabels::Raw, ACCEPTED, took);
        policy.not_initialized(true, Reason::SettingsInvalid);
        let text = text(&registry);
        for line in [
            "kubewarden_policy_evaluations_total{accepted=\"false\",error_code=\"403\",initialization_error=\"\",\
             mutated=\"false\",policy_mode=\"protect\",policy_name=\"clusterwide-a\",request_origin=\"validate\",\
             resource_kind=\"Pod\",resource_namespace=\"shop\",resource_request_operation=\"CREATE\"} 1",
            "kubewarden_policy_evaluations_total{accepted=\"true\",error_code=\"\",initialization_error=\"\",\
             mutated=\"false\",policy_mode=\"monitor\",policy_name=\"clusterwide-a\",request_origin=\"\",\
             resource_kind=\"\",resource_namespace=\"\",resource_request_operation=\"\"} 1",
            "kubewarden_policy_evaluations_total{accepted=\"\",error_code=\"\",initialization_error=\"SettingsInvalid\",\
             mutated=\"\",policy_mode=\"\",policy_name=\"clusterwide-group-a\",request_origin=\"\",\
             resource_kind=\"\",resource_namespace=\"\",resource_request_operation=\"\"} 1",
            "kubewarden_policy_evaluation_latency_milliseconds_sum{accepted=\"false\",error_code=\"403\",\
             mutated=\"false\",policy_mode=\"protect\",policy_name=\"clusterwide-a\",request_origin=\"validate\",\
             resource_kind=\"Pod\",resource_namespace=\"shop\",resource_request_operation=\"CREATE\"} 7",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert_eq!(text.matches("latency_milliseconds_sum{").count(), 2, "{text}");
    }

    #[test]
    fn values_of_requests_are_those_of_kubernetes_or_other() {
        let parsed = |json: &str| {
            let raw: Box<RawValue> = serde_json::from_str(json).expect("it is JSON");
            value(Some(&raw))
        };
        for (json, want) in [
            (r#""Pod""#, "Pod"),
            (r#""team-a""#, "team-a"),
            (r#""te\u0061m""#, "team"),
            (r#""""#, ""),
            (r#""a b""#, OTHER),
            (r#""a\"} 1\nx""#, OTHER),
        ] {
            assert_eq!(parsed(json), want);
        }
        assert_eq!(parsed(&format!("\"{}\"", "a".repeat(64))), OTHER);
        assert_eq!(value(None), "");
    }

    #[test]
    fn a_policy_asked_about_many_namespaces_has_a_limit_of_series() {
        let (registry, metrics) = metrics();
        let policy = metrics.policy(&id("cluster/a"));
        for n in 0..500 {
            let said = VerdictLabels { code: Some(n), ..ACCEPTED };
            policy.evaluated(false, Mode::Protect, &pod(&format!("team-{n}")), said, Duration::ZERO);
        }
        let shown = text(&registry);
        let of_counter: Vec<_> = shown.lines().filter(|line| line.contains("evaluations_total{")).collect();
        assert_eq!(of_counter.len(), SETS_OF_POLICY + 1);
        let other = of_counter.iter().find(|line| line.contains("resource_namespace=\"other\"")).expect("there is one");
        assert!(other.contains("resource_kind=\"other\"") && other.contains("error_code=\"other\""), "{other}");
        assert!(other.ends_with(" 400"), "{other}");
        // A label set that exists already is still counted.
        policy.evaluated(
            false,
            Mode::Protect,
            &pod("team-7"),
            VerdictLabels { code: Some(7), ..ACCEPTED },
            Duration::ZERO,
        );
        assert!(text(&registry).lines().any(|line| line.contains("\"team-7\"") && line.ends_with("\"CREATE\"} 2")));
    }

    #[test]
    fn all_policies_together_have_a_limit_and_one_that_is_gone_leaves_its_room_to_others() {
        let (registry, metrics) = metrics();
        let policies: Vec<_> = (0..20).map(|n| metrics.policy(&id(&format!("cluster/a{n}")))).collect();
        for policy in &policies {
            for n in 0..60 {
                policy.evaluated(false, Mode::Protect, &pod(&format!("team-{n}")), ACCEPTED, Duration::ZERO);
            }
        }
        let sets = || text(&registry).lines().filter(|line| line.contains("evaluations_total{")).count();
        // One more set, of `other`, for the policy that reached the limit, and one for each policy after it.
        assert_eq!(sets(), SETS + 4);
        policies[0].forget();
        policies[0].evaluated(false, Mode::Protect, &pod("late"), ACCEPTED, Duration::ZERO);
        assert_eq!(sets(), SETS + 4 - 60);
        policies[19].evaluated(false, Mode::Protect, &pod("fresh"), ACCEPTED, Duration::ZERO);
        assert!(text(&registry).contains("\"fresh\""));
        policies.iter().for_each(PolicySeries::forget);
        assert!(!text(&registry).contains("kubewarden"));
        assert_eq!(metrics.sets.load(Ordering::Relaxed), 0);
    }
}
