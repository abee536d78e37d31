//! The resources of `policies.portcullis.dev/v1alpha1`: Policy, ClusterPolicy, their status, and a pod's report.
//!
//! Loader, reporter, controller and the command-line tool use these types; the evaluator never links them.
#![forbid(unsafe_code)]

pub mod column;
mod event;
pub mod kubernetes;
mod manifest;
mod observed;
mod part;
mod policy;
pub mod reason;
mod report;
pub mod revision;
mod schema;
mod status;

pub use event::{EventType, PolicyEvent};
pub use manifest::{DecodeError, decode_manifest, decode_value, without_nulls};
pub use observed::{ID_ANNOTATION, ObservedPolicy, ObservedSpec};
pub use part::{LabelOperator, LabelRequirement, LabelSelector, PolicyGroupMember, RawSettings};
pub use policy::{API_VERSION, Kind, Metadata, Policy, PolicySpec, SpecError};
pub use report::{
    PolicyKey, ReplicaReportSpec, ReportChange, ReportContext, ReportDeviation, ReportFailing, ReportImpact,
    ReportMismatch, Versions,
};
pub use revision::{PolicyReference, RevisionData, RevisionError, RevisionMarks};
pub use status::{
    AuditSummary, Condition, ConditionType, HistoryEntry, ImpactSummary, PolicyStatus, ReplicaCounts, ReplicaStatus,
    Resolved, Truth,
};
