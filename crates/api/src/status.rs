//! The status of a policy (docs/design/status-api.md, section 2).

use std::collections::BTreeMap;

use jiff::Timestamp;
use portcullis_contract::{Digest, ReplicaState};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Whether the policy is loaded and asked, and where it is not, why. Portcullis writes it.
// Several write it, each a part, so a part may be absent. Entries that this release does not know are left out when it is read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyStatus {
    /// The newest generation that has been looked at.
    pub observed_generation: i64,
    /// What holds and what does not, one of each type. `Ready` is the one to wait for.
    #[serde(deserialize_with = "known")]
    pub conditions: Vec<Condition>,
    /// What the newest generation means in bytes; absent until known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub resolved: Option<Resolved>,
    /// The last generation that served on every replica.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_served: Option<Resolved>,
    /// How many replicas are in which state.
    pub replica_counts: ReplicaCounts,
    /// Replicas that serve the newest generation, of those that should: `current/expected`.
    pub summary: String,
    /// What each replica does, 16 at most: failing ones first, then by name.
    #[serde(deserialize_with = "known")]
    pub replicas: Vec<ReplicaStatus>,
    /// How many replicas are left out of `replicas`.
    pub replicas_omitted: u32,
    /// What became of the newest generations, the newest first; ten at most.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "maybe_known")]
    pub history: Option<Vec<HistoryEntry>>,
}

impl PolicyStatus {
    /// Most entries of [`PolicyStatus::history`].
    pub const MAX_HISTORY: usize = 10;
    /// Most entries of [`PolicyStatus::replicas`].
    pub const MAX_REPLICAS: usize = 16;
}

/// The entries that this release can read. One that a newer release wrote must not hide the others.
fn known<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let entries = Vec::<Value>::deserialize(deserializer)?;
    Ok(entries.into_iter().filter_map(|entry| serde_json::from_value(entry).ok()).collect())
}

/// [`known`], where there is such a list.
fn maybe_known<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Option<Vec<T>>, D::Error> {
    known(deserializer).map(Some)
}

/// What became of one generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// The generation.
    pub generation: i64,
    /// The digest of its module; absent where it never became known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub digest: Option<Digest>,
    /// When it was decided.
    pub time: Timestamp,
    /// Whether every expected replica has served it.
    pub served: bool,
    /// Why it has not been served, in one word.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
}

/// A generation and its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resolved {
    /// The digest of the module; of a group, the digest of `members`.
    pub digest: Digest,
    /// The generation.
    pub generation: i64,
    /// Of a group: the digest of each member's module, by the member's name.
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
    /// What it is about. Other programs may have conditions of their own beside ours.
    #[schemars(with = "String")]
    pub r#type: ConditionType,
    /// Whether it holds.
    pub status: Truth,
    /// Why, in one word.
    pub reason: String,
    /// Why, in words; 1 024 bytes at most.
    pub message: String,
    /// The generation it speaks of.
    pub observed_generation: i64,
    /// When `status` changed last.
    pub last_transition_time: Timestamp,
}

/// The types of conditions (docs/design/status-api.md, section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum ConditionType {
    /// The spec is understood.
    Accepted,
    /// Every expected replica answers with this generation, and the API servers call it.
    Ready,
    /// Every expected replica answers with some valid generation, and the API servers call them.
    Enforced,
    /// At least one expected replica fails, or serves an older generation because of a failure, or is unknown.
    Degraded,
    /// Work or retries are going on.
    Reconciling,
    /// Nothing will get better until somebody changes something.
    Stalled,
    /// The webhook of the policy's match group exists, is right, and has been reached.
    WebhookConfigured,
}

/// The three values of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Truth {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nobody knows.
    Unknown,
}

/// How many expected replicas are in which state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaCounts {
    /// Replicas that the API server can reach.
    pub expected: u32,
    /// Serve the newest generation.
    pub current: u32,
    /// Serve an older one.
    pub previous: u32,
    /// Work on it, nothing answers yet.
    pub pending: u32,
    /// Failed, nothing answers.
    pub failed: u32,
    /// Nothing is known.
    pub unknown: u32,
}

/// One replica's part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaStatus {
    /// The pod's name.
    pub pod: String,
    /// The pod's uid.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// What it does.
    pub state: ReplicaState,
    /// The generation that answers here; 0 if none.
    pub generation: i64,
    /// Why it is not Current.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// Whether waiting can help.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retryable: Option<bool>,
    /// When it is tried again.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next_retry_time: Option<Timestamp>,
    /// Since when it is so.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub since: Option<Timestamp>,
    /// Why, in words; 256 bytes at most.
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
        }))
        .expect("a status");
        assert!(status.conditions.is_empty());
        assert_eq!(status.replicas.iter().map(|replica| replica.pod.as_str()).collect::<Vec<_>>(), ["a"]);
        assert_eq!(status.history.map(|history| history.len()), Some(1));
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
