//! The status of a policy (docs/design/status-api.md, section 2).

use std::collections::BTreeMap;

use jiff::Timestamp;
use portcullis_contract::{Digest, ImpactFigures, ReplicaState};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Whether the policy is loaded and called, and if not, why. Portcullis writes it.
// Reporter and controller each write a part, so a part may be absent. Entries that this release does not know are skipped on reading.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyStatus {
    /// The newest generation that this status takes into account.
    pub observed_generation: i64,
    /// The conditions of the policy, at most one of each type. `Ready` is the one to wait for.
    #[serde(deserialize_with = "known")]
    pub conditions: Vec<Condition>,
    /// The digest of the newest generation's module; absent until known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub resolved: Option<Resolved>,
    /// The last generation that served on every replica.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_served: Option<Resolved>,
    /// How many expected replicas are in each state.
    pub replica_counts: ReplicaCounts,
    /// The number of replicas that serve the newest generation, and of those that should: `current/expected`.
    pub summary: String,
    /// The state of each replica, 16 at most: failing ones first, then those that may not know the newest generation yet, those that lack
    /// objects, and the others, each by name. If 16 or more fail, the first one that may not know the newest generation has the last place.
    #[serde(deserialize_with = "known")]
    pub replicas: Vec<ReplicaStatus>,
    /// How many replicas do not fit in `replicas`.
    pub replicas_omitted: u32,
    /// The outcome of the last generations, newest first; ten at most.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "maybe_known")]
    pub history: Option<Vec<HistoryEntry>>,
    /// What the policy says of the objects that exist, as the last scan of the background audit found it; absent without the audit.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "readable")]
    pub audit: Option<AuditSummary>,
    /// What the policy would do to the objects that exist, as it was counted when somebody applied it; absent where that was never counted.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "readable")]
    pub impact: Option<ImpactSummary>,
}

impl PolicyStatus {
    /// The largest number of entries of [`PolicyStatus::history`].
    pub const MAX_HISTORY: usize = 10;
    /// The largest number of entries of [`PolicyStatus::replicas`].
    pub const MAX_REPLICAS: usize = 16;
    /// The longest message of an entry of [`PolicyStatus::replicas`], in bytes.
    pub const MAX_REPLICA_MESSAGE: usize = 256;
    /// The longest message of a condition, in bytes.
    pub const MAX_CONDITION_MESSAGE: usize = 1024;
}

/// What a scan of the background audit found about one policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditSummary {
    /// When the scan ended.
    pub scanned_at: Timestamp,
    /// The generation that was asked; 0 if none was.
    pub generation: i64,
    /// How many objects the policy has evaluated.
    pub checked: i64,
    /// How many of them it rejects.
    pub violations: i64,
    /// How many of them it could not evaluate.
    pub errors: i64,
    /// Some of the objects that it rejects, for instance `Pod team-a/web-1`; five at most.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub examples: Vec<String>,
    /// Resources that the policy is for and that could not be listed; ten at most.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub unreadable: Vec<String>,
    /// Why objects or reports are missing; absent if the scan is complete.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub message: String,
    /// The value that the annotation `policies.portcullis.dev/audit-requested-at` had when the scan began, its first 64 bytes; absent without one.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub handled_request: String,
}

impl AuditSummary {
    /// The largest number of entries of `examples`.
    pub const MAX_EXAMPLES: usize = 5;
    /// The longest entry of `examples`, in bytes.
    pub const MAX_EXAMPLE: usize = 512;
    /// The largest number of entries of `unreadable`.
    pub const MAX_UNREADABLE: usize = 10;
    /// The longest entry of `unreadable`, in bytes.
    pub const MAX_RESOURCE: usize = 320;
    /// The longest message, in bytes.
    pub const MAX_MESSAGE: usize = 1024;
}

/// What a check at apply counted: what one generation of the policy would do to the objects that exist, in mode `protect`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImpactSummary {
    /// The generation with the spec that was checked.
    pub generation: i64,
    /// When the objects were counted.
    pub checked_at: Timestamp,
    /// How many objects the policy was asked about.
    pub evaluated: i64,
    /// About how many objects there are that the policy would be asked about; absent if that is not known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub total: Option<i64>,
    /// How many of the evaluated objects the policy would deny.
    pub denied: i64,
    /// How many of them it would change.
    pub changed: i64,
    /// How many of them it could not evaluate.
    pub failed: i64,
    /// How many namespaces have objects that it would deny.
    pub namespaces: i64,
    /// Some of the objects that it would deny, for instance `team-a/web-1`; five at most.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub examples: Vec<String>,
    /// Whether only a sample of the objects was evaluated, as there are too many.
    pub sample: bool,
    /// Whether all kinds of the rules were counted: there was time, each could be listed, and match conditions could be decided.
    pub complete: bool,
}

impl ImpactSummary {
    /// The largest number of entries of `examples`.
    pub const MAX_EXAMPLES: usize = ImpactFigures::MAX_EXAMPLES;
    /// The longest entry of `examples`, in bytes.
    pub const MAX_EXAMPLE: usize = ImpactFigures::MAX_EXAMPLE;
}

/// Reads the entries that this release knows. One that a newer release wrote must not hide the others.
fn known<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let entries = Vec::<Value>::deserialize(deserializer)?;
    Ok(entries.into_iter().filter_map(|entry| serde_json::from_value(entry).ok()).collect())
}

