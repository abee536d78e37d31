//! The report of one pod on all policies (docs/design/status-api.md, section 2.2).
//!
//! A policy that serves its newest generation takes one entry of a map; only the others take more. Messages, which take most, can be shared among
//! reports that have the same.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use kube_derive::CustomResource;
use portcullis_contract::{Digest, ReplicaState};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ImpactSummary;

/// What one pod of Portcullis serves. The pod's reporter writes it; do not edit it.
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
    printcolumn = r#"{"name":"Manifest","type":"integer","jsonPath":".spec.manifestNumber","description":"The number of the manifest that it serves."}"#,
    printcolumn = r#"{"name":"Heartbeat","type":"date","jsonPath":".spec.heartbeat","description":"When the report was last renewed."}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"How old the report is."}"#,
    doc = "What one pod of Portcullis serves. The pod's reporter writes it and renews it once a minute; do not edit it.",
    crates(kube_core = "::kube_core")
)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaReportSpec {
    /// The pod's uid, which distinguishes it from a later pod of the same name.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// The name of the pod's node; empty if not known.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub node: String,
    /// The versions of the pod's programs.
    pub versions: Versions,
    /// The number of the manifest that this replica has finished applying.
    pub manifest_number: u64,
    /// The policies that serve their newest generation, with that generation.
    pub current: BTreeMap<PolicyKey, i64>,
    /// The digests of served modules whose generations are not pinned yet.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub digests: BTreeMap<PolicyKey, Digest>,
    /// For policy groups among `digests`, the digest of each member's module, by the member's name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub members: BTreeMap<PolicyKey, BTreeMap<String, Digest>>,
    /// The policies that do not simply serve their newest generation; 500 at most.
    pub deviations: Vec<ReportDeviation>,
    /// How many failures do not fit in `deviations`.
    pub deviations_omitted: u32,
    /// The policies of which more than 5 % of all evaluations have failed for five minutes; 500 at most.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub failing: Vec<ReportFailing>,
    /// The policies whose module's metadata differs from what they grant; 500 at most.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub mismatches: Vec<ReportMismatch>,
    /// The policies that read objects of the cluster which this pod does not have, or has only in an old version; 500 at most.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub context: Vec<ReportContext>,
    /// What policies would do to the objects that exist, as this pod counted it when somebody applied them; 100 at most.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub impacts: Vec<ReportImpact>,
    /// The ids of the keys of webhook paths that this pod accepts, or `none` before it has a key. An id does not reveal its key.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub path_keys: Vec<String>,
    /// When this report was renewed.
    pub heartbeat: Timestamp,
}

impl ReplicaReportSpec {
    /// The largest number of entries of `deviations`.
    pub const MAX_DEVIATIONS: usize = 500;
    /// The largest number of entries of `failing`.
    pub const MAX_FAILING: usize = 500;
    /// The largest number of entries of `mismatches`.
    pub const MAX_MISMATCHES: usize = 500;
    /// The longest message of an entry of `mismatches`, in bytes.
    pub const MAX_MISMATCH_MESSAGE: usize = 600;
    /// The largest number of entries of `context`.
    pub const MAX_CONTEXT: usize = 500;
    /// The longest message of an entry of `context`, in bytes.
    pub const MAX_CONTEXT_MESSAGE: usize = 600;
    /// The largest number of entries of `impacts`.
    pub const MAX_IMPACTS: usize = 100;
    /// The largest number of entries of `path_keys`.
    pub const MAX_PATH_KEYS: usize = 8;

    /// What a later report of the same pod changes.
    pub fn change_to(&self, next: &Self) -> ReportChange {
        let mut this = Self { heartbeat: next.heartbeat, ..self.clone() };
        if this == *next {
            return ReportChange::Time;
        }
        for (one, next) in this.deviations.iter_mut().zip(&next.deviations).filter(|(one, _)| one.reason.is_some()) {
            one.next_retry_time = next.next_retry_time;
            one.message.clone_from(&next.message);
        }
        if this == *next { ReportChange::Retries } else { ReportChange::Content }
    }
}

/// What differs between two reports of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportChange {
    /// At most the time.
    Time,
    /// Policies that failed have been tried again, with the same result: the times of the next tries, or the words, are others.
    Retries,
    /// What the pod serves, or why it does not serve something.
    Content,
}

