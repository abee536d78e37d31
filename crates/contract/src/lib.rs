//! What the containers of a pod say to each other.
//!
//! The loader writes a [`Manifest`] to the shared volume, the evaluator answers with an [`EvaluatorState`] on the pod's
//! loopback, the loader serves its own [`LoaderState`] there, and the reporter reads both. Every failure carries a
//! [`Reason`], which knows its [`Stage`] and its [`Class`] once for wire, status, event, metric and log.
//!
//! This crate has data and pure functions only. It never opens a file or a socket, and it knows neither wasmtime nor
//! Kubernetes clients.
#![forbid(unsafe_code)]

mod audit;
mod broker;
mod capability;
mod check;
mod context;
mod digest;
mod failure;
mod group;
mod hex;
mod id;
mod impact;
mod manifest;
mod marker;
mod mismatch;
mod mode;
mod path_key;
mod reason;
mod room;
mod state;
mod tenant;

pub use audit::{AUDIT_PATH, AuditAnswer, AuditOutcome, AuditRefusal, AuditVerdict};
pub use broker::{
    BROKER_MAX_ERROR, BROKER_MAX_FRAME, BROKER_MAX_HEADER, BROKER_MAX_PAYLOAD, BROKER_MAX_REPLY, BrokerCall,
    BrokerExport, BrokerMessage, BrokerOutcome, BrokerReply, BrokerRequest, CALLBACK_FAILURE, FrameError, MAX_EXPORT,
    Signal, decode_frame, encode_frame,
};
pub use capability::{Capability, UnknownCapability, is_granted, not_for_namespaces, not_granted};
pub use check::{
    BrokerCheck, CHECK_PATH, CheckFailure, CheckOutcome, CheckVerdict, MAX_CHECK_TIME, MAX_CHECKS, PolicyCheck,
};
pub use context::{ContextProblem, ContextReason};
pub use digest::{Digest, DigestError, Hasher};
pub use failure::Failure;
pub use group::{GroupId, MatchCondition, MatchPart, MemberMatch, RuleWithOperations, WebhookKind, group_id, shard_id};
pub use id::{PolicyId, PolicyIdError};
pub use impact::ImpactFigures;
pub use manifest::{
    Artifact, Candidate, CandidateContent, CandidateMember, CandidateModule, CandidatePolicyGroup,
    ContextAwareResource, ExecutionMode, GroupEntry, LastGood, MANIFEST_FILE, MANIFEST_FORMAT, MANIFEST_MAX_BYTES,
    Manifest, ManifestError, NamedModule, PolicyEntry,
};
pub use marker::{MARKER_PATH, marker_message};
pub use mismatch::{Mismatch, MismatchReason};
pub use mode::{FailurePolicy, Mode};
pub use path_key::{ADMIT_PATH, PathKey, PathKeyError, PathKeys};
pub use portcullis_util::{clean, truncate};
pub use reason::{Class, Reason, Stage};
pub use room::{allowance, part};
pub use state::{
    Activity, Current, Deviation, EvaluatorState, Failing, InputProblem, LoaderPolicy, LoaderState, Phase, Program,
    Refused, ReplicaState, SourceHealth,
};
pub use tenant::Tenant;

/// The Kubewarden level that this host is compatible with; `minimumKubewardenVersion` of a module is compared to it
/// (docs/design/policy-abi.md, section 3). It does not depend on the product's own version.
pub const KUBEWARDEN_LEVEL: (u64, u64) = (1, 36);
