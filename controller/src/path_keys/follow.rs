//! Finds out whether replicas and webhooks follow a change of keys: replicas by their reports, webhooks by their paths.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, ListParams, Resource as _};
use portcullis_api::kubernetes::ReplicaReport;
use portcullis_contract::{PathKey, PathKeys};
use serde::Deserialize;
use serde_json::Value;

use super::replaced::InUse;
use crate::certificates::own_webhooks::{PAGE, each_page, list_own};

/// The label of an EndpointSlice with the name of its Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// The paths of the webhooks of a policy server, with the names of their configurations.
pub(super) struct WebhookPaths(Vec<(String, String)>);

/// The keys that replicas accept, as their reports say.
pub(super) struct Replicas {
    /// Names and uids of the pods that API servers may call.
    expected: BTreeSet<(String, String)>,
    /// Names and uids of pods, with the ids of the keys that they accept.
    reports: Vec<(String, String, BTreeSet<String>)>,
    /// Whether an evaluator reports no keys, as evaluators of earlier releases do, which accept none.
    pub(super) have_old: bool,
}

/// What is read of a ReplicaReport, which can take a megabyte. A report without these fields does not break a list.
#[derive(Debug, Clone, Deserialize)]
struct Report {
    metadata: ReportMetadata,
    #[serde(default)]
    spec: ReportSpec,
}

#[derive(Debug, Clone, Deserialize)]
struct ReportMetadata {
    name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct ReportSpec {
    #[serde(rename = "podUID", default)]
    pod_uid: Value,
    #[serde(rename = "pathKeys", default)]
    path_keys: Value,
    #[serde(default)]
    versions: Value,
}

impl WebhookPaths {
    pub(super) async fn list(client: &Client, policy_server: &str) -> Result<Self, kube::Error> {
        let webhooks = list_own(client, policy_server).await?.into_iter();
        let path = |one: WebhookClientConfig| one.service.and_then(|service| service.path).unwrap_or_default();
        Ok(Self(webhooks.map(|(name, one)| (name, path(one))).collect()))
    }

    /// The names of the configurations with a path that is not derived from this key.
    pub(super) fn lagging(&self, key: PathKey) -> Vec<&str> {
        let lagging = self.0.iter().filter(|(_, path)| !has_made(key, path));
        let mut names: Vec<_> = lagging.map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// By which keys webhooks are called, as far as that can be told from the keys that are stored.
    pub(super) fn in_use(&self, stored: &PathKeys) -> InUse {
        let has_path = |key: &PathKey| self.paths().any(|path| has_made(*key, path));
        // No webhook gets paths of a key while it is the next one, so these keys are from before it became the current one.
        let is_late =
            |next: &PathKey| has_path(next) && ![Some(stored.current), stored.previous].contains(&Some(*next));
        if let Some(current) = stored.next.filter(is_late) {
            let previous = Some(stored.current).filter(has_path);
            return InUse::Keys(PathKeys { current, next: None, previous });
        }
        let is_stored = self.0.is_empty() || stored.all().any(|key| has_path(&key));
        if is_stored { InUse::Stored } else { InUse::Unknown }
    }

    /// Whether at least one path has no code.
    pub(super) fn have_plain(&self) -> bool {
        self.paths().any(|path| has_made(PathKey::Plain, path))
    }

    fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(_, path)| path.as_str())
    }
}

impl Replicas {
    pub(super) async fn list(client: &Client, namespace: &str, service: &str) -> Result<Self, kube::Error> {
        let params = ListParams::default().labels(&format!("{SERVICE_LABEL}={service}"));
        let slices = Api::<EndpointSlice>::namespaced(client.clone(), namespace).list(&params).await?;
        let (path, mut reports) = (ReplicaReport::url_path(&(), Some(namespace)), Vec::new());
        each_page(client, &path, &ListParams::default().limit(PAGE), |page| reports.extend(page)).await?;
        Ok(Self::of(&slices.items, &reports))
    }

