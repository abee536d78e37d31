//! What one pod says of all policies (docs/design/status-api.md, section 2.2).
//!
//! A policy that serves its newest generation costs a line in a map; only the others have more to tell.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use kube_derive::CustomResource;
use portcullis_contract::{Digest, ReplicaState};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What one pod of Portcullis serves. Its reporter writes it; nobody else should.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, CustomResource)]
#[kube(
    group = "policies.portcullis.dev",
    version = "v1alpha1",
    kind = "ReplicaReport",
    plural = "replicareports",
    shortname = "rr",
    category = "portcullis",
    namespaced,
    derive = "PartialEq",
    schema = "manual",
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".spec.node","description":"Where the pod runs."}"#,
    printcolumn = r#"{"name":"Manifest","type":"integer","jsonPath":".spec.manifestNumber","description":"The set of policies that it serves."}"#,
    printcolumn = r#"{"name":"Heartbeat","type":"date","jsonPath":".spec.heartbeat","description":"When it reported last."}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Since when it reports."}"#,
    doc = "What one pod of Portcullis serves. Its reporter writes it and renews it once a minute; nobody else should.",
    crates(kube_core = "::kube_core")
)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaReportSpec {
    /// The pod's uid; tells a pod from a later one of the same name.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// The pod's node, where known.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub node: String,
    /// Which programs this pod runs.
    pub versions: Versions,
    /// The set that this replica has finished applying.
    pub manifest_number: u64,
    /// The generation that serves, of each policy that serves its newest one.
    pub current: BTreeMap<PolicyKey, i64>,
    /// The module that serves, of each generation whose digest is not pinned yet.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub digests: BTreeMap<PolicyKey, Digest>,
    /// The policies that do not plainly serve their newest generation.
    pub deviations: Vec<ReportDeviation>,
    /// How many deviations the cap left out.
    pub deviations_omitted: u32,
    /// The policies of which more than 5 % of the evaluations fail, and have for five minutes.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub failing: Vec<ReportFailing>,
    /// The ids of the keys of webhook paths that this pod accepts, or the word `none` before there are keys. They tell nothing of the keys.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub path_keys: Vec<String>,
    /// When this report was renewed.
    pub heartbeat: Timestamp,
}

impl ReplicaReportSpec {
    /// Most deviations that a report keeps.
    pub const MAX_DEVIATIONS: usize = 500;
    /// Most entries of `failing`.
    pub const MAX_FAILING: usize = 500;
    /// Most entries of `path_keys`.
    pub const MAX_PATH_KEYS: usize = 8;
}

/// Which programs a pod runs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Versions {
    /// Version of the loader; empty where it has not been reached.
    pub loader: String,
    /// Version of the evaluator; empty where it has not been reached.
    pub evaluator: String,
    /// Version of the reporter.
    pub reporter: String,
    /// The evaluator's engine, for instance `wasmtime 48.0.8`.
    pub engine: String,
    /// Format of the volume manifest.
    pub manifest_format: u32,
}

/// The first 16 hex digits of a policy's uid.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct PolicyKey(String);

impl PolicyKey {
    /// The key of the policy with this uid.
    pub fn of(uid: &str) -> Self {
        Self(uid.chars().filter(char::is_ascii_hexdigit).take(16).collect())
    }
}

impl fmt::Display for PolicyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A policy that is loaded, and of which too many evaluations fail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportFailing {
    /// The policy.
    #[serde(rename = "policyUID")]
    pub policy_uid: String,
    /// Why most of them fail. Text, as a newer release may know more reasons.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
}

/// A policy that does not plainly serve its newest generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportDeviation {
    /// The policy.
    #[serde(rename = "policyUID")]
    pub policy_uid: String,
    /// The newest generation that this pod knows.
    pub generation: i64,
    /// The generation that answers here; 0 if none.
    pub serving: i64,
    /// `Previous`, `Pending`, `Failed` or `Unknown`.
    pub state: ReplicaState,
    /// Why the newest generation does not serve. Text, as a newer release may know more reasons.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// Whether waiting can help.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retryable: Option<bool>,
    /// When it is tried again.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next_retry_time: Option<Timestamp>,
    /// Since when it is so.
    pub since: Timestamp,
    /// Why, or what goes on, in words; 1 024 bytes at most.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<String>,
    /// Whether match groups pass over it on this pod: nothing of it is loaded here, and no generation was ever enforced on all replicas.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub passed_over: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_first_half_of_the_uid_without_dashes() {
        assert_eq!(PolicyKey::of("9b2c41d2-a1f0-4e17-8000-0123456789ab").to_string(), "9b2c41d2a1f04e17");
    }
}
