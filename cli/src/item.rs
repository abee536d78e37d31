//! A policy as it was read, from a cluster or a folder, and what its status says.
//!
//! It is read field by field and not into the types of this release: a cluster may be newer, and the tool must accept reasons,
//! conditions and fields that it does not know.

mod audit;

use jiff::Timestamp;
use portcullis_api::ObservedPolicy;
use portcullis_api::kubernetes::AUDIT_REQUESTED_ANNOTATION;
use portcullis_contract::{PolicyId, clean};
use serde_json::Value;

pub use audit::AuditView;

/// Longest text of the status that is shown, in bytes. A condition's message is the longest text in it.
const LONGEST: usize = 4096;

/// A policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Its id.
    pub id: PolicyId,
    /// The whole object.
    pub object: Value,
}

/// A condition of its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionView {
    /// Its type, such as `Ready`.
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, in one word.
    pub reason: String,
    /// The reason, in words.
    pub message: String,
    /// The generation that it is about; 0 if it does not say.
    pub generation: i64,
    /// When `status` changed last.
    pub since: Option<Timestamp>,
}

/// An entry of its history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryView {
    /// The generation.
    pub generation: i64,
    /// The digest of its module, if known.
    pub digest: Option<String>,
    /// Since when it has been in this state.
    pub time: Option<Timestamp>,
    /// Whether it has been Ready.
    pub served: bool,
    /// Why it was not Ready.
    pub reason: Option<String>,
}

impl Item {
    /// An object of the API server; `None` if it is not a policy.
    pub fn of_object(mut object: Value) -> Option<Self> {
        let metadata = &object["metadata"];
        let name = metadata["name"].as_str()?;
        let id = match object["kind"].as_str()? {
            "ClusterPolicy" => PolicyId::cluster(name).ok()?,
            "Policy" => PolicyId::namespaced(metadata["namespace"].as_str()?, name).ok()?,
            _ => return None,
        };
        if let Some(metadata) = object["metadata"].as_object_mut() {
            // `managedFields` is longer than everything else, and kubectl leaves it out as well.
            metadata.remove("managedFields");
        }
        Some(Self { id, object })
    }

    /// A policy of a folder.
    ///
    /// # Errors
    /// None that an object read from a file can cause.
    pub fn of_folder(id: PolicyId, policy: &ObservedPolicy) -> serde_json::Result<Self> {
        Ok(Self { id, object: serde_json::to_value(policy)? })
    }

    /// The text at a JSON pointer, made safe to show; `None` if no text is there.
    pub fn text(&self, pointer: &str) -> Option<String> {
        text(self.object.pointer(pointer)?)
    }

    /// The number at a JSON pointer.
    pub fn number(&self, pointer: &str) -> Option<i64> {
        self.object.pointer(pointer)?.as_i64()
    }

    /// The list at a JSON pointer; empty if no list is there.
    pub fn list(&self, pointer: &str) -> &[Value] {
        self.object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// `metadata.generation`; 0 where it is absent.
    pub fn generation(&self) -> i64 {
        self.number("/metadata/generation").unwrap_or(0)
    }

    /// Its uid; empty where it is absent.
    pub fn uid(&self) -> &str {
        self.object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or("")
    }

    /// Its kind.
    pub fn kind(&self) -> &'static str {
        if self.id.namespace().is_some() { "Policy" } else { "ClusterPolicy" }
    }

    /// When it was made.
    pub fn created(&self) -> Option<Timestamp> {
        time(self.object.pointer("/metadata/creationTimestamp")?)
    }

    /// The conditions, in their order.
    pub fn conditions(&self) -> Vec<ConditionView> {
        let view = |value: &Value| ConditionView {
            r#type: text(&value["type"]).unwrap_or_default(),
            status: text(&value["status"]).unwrap_or_default(),
            reason: text(&value["reason"]).unwrap_or_default(),
            message: text(&value["message"]).unwrap_or_default(),
            generation: value["observedGeneration"].as_i64().unwrap_or(0),
            since: time(&value["lastTransitionTime"]),
        };
        self.list("/status/conditions").iter().map(view).collect()
    }

