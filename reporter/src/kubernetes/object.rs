//! The parts of objects that the reporter needs, read leniently: a part that cannot be read counts as absent, and the others are read. Pure.

use jiff::Timestamp;
use kube::api::ApiResource;
use kube::{Api, Client};
use portcullis_api::kubernetes::{BoundedObject, ClusterPolicy, Policy, PolicyHead, ReplicaReport};
use portcullis_api::{Condition, ConditionType, Kind, PolicyKey, PolicyStatus, ReplicaReportSpec};
use portcullis_contract::PolicyId;
use serde::Deserialize as _;
use serde_json::Value;

use super::fields::Fingerprint;
use crate::audit::audit_requested;

/// Name, uid and version of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Meta {
    pub(crate) name: String,
    pub(crate) namespace: Option<String>,
    pub(crate) uid: String,
    pub(crate) version: String,
    pub(crate) generation: i64,
    /// Whether it is being deleted.
    pub(crate) deleting: bool,
}

impl Meta {
    pub(crate) fn of(object: &Value) -> Option<Self> {
        let meta = &object["metadata"];
        let text = |name: &str| Some(meta[name].as_str()?.to_owned());
        Some(Self {
            name: text("name")?,
            namespace: text("namespace"),
            uid: text("uid")?,
            version: text("resourceVersion")?,
            generation: meta["generation"].as_i64().unwrap_or(0),
            deleting: meta["deletionTimestamp"].is_string(),
        })
    }

    /// Whether `other` is an older version of the same object, as a stale cache gives.
    pub(crate) fn is_newer_than(&self, other: &Self) -> bool {
        let number = |meta: &Self| meta.version.parse::<u128>().ok();
        self.uid == other.uid
            && (other.generation < self.generation
                || matches!((number(self), number(other)), (Some(this), Some(other)) if other < this))
    }
}

/// A policy. Nothing limits how many there are, so little is kept of each: of its status, what it is compared by, and what the controller
/// says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PolicyObject {
    pub(crate) id: PolicyId,
    pub(crate) meta: Meta,
    pub(crate) key: PolicyKey,
    /// The installation that serves it.
    pub(crate) policy_server: String,
    pub(crate) suspend: bool,
    /// The generation whose content it serves, if that is not its own.
    pub(crate) rollback_to: Option<i64>,
    /// The value of the annotation that asks for an audit at once; empty where it is absent.
    pub(crate) audit_requested: String,
    /// Our fields of the status as the API server has it.
    pub(crate) found: Fingerprint,
    /// The condition `WebhookConfigured`, in which the controller tells about the webhook; none if it is absent or cannot be decoded.
    pub(crate) webhook: Option<Condition>,
}

impl PolicyObject {
    pub(crate) fn of(kind: Kind, object: &Value) -> Option<Self> {
        let meta = Meta::of(object)?;
        let id = match kind {
            Kind::ClusterPolicy => PolicyId::cluster(&meta.name),
            Kind::Policy => PolicyId::namespaced(meta.namespace.as_deref()?, &meta.name),
        };
        Some(Self {
            id: id.ok()?,
            key: PolicyKey::of(&meta.uid),
            meta,
            policy_server: object["spec"]["policyServer"].as_str().unwrap_or("default").to_owned(),
            suspend: object["spec"]["suspend"].as_bool().unwrap_or(false),
            rollback_to: object["spec"]["rollbackTo"].as_i64(),
            audit_requested: audit_requested(&object["metadata"]),
            found: Fingerprint::of(&object["status"]),
            webhook: webhook(&object["status"]),
        })
    }
}

/// What the controller says in a status.
fn webhook(status: &Value) -> Option<Condition> {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut told = conditions.filter(|condition| condition["type"] == ConditionType::WebhookConfigured.as_str());
    told.find_map(|condition| Condition::deserialize(condition).ok())
}

/// The status of a policy as decoded; none if it is absent or cannot be decoded.
pub(crate) fn status(policy: &Value) -> Option<PolicyStatus> {
    let status = policy["status"].is_object().then(|| PolicyStatus::deserialize(&policy["status"]).ok());
    status.flatten()
}

/// The kind of a policy, by its id.
pub(crate) fn kind(id: &PolicyId) -> &'static str {
    if id.namespace().is_some() { "Policy" } else { "ClusterPolicy" }
}

/// The collection of a policy.
pub(crate) fn policies(client: Client, id: &PolicyId) -> Api<PolicyHead> {
    match id.namespace() {
        Some(namespace) => Api::namespaced_with(client, namespace, &ApiResource::erase::<Policy>(&())),
        None => Api::all_with(client, &ApiResource::erase::<ClusterPolicy>(&())),
    }
}

/// The reports of a namespace.
pub(crate) fn reports(client: Client, namespace: &str) -> Api<BoundedObject> {
    Api::namespaced_with(client, namespace, &ApiResource::erase::<ReplicaReport>(&()))
}

/// A pod's report.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReportObject {
    pub(crate) meta: Meta,
    pub(crate) spec: ReplicaReportSpec,
}