    fn of(slices: &[EndpointSlice], reports: &[Report]) -> Self {
        let expected = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten()).filter_map(|endpoint| {
            let conditions = endpoint.conditions.clone().unwrap_or_default();
            // Absent means ready, and a terminating pod is no longer called.
            let is_asked =
                conditions.serving.or(conditions.ready).unwrap_or(true) && conditions.terminating != Some(true);
            let pod =
                endpoint.target_ref.as_ref().filter(|target| is_asked && target.kind.as_deref() == Some("Pod"))?;
            Some((pod.name.clone()?, pod.uid.clone()?))
        });
        let keys = |report: &Report| {
            let keys = report.spec.path_keys.as_array().into_iter().flatten();
            keys.filter_map(|key| key.as_str().map(str::to_owned)).collect::<BTreeSet<_>>()
        };
        // An evaluator that does not answer has no version in the report, so it is not known whether it is old.
        let is_old = |report: &Report| {
            let version = report.spec.versions["evaluator"].as_str();
            version.is_some_and(|version| !version.is_empty()) && keys(report).is_empty()
        };
        let have_old = reports.iter().any(is_old);
        let reports = reports.iter().filter_map(|report| {
            let uid = report.spec.pod_uid.as_str()?.to_owned();
            Some((report.metadata.name.clone(), uid, keys(report)))
        });
        Self { expected: expected.collect(), reports: reports.collect(), have_old }
    }

    /// The names of expected replicas that do not report that they accept this key.
    pub(super) fn lagging(&self, key: PathKey) -> Vec<&str> {
        let id = key.id();
        let accepts = |pod: &(String, String)| {
            self.reports.iter().any(|(name, uid, keys)| (name, uid) == (&pod.0, &pod.1) && keys.contains(&id))
        };
        self.expected.iter().filter(|pod| !accepts(pod)).map(|(name, _)| name.as_str()).collect()
    }

    /// Whether at least half of the expected replicas report that they accept this key.
    pub(super) fn mostly_accept(&self, key: PathKey) -> bool {
        self.lagging(key).len() * 2 <= self.expected.len()
    }
}

/// Whether this key has made the path of a webhook: that of a match group, or the one for checks of policies.
fn has_made(key: PathKey, path: &str) -> bool {
    key.opened(path).is_some() || key.opens_check(path)
}

#[cfg(test)]
mod tests {
    use portcullis_contract::{ADMIT_PATH, MARKER_PATH};
    use serde_json::json;

    use super::*;

    const A: PathKey = PathKey::Secret([1; 32]);
    const B: PathKey = PathKey::Secret([2; 32]);

    fn endpoint(pod: &str, conditions: Value) -> Value {
        json!({"addresses": [], "conditions": conditions, "targetRef": {"kind": "Pod", "name": pod, "uid": format!("uid-{pod}")}})
    }

    fn report(pod: &str, uid: &str, keys: Value) -> Report {
        let object = json!({"metadata": {"name": pod}, "spec": {"podUID": uid, "pathKeys": keys}});
        serde_json::from_value(object).expect("an object")
    }

    fn replicas(endpoints: &[Value], reports: &[Report]) -> Replicas {
        let slice = json!({"addressType": "IPv4", "endpoints": endpoints});
        Replicas::of(&[serde_json::from_value(slice).expect("a slice")], reports)
    }