/// [`known`], for a list that may be absent.
fn maybe_known<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Option<Vec<T>>, D::Error> {
    known(deserializer).map(Some)
}

/// Reads a part, or none if it cannot be read. One that another release wrote must not hide the rest of the status.
fn readable<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).ok())
}

/// The outcome of one generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// The generation.
    pub generation: i64,
    /// The digest of its module; absent if it never became known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub digest: Option<Digest>,
    /// When the outcome became known.
    pub time: Timestamp,
    /// Whether every expected replica has served it.
    pub served: bool,
    /// Why it was not served, in one word; absent if it was.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
}

/// A generation and the digest of its module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resolved {
    /// The digest of the module; for a group, a digest of `members`.
    pub digest: Digest,
    /// The generation.
    pub generation: i64,
    /// For a group, the digest of each member's module, by the member's name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub members: BTreeMap<String, Digest>,
}

impl Resolved {
    /// A generation whose module has this digest.
    pub fn module(generation: i64, digest: Digest) -> Self {
        Self { digest, generation, members: BTreeMap::new() }
    }

    /// A generation of a group whose members have these modules. Groups with the same members and modules have the same digest.
    pub fn group(generation: i64, members: BTreeMap<String, Digest>) -> Self {
        let lines: String = members.iter().map(|(name, digest)| format!("{name} {digest}\n")).collect();
        Self { digest: Digest::of(lines.as_bytes()), generation, members }
    }
}

/// A `metav1.Condition`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The type of the condition. Other programs may add conditions of their own.
    #[schemars(with = "String")]
    pub r#type: ConditionType,
    /// Whether the condition holds.
    pub status: Truth,
    /// Why it has this status, in one word.
    pub reason: String,
    /// Why it has this status, for people to read; at most 1024 bytes.
    pub message: String,
    /// The generation that the condition is about.
    pub observed_generation: i64,
    /// When `status` last changed.
    pub last_transition_time: Timestamp,
}

/// The types of conditions (docs/design/status-api.md, section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum ConditionType {
    /// The spec is valid, and its module and settings are accepted.
    Accepted,
    /// Every expected replica answers with this generation, and the API servers call it.
    Ready,
    /// Every expected replica answers with some valid generation, and the API servers call them.
    Enforced,
    /// At least one expected replica fails, or serves an older generation because of a failure, or is unknown.
    Degraded,
    /// Portcullis is loading, rolling out or retrying.
    Reconciling,
    /// Retrying does not help; something has to be changed.
    Stalled,
    /// What the module's metadata asks for is what the policy grants, as far as that can be compared before a request; and a policy group calls its members.
    MetadataMatched,
    /// The objects of the cluster that the policy reads are all known, and are those of now.
    ContextSynced,
    /// The webhook of the policy's match group is registered as it should be, and every API server was seen to call it.
    WebhookConfigured,
}

/// The three values of a condition's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Truth {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// It is not known whether the condition holds.
    Unknown,
}

/// How many expected replicas are in each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaCounts {
    /// Replicas that API servers can reach.
    pub expected: u32,
    /// Replicas that serve the newest generation.
    pub current: u32,
    /// Replicas that serve an older generation.
    pub previous: u32,
    /// Replicas that are still loading the policy and serve no generation yet.
    pub pending: u32,
    /// Replicas that failed to load the policy and serve no generation.
    pub failed: u32,
    /// Replicas that have not reported lately.
    pub unknown: u32,
}

/// The state of one replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaStatus {
    /// The pod's name.
    pub pod: String,
    /// The pod's uid.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// `Current`, `Previous`, `Pending`, `Failed` or `Unknown`.
    pub state: ReplicaState,
    /// The generation that this replica serves; 0 if none.
    pub generation: i64,
    /// Why `state` is not `Current`, or what else is wrong there, in one word.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// Whether the replica tries again by itself.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retryable: Option<bool>,
    /// When the replica tries again.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next_retry_time: Option<Timestamp>,
    /// Since when the replica is in this state.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub since: Option<Timestamp>,
    /// The same for people to read; at most 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_newer_release_wrote_hides_nothing_else() {
        let status: PolicyStatus = serde_json::from_value(serde_json::json!({
            "conditions": [{"type": "Novelty"}],
            "replicas": [{"pod": "a", "podUID": "u", "state": "Current", "generation": 1}, {"pod": "b", "state": "Dancing"}],
            "history": [{"generation": 1, "time": "2026-01-01T00:00:00Z", "served": true}, {"novelty": 1}],
            "audit": {"novelty": 1},
            "impact": {"generation": "the second"},
        }))
        .expect("a status");
        assert!(status.conditions.is_empty());
        assert_eq!(status.replicas.iter().map(|replica| replica.pod.as_str()).collect::<Vec<_>>(), ["a"]);
        assert_eq!(status.history.map(|history| history.len()), Some(1));
        assert_eq!((status.audit, status.impact), (None, None));
    }

    #[test]
    fn a_group_is_told_by_its_members() {
        let members =
            |module: &[u8]| BTreeMap::from([("a".to_owned(), Digest::of(module)), ("b".to_owned(), Digest::of(b"b"))]);
        let group = Resolved::group(3, members(b"one"));
        assert_eq!(group, Resolved::group(3, members(b"one")));
        assert_ne!(group.digest, Resolved::group(3, members(b"two")).digest);
        let value = serde_json::to_value(&group).expect("JSON");
        assert_eq!(value["members"]["b"], Digest::of(b"b").to_string());
    }
}