    /// The condition of a type, if it is about the newest generation: one about an older generation no longer counts.
    pub fn condition(&self, r#type: &str) -> Option<ConditionView> {
        let generation = self.generation();
        self.conditions().into_iter().find(|condition| condition.r#type == r#type && condition.generation >= generation)
    }

    /// The STATUS column: the reason of `Ready`.
    pub fn word(&self) -> String {
        self.condition("Ready").map_or_else(|| "Unknown".to_owned(), |ready| ready.reason)
    }

    /// The history, newest first.
    pub fn history(&self) -> Vec<HistoryView> {
        let view = |value: &Value| {
            Some(HistoryView {
                generation: value["generation"].as_i64()?,
                digest: text(&value["digest"]),
                time: time(&value["time"]),
                served: value["served"].as_bool().unwrap_or(false),
                reason: text(&value["reason"]),
            })
        };
        let mut entries: Vec<HistoryView> = self.list("/status/history").iter().filter_map(view).collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.generation));
        entries
    }

    /// What the audit found; `None` if it has not scanned the policy.
    pub fn audit(&self) -> Option<AuditView> {
        AuditView::of_status(self.object.pointer("/status/audit")?)
    }

    /// Whether a scan has handled the last request for one.
    pub fn is_audit_handled(&self) -> bool {
        let annotations = self.object.pointer("/metadata/annotations");
        let requested = annotations.and_then(|all| text(&all[AUDIT_REQUESTED_ANNOTATION]));
        requested.is_some_and(|requested| self.audit().is_some_and(|audit| audit.handled_request == requested))
    }

    /// The generation whose content a rollback serves, while one is asked for.
    pub fn rollback_to(&self) -> Option<i64> {
        self.number("/spec/rollbackTo")
    }
}

/// An untrusted text, made safe to show.
pub fn text(value: &Value) -> Option<String> {
    value.as_str().map(|text| clean(text, LONGEST))
}

/// A time as Kubernetes writes it.
pub fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

/// These objects as a list of the API server, or the single object that was asked for by name.
pub fn objects(items: &[Item], single: bool) -> Value {
    match items {
        [one] if single => one.object.clone(),
        several => {
            let items: Vec<&Value> = several.iter().map(|item| &item.object).collect();
            serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items})
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use portcullis_api::API_VERSION;
    use serde_json::json;

    use super::*;

    /// A ClusterPolicy in its fourth generation, which failed; the first and the third served.
    pub(crate) fn failing() -> Item {
        let condition = |r#type: &str, status: &str, reason: &str, message: &str| {
            json!({"type": r#type, "status": status, "reason": reason, "message": message, "observedGeneration": 4,
                   "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let object = json!({
            "apiVersion": API_VERSION, "kind": "ClusterPolicy",
            "metadata": {"name": "labels", "uid": "9b2c41d2-a1f0-4e17-8000-0123456789ab", "generation": 4,
                         "creationTimestamp": "2025-12-31T00:00:00Z", "managedFields": [{"manager": "x"}]},
            "spec": {"module": "registry://r/labels:4", "mode": "warn", "rules": [{"operations": ["CREATE"]}]},
            "status": {
                "observedGeneration": 4, "summary": "0/2",
                "conditions": [
                    condition("Ready", "False", "ServingPrevious", "generation 3 answers"),
                    condition("Degraded", "True", "RegistryTimeout", "a: RegistryTimeout, next try at 2026-01-01T00:01:00Z"),
                    condition("Stalled", "False", "Retrying", ""),
                ],
                "lastServed": {"generation": 3, "digest": "sha256:33"},
                "replicaCounts": {"expected": 2, "current": 0, "previous": 2, "pending": 0, "failed": 0, "unknown": 0},
                "replicas": [{"pod": "a", "podUID": "u", "state": "Previous", "generation": 3, "reason": "RegistryTimeout",
                              "retryable": true, "nextRetryTime": "2026-01-01T00:01:00Z", "since": "2026-01-01T00:00:00Z",
                              "message": "no \u{1b}[31manswer"}],
                "replicasOmitted": 1,
                "history": [
                    {"generation": 4, "time": "2026-01-01T00:00:00Z", "served": false, "reason": "RegistryTimeout"},
                    {"generation": 3, "time": "2025-12-31T03:00:00Z", "served": true, "digest": "sha256:33"},
                    {"generation": 2, "time": "2025-12-31T02:00:00Z", "served": false, "reason": "SettingsInvalid"},
                    {"generation": 1, "time": "2025-12-31T01:00:00Z", "served": true, "digest": "sha256:11"},
                ],
            },
        });
        Item::of_object(object).expect("a policy")
    }

    #[test]
    fn what_the_status_says() {
        let item = failing();
        assert_eq!((item.id.as_str(), item.word().as_str()), ("cluster/labels", "ServingPrevious"));
        assert_eq!(item.history().iter().map(|entry| entry.generation).collect::<Vec<_>>(), [4, 3, 2, 1]);
        assert_eq!(item.object["metadata"].get("managedFields"), None);
    }

    #[test]
    fn conditions_of_an_older_generation_count_no_more() {
        let mut item = failing();
        item.object["metadata"]["generation"] = 5.into();
        assert_eq!((item.word().as_str(), item.condition("Degraded")), ("Unknown", None));
    }

    #[test]
    fn an_object_without_status_is_a_policy_too() {
        let object = json!({"kind": "Policy", "metadata": {"name": "a", "namespace": "b"}});
        let item = Item::of_object(object).expect("a policy");
        assert_eq!((item.word().as_str(), item.history(), item.generation()), ("Unknown", vec![], 0));
        assert_eq!(Item::of_object(json!({"kind": "Pod", "metadata": {"name": "a"}})), None);
    }
}