impl ReportObject {
    pub(crate) fn of(object: &Value) -> Option<Self> {
        let meta = Meta::of(object)?;
        match serde_json::from_value(object["spec"].clone()) {
            Ok(spec) => Some(Self { meta, spec }),
            // The report cannot be read, so the replica counts as Unknown.
            Err(error) => {
                tracing::debug!(report = meta.name, %error, "failed to read a report");
                let pod_uid = object["spec"]["podUID"].as_str().unwrap_or_default();
                let spec =
                    ReplicaReportSpec { pod_uid: format!("unreadable {pod_uid}"), ..ReplicaReportSpec::default() };
                Some(Self { meta, spec })
            }
        }
    }

    pub(crate) fn heartbeat(&self) -> Timestamp {
        self.spec.heartbeat
    }
}

/// A pod that the Service knows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Endpoint {
    pub(crate) pod: String,
    pub(crate) pod_uid: String,
    /// Whether it serves and is not terminating, so that API servers call it.
    pub(crate) ready: bool,
}

/// The pods of an EndpointSlice.
pub(crate) fn endpoints(slice: &Value) -> Vec<Endpoint> {
    let endpoint = |endpoint: &Value| {
        let target = &endpoint["targetRef"];
        if target["kind"].as_str() != Some("Pod") {
            return None;
        }
        let conditions = &endpoint["conditions"];
        // By the API, an absent condition counts as ready.
        let ready = conditions["ready"].as_bool().unwrap_or(true);
        let serving = conditions["serving"].as_bool().unwrap_or(ready);
        let terminating = conditions["terminating"].as_bool().unwrap_or(false);
        Some(Endpoint {
            pod: target["name"].as_str()?.to_owned(),
            pod_uid: target["uid"].as_str()?.to_owned(),
            ready: serving && !terminating,
        })
    };
    slice["endpoints"].as_array().into_iter().flatten().filter_map(endpoint).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn meta(generation: i64, version: &str) -> Meta {
        Meta { uid: "u".into(), generation, version: version.into(), ..Meta::default() }
    }

    #[test]
    fn a_stale_version_is_told_from_a_newer_one() {
        assert!(meta(2, "9").is_newer_than(&meta(1, "10")), "by generation");
        assert!(meta(1, "10").is_newer_than(&meta(1, "9")), "by number");
        assert!(!meta(1, "9").is_newer_than(&meta(1, "9")));
        assert!(!meta(1, "x").is_newer_than(&meta(1, "y")), "a version may be any text");
        assert!(!meta(9, "9").is_newer_than(&Meta { uid: "another".into(), ..meta(1, "1") }));
    }

    #[test]
    fn a_policy_is_read_though_its_spec_and_status_are_odd() {
        let object = json!({
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "5", "generation": 2},
            "spec": {"suspend": "perhaps", "novelty": 1},
            "status": {"observedGeneration": "two"},
        });
        let policy = PolicyObject::of(Kind::Policy, &object).expect("is read");
        assert_eq!((policy.id.as_str(), policy.policy_server.as_str()), ("namespaced/n/a", "default"));
        assert_eq!((policy.suspend, status(&object), policy.meta.generation), (false, None, 2));
    }

    #[test]
    fn what_the_controller_says_is_read_though_the_rest_of_the_status_is_odd() {
        let condition = |r#type: &str, generation: Value| {
            json!({"type": r#type, "status": "False", "reason": "R", "message": "", "observedGeneration": generation,
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let conditions = json!([
            condition("Ready", json!(7)),
            condition("WebhookConfigured", json!("one")),
            condition("WebhookConfigured", json!(2)),
            condition("Novelty", json!(3)),
        ]);
        let object = json!({
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "5"},
            "status": {"observedGeneration": "two", "conditions": conditions},
        });
        let policy = PolicyObject::of(Kind::ClusterPolicy, &object).expect("is read");
        assert_eq!(policy.webhook.map(|webhook| webhook.observed_generation), Some(2));
        assert_eq!(webhook(&json!("odd")), None);
    }

    #[test]
    fn an_endpoint_counts_when_it_serves_and_does_not_terminate() {
        let endpoint = |conditions: Value| json!({"conditions": conditions, "targetRef": {"kind": "Pod", "name": "p", "uid": "u"}});
        let slice = json!({"endpoints": [
            endpoint(json!({"ready": true, "serving": true, "terminating": false})),
            endpoint(json!({"ready": false, "serving": true, "terminating": true})),
            endpoint(json!({"ready": false})),
            endpoint(json!({})),
            {"targetRef": {"kind": "Node", "name": "n", "uid": "u"}},
        ]});
        let ready: Vec<bool> = endpoints(&slice).iter().map(|endpoint| endpoint.ready).collect();
        assert_eq!(ready, [true, false, false, true]);
    }

    #[test]
    fn an_unreadable_report_says_nothing() {
        let object = json!({"metadata": {"name": "p", "uid": "r", "resourceVersion": "1"}, "spec": {"podUID": 7}});
        assert_eq!(ReportObject::of(&object).map(|report| report.spec.current.len()), Some(0));
    }
}
