//! What loader and evaluator report about themselves at `/v1/state` (docs/design/status-api.md, section 7).
//!
//! Both documents have a `version` that grows with each change of the document; `/v1/state?since=<version>` waits until
//! it is a different one, but at most 30 s.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{ContextProblem, Digest, Failure, FailurePolicy, ImpactFigures, Mismatch, Mode, PolicyId, Reason};

/// The program that reports.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Program {
    /// For instance `portcullis-evaluator`.
    pub name: String,
    /// The product's version.
    pub version: String,
    /// The engine, for instance `wasmtime 48.0.8`; empty in a program without one.
    #[serde(default)]
    pub engine: String,
}

/// What a replica does for one policy (docs/design/status-api.md, section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ReplicaState {
    /// Serves the newest generation.
    Current,
    /// Serves an older generation.
    Previous,
    /// Works, nothing answers yet, no failure.
    Pending,
    /// No generation answers, and there is a failure.
    Failed,
    /// The state is not known.
    Unknown,
}

/// The evaluator's `/v1/state`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvaluatorState {
    /// The version of this document, which grows with each change.
    pub version: u64,
    /// The program that reports.
    pub program: Program,
    /// Whether the start gate is open.
    pub ready: bool,
    /// Whether the program has been asked to end, and only answers what still comes.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub draining: bool,
    /// The number of the newest manifest that was applied completely; 0 before the first.
    pub manifest_number: u64,
    /// Why the newest manifest could not be used, until a usable one comes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub manifest_failure: Option<Failure>,
    /// The policies that serve their newest generation, if nothing else is to be reported about them.
    pub current: BTreeMap<PolicyId, Current>,
    /// All others.
    pub deviations: Vec<Deviation>,
    /// The policies of which more than 5 % of the evaluations have failed for five minutes.
    #[serde(default)]
    pub failing: Vec<Failing>,
    /// The ids of the keys of webhook paths that are accepted ([`crate::PathKey::id`]), or the word `none` before there are keys; empty
    /// if every client that knows a group's name may call it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub path_keys: Vec<String>,
}

/// A policy that serves its newest generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Current {
    /// The object's uid.
    pub uid: String,
    /// The generation, which is the newest.
    pub generation: i64,
    /// The digest of the module that serves; for a policy group, the digest of its members.
    pub digest: Digest,
    /// For a policy group, the digest of each member's module.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub members: BTreeMap<String, Digest>,
    /// When it began to serve.
    pub since: Timestamp,
}

/// A policy that is not plainly serving its newest generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Deviation {
    /// The policy.
    pub id: PolicyId,
    /// The object's uid.
    pub uid: String,
    /// The newest generation.
    pub generation: i64,
    /// The generation that answers; 0 if none.
    pub serving: i64,
    /// The digest of the module that answers; for a policy group, the digest of its members.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub digest: Option<Digest>,
    /// For a policy group, the digest of each member's module.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub members: BTreeMap<String, Digest>,
    /// `Previous`, `Pending` or `Failed`.
    pub state: ReplicaState,
    /// Why the newest generation does not serve.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failure: Option<Failure>,
    /// The candidates that the evaluator itself refused, one entry for each: from this the loader learns that settings
    /// were refused or that an artifact must be made again.
    #[serde(default)]
    pub refused: Vec<Refused>,
    /// When the policy got into this state.
    pub since: Timestamp,
}

/// A policy that is loaded, and of which too many evaluations fail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failing {
    /// The policy.
    pub id: PolicyId,
    /// The object's uid.
    pub uid: String,
    /// When too many of its evaluations began to fail.
    pub since: Timestamp,
    /// Why most of them fail.
    pub reason: Reason,
}

/// A candidate that the evaluator refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    /// The candidate's digest.
    pub digest: Digest,
    /// The module that failed; absent if the candidate is not a policy group.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub module: Option<Digest>,
    /// The SHA-256 of the artifact that was tried.
    pub artifact: Digest,
    /// The failure; its `generation` is the candidate's.
    pub failure: Failure,
}

/// The loader's `/v1/state`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoaderState {
    /// The version of this document, which grows with each change.
    pub version: u64,
    /// The program that reports.
    pub program: Program,
    /// Whether the first list of policies is complete.
    pub complete: bool,
    /// The manifest published last; 0 before the first.
    pub manifest_number: u64,
    /// Why nothing can be published now (volume full, read-only).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub volume_failure: Option<Failure>,
    /// The policies, by id.
    pub policies: Vec<LoaderPolicy>,
    /// The hosts that modules come from.
    pub sources: Vec<SourceHealth>,
    /// Input that is not a policy but was perhaps meant to be one.
    pub problems: Vec<InputProblem>,
}

/// One policy in the loader's state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoaderPolicy {
    /// The policy.
    pub id: PolicyId,
    /// The object's uid.
    pub uid: String,
    /// The newest generation.
    pub generation: i64,
    /// Mode of the newest generation.
    pub mode: Mode,
    /// `failurePolicy` of the newest generation.
    pub failure_policy: FailurePolicy,
    /// `suspend` of the newest generation.
    pub suspend: bool,
    /// Whether it was ever enforced, as in the manifest ([`crate::PolicyEntry::enforced`]). Loaders of earlier releases do not
    /// report this, and then no policy is passed over.
    #[serde(default = "crate::manifest::enforced")]
    pub enforced: bool,
    /// The module as the user wrote it; never with credentials.
    pub module: String,
    /// The digest of the newest generation's module, once known; for a policy group, the digest of its members, once all
    /// are known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub digest: Option<Digest>,
    /// For a policy group, the digest of each member's module.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub members: BTreeMap<String, Digest>,
    /// How far the loader is with the newest generation.
    pub phase: Phase,
    /// The work that is in progress, for progress bars.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub activity: Option<Activity>,
    /// Why the newest generation is not published.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failure: Option<Failure>,
    /// The last generation that an evaluator loaded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_good: Option<i64>,
    /// What differs between the metadata of the newest generation's module and what the policy grants; at most one entry of each kind.
    /// Empty while the module is not compiled.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub mismatches: Vec<Mismatch>,
    /// What is wrong with the objects that the newest generation reads, the worst first; at most 8 entries. Empty while all of them are
    /// here and watched, and for policies that read none.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub context: Vec<ContextProblem>,
    /// The figures of a check in this pod of the same spec as that of the newest generation; absent without such a check.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub impact: Option<ImpactFigures>,
    /// When the policy was first seen in this volume.
    pub created: Timestamp,
}

/// How far the loader is with a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Waits for its turn.
    Queued,
    /// Its module is being fetched.
    Fetching,
    /// Its module is being compiled.
    Compiling,
    /// Its artifact is on the volume and in the manifest.
    Published,
    /// It failed; `failure` says why and when it is tried again.
    Failed,
}

/// Progress of a download or a compilation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Activity {
    /// Bytes that are done.
    pub bytes: u64,
    /// All bytes; absent if the number is not known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub total: Option<u64>,
    /// When it began.
    pub since: Timestamp,
}

/// The state of a host that modules come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceHealth {
    /// `host` or `host:port`.
    pub host: String,
    /// The newest failure; absent after a successful fetch from there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failure: Option<Failure>,
    /// A policy that met the failure.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub policy: Option<PolicyId>,
}

/// A file or document that could not be read as a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InputProblem {
    /// The file, relative to the folder.
    pub file: String,
    /// What is wrong, and where.
    pub message: String,
    /// Since when the problem exists.
    pub since: Timestamp,
}
