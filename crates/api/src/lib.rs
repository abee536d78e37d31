//! The resources of `policies.portcullis.dev/v1alpha1`: Policy, ClusterPolicy and their status.
//!
//! Loader, reporter, controller and the command-line tool use these types; the evaluator never links them.

mod policy;
mod status;

pub use policy::{API_VERSION, Kind, Metadata, Policy, PolicySpec, RawSettings, SpecError};
pub use status::{Condition, ConditionType, PolicyStatus, ReplicaCounts, ReplicaStatus, Resolved, Truth};