/// The versions of a pod's programs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Versions {
    /// The version of the loader; empty while it has not been reached.
    pub loader: String,
    /// The version of the evaluator; empty while it has not been reached.
    pub evaluator: String,
    /// The version of the reporter.
    pub reporter: String,
    /// The evaluator's engine, for instance `wasmtime 48.0.8`.
    pub engine: String,
    /// The format of the manifest on the pod's volume.
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

/// A policy that is loaded, but too many of whose evaluations fail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportFailing {
    /// The uid of the policy.
    #[serde(rename = "policyUID")]
    pub policy_uid: String,
    /// The reason of most of the failures, in one word.
    pub reason: String,
    /// Since when too many evaluations fail.
    pub since: Timestamp,
}

/// A policy whose module's metadata differs from what it grants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportMismatch {
    /// The uid of the policy.
    #[serde(rename = "policyUID")]
    pub policy_uid: String,
    /// The generation that was compared.
    pub generation: i64,
    /// The kind of the difference in one word; `SeveralReasons` if there is more than one.
    pub reason: String,
    /// What differs and what to do, for people to read; at most 600 bytes.
    pub message: Arc<str>,
}

/// A policy that reads objects of the cluster which this pod does not have, or has only in an old version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportContext {
    /// The uid of the policy.
    #[serde(rename = "policyUID")]
    pub policy_uid: String,
    /// The generation that reads them.
    pub generation: i64,
    /// Why they are missing or old, in one word; the worst if there is more than one reason.
    pub reason: String,
    /// The kinds, the causes and what to do, for people to read; at most 600 bytes.
    pub message: Arc<str>,
}

/// A policy that this pod checked when somebody applied it, with what it would do to the objects that exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportImpact {
    /// The uid of the policy.
    #[serde(rename = "policyUID")]
    pub policy_uid: String,
    /// The figures, and the generation that they are about.
    pub impact: ImpactSummary,
}

/// A policy that does not simply serve its newest generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReportDeviation {
    /// The uid of the policy.
    #[serde(rename = "policyUID")]
    pub policy_uid: String,
    /// The newest generation that this pod knows.
    pub generation: i64,
    /// The generation that this pod serves; 0 if none.
    pub serving: i64,
    /// `Previous`, `Pending`, `Failed` or `Unknown`.
    pub state: ReplicaState,
    /// Why the newest generation does not serve, in one word.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// Whether this pod tries again by itself.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retryable: Option<bool>,
    /// When this pod tries again.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next_retry_time: Option<Timestamp>,
    /// Since when the policy is in this state.
    pub since: Timestamp,
    /// Why the policy is in this state, for people to read; at most 1024 bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<Arc<str>>,
    /// Whether match groups pass over the policy on this pod, because nothing of it is loaded here and no generation was ever enforced
    /// on all replicas.
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

    #[test]
    fn a_retry_with_the_same_result_is_not_new_content() {
        let failing = |reason: &str, second: i64, message: &str| ReplicaReportSpec {
            deviations: vec![ReportDeviation {
                policy_uid: "uid".to_owned(),
                generation: 2,
                serving: 1,
                state: ReplicaState::Previous,
                reason: Some(reason.to_owned()).filter(|reason| !reason.is_empty()),
                retryable: Some(true),
                next_retry_time: Timestamp::from_second(second).ok(),
                since: Timestamp::UNIX_EPOCH,
                message: Some(message.into()),
                passed_over: false,
            }],
            heartbeat: Timestamp::from_second(second).expect("a time"),
            ..ReplicaReportSpec::default()
        };
        let first = failing("RegistryTimeout", 10, "words");
        let later = ReplicaReportSpec { heartbeat: Timestamp::UNIX_EPOCH, ..first.clone() };
        assert_eq!(first.change_to(&later), ReportChange::Time);
        for message in ["words", "others"] {
            assert_eq!(first.change_to(&failing("RegistryTimeout", 20, message)), ReportChange::Retries);
        }
        assert_eq!(first.change_to(&failing("NotFound", 20, "words")), ReportChange::Content);
        let mut newer = first.clone();
        newer.deviations[0].generation = 3;
        assert_eq!(first.change_to(&newer), ReportChange::Content);
        assert_eq!(
            first.change_to(&ReplicaReportSpec { deviations: Vec::new(), ..first.clone() }),
            ReportChange::Content
        );
        let fetching = failing("", 10, "fetching the module");
        assert_eq!(fetching.change_to(&failing("", 10, "compiling the module")), ReportChange::Content, "it goes on");
    }
}