    #[test]
    fn every_replica_that_is_asked_must_say_that_it_accepts_a_key() {
        let endpoints = [
            endpoint("a", json!({})),
            endpoint("b", json!({"ready": true, "serving": true, "terminating": false})),
            endpoint("starts", json!({"ready": false})),
            endpoint("ends", json!({"ready": false, "serving": true, "terminating": true})),
        ];
        let both = json!([A.id(), B.id()]);
        let lagging = |reports: &[Report]| {
            let replicas = replicas(&endpoints, reports);
            replicas.lagging(B).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let a = report("a", "uid-a", both.clone());
        assert_eq!(lagging(&[]), ["a", "b"]);
        assert_eq!(lagging(std::slice::from_ref(&a)), ["b"]);
        assert_eq!(lagging(&[a.clone(), report("b", "uid-b", json!([A.id()]))]), ["b"]);
        assert_eq!(lagging(&[a.clone(), report("b", "uid-b", json!(null))]), ["b"], "of an earlier release");
        assert_eq!(
            lagging(&[a.clone(), report("b", "uid-of-another", both.clone())]),
            ["b"],
            "an earlier pod of this name"
        );
        assert_eq!(lagging(&[a, report("b", "uid-b", both)]), Vec::<String>::new());
    }

    #[tokio::test]
    async fn reports_are_read_page_by_page_and_one_that_says_nothing_hides_no_other() {
        use axum::extract::Query;
        use std::collections::HashMap;

        let endpoints = ["a", "b", "c"].map(|pod| endpoint(pod, json!({})));
        let slice = json!({"addressType": "IPv4", "endpoints": endpoints});
        let slices = || async move { json!({"metadata": {}, "items": [slice]}).to_string() };
        let report = |pod: &str| {
            let spec = json!({"podUID": format!("uid-{pod}"), "pathKeys": [A.id()], "current": {"a": 1}});
            json!({"metadata": {"name": pod, "labels": {"a": "b"}}, "spec": spec})
        };
        let pages = [vec![report("a"), json!({"metadata": {"name": "b"}})], vec![report("c")]];
        let reports = |Query(query): Query<HashMap<String, String>>| async move {
            assert_eq!(query.get("limit").map(String::as_str), Some("20"));
            let (items, next) = match query.get("continue").map(String::as_str) {
                None => (&pages[0], "second"),
                Some(_) => (&pages[1], ""),
            };
            json!({"metadata": {"continue": next}, "items": items}).to_string()
        };
        let router = axum::Router::new()
            .route("/apis/discovery.k8s.io/v1/namespaces/gate/endpointslices", axum::routing::get(slices))
            .route(
                "/apis/policies.portcullis.dev/v1alpha1/namespaces/gate/replicareports",
                axum::routing::get(reports),
            );
        let replicas = Replicas::list(&Client::new(router, "default"), "gate", "guard").await.expect("a list");
        assert_eq!(replicas.lagging(A), ["b"]);
    }

    #[test]
    fn half_of_the_replicas_are_enough_where_the_key_of_webhooks_is_lost() {
        let endpoints = ["a", "b", "c"].map(|pod| endpoint(pod, json!({})));
        let reports = ["a", "b", "c"].map(|pod| report(pod, &format!("uid-{pod}"), json!([A.id()])));
        assert!(replicas(&[], &[]).mostly_accept(A), "nobody is called");
        assert!(!replicas(&endpoints, &reports[..1]).mostly_accept(A));
        assert!(replicas(&endpoints, &reports[..2]).mostly_accept(A));
        assert!(replicas(&endpoints[..2], &reports[..1]).mostly_accept(A));
        assert!(!replicas(&endpoints, &reports).mostly_accept(B));
    }

    #[test]
    fn a_replica_of_an_earlier_release_accepts_no_key() {
        let have_old = |keys: Value, evaluator: &str| {
            let mut report = report("a", "u", keys);
            report.spec.versions = json!({"evaluator": evaluator});
            replicas(&[], &[report]).have_old
        };
        assert!(have_old(json!(null), "0.1.0"));
        assert!(!have_old(json!(null), ""), "it does not answer yet");
        assert!(!have_old(json!(["none"]), "0.1.0"), "it waits for keys");
        assert!(!have_old(json!([A.id()]), "0.1.0"));
        assert!(!replicas(&[], &[]).have_old);
    }

    #[test]
    fn one_webhook_that_lags_behind_counts() {
        let group = "0123456789abcdef".parse().expect("a group");
        let [new, marker] = [ADMIT_PATH, MARKER_PATH].map(|root| A.path(root, &group));
        let (old, plain) = (B.path(ADMIT_PATH, &group), PathKey::Plain.path(ADMIT_PATH, &group));
        let of = |paths: &[&String]| {
            let named = paths.iter().enumerate().map(|(number, &path)| (format!("webhook-{number}"), path.clone()));
            WebhookPaths(named.collect())
        };
        assert!(of(&[]).lagging(A).is_empty() && !of(&[]).have_plain());
        assert!(of(&[&new, &marker]).lagging(A).is_empty());
        assert_eq!(of(&[&new, &old]).lagging(A), ["webhook-1"]);
        assert!(!of(&[&new, &old]).have_plain());
        assert_eq!(of(&[&plain, &new]).lagging(A), ["webhook-0"]);
        assert!(of(&[&new, &plain]).have_plain());
        assert_eq!(of(&[&new, &String::new()]).lagging(A), ["webhook-1"], "somebody's edit, which is repaired");
    }

    #[test]
    fn paths_tell_which_of_the_stored_keys_is_in_use() {
        let group = "0123456789abcdef".parse().expect("a group");
        let of = |keys: &[PathKey]| {
            let paths = keys.iter().map(|key| key.path(ADMIT_PATH, &group));
            WebhookPaths(paths.map(|path| ("webhook".to_owned(), path)).collect())
        };
        let keys = |current, next, previous| PathKeys { current, next, previous };
        assert_eq!(of(&[]).in_use(&PathKeys::only(A)), InUse::Stored);
        assert_eq!(of(&[A, B]).in_use(&keys(B, None, Some(A))), InUse::Stored, "they are being moved");
        assert_eq!(of(&[B]).in_use(&keys(A, Some(B), Some(B))), InUse::Stored, "they are being moved back");
        assert_eq!(of(&[A]).in_use(&keys(A, Some(B), None)), InUse::Stored);
        assert_eq!(of(&[B]).in_use(&keys(A, Some(B), None)), InUse::Keys(PathKeys::only(B)));
        assert_eq!(of(&[A, B]).in_use(&keys(A, Some(B), None)), InUse::Keys(keys(B, None, Some(A))));
        assert_eq!(of(&[A]).in_use(&PathKeys::only(B)), InUse::Unknown);
    }

    #[test]
    fn the_webhook_that_checks_policies_counts_too() {
        let group = "0123456789abcdef".parse().expect("a group");
        let admit = A.path(ADMIT_PATH, &group);
        let of = |check: PathKey| {
            let paths = [("group", admit.clone()), ("check", check.check_path())];
            WebhookPaths(paths.map(|(name, path)| (name.to_owned(), path)).to_vec())
        };
        assert!(of(A).lagging(A).is_empty() && !of(A).have_plain());
        assert_eq!(of(B).lagging(A), ["check"], "it still has the path of another key");
        assert_eq!(of(PathKey::Plain).lagging(A), ["check"]);
        assert!(of(PathKey::Plain).have_plain());
    }
}
