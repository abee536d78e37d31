//! The resources as the API server stores them: types for Kubernetes clients, and the CustomResourceDefinitions.
//!
//! [`Policy`] and [`ClusterPolicy`] are two types with one [`PolicySpec`](crate::PolicySpec); [`PolicyResource`] is what they
//! have in common, and [`PolicyResource::plain`] makes the [`crate::Policy`] that a folder has too.
//!
//! **List and watch policies as [`Outline`] or [`PolicyHead`], never as their type.** A typed list fails as a whole when one of its
//! objects cannot be read, for instance because a newer release with more modes accepted it, or because its settings are nested deeper
//! than JSON readers go. One such policy would hide all others. And one whose settings take a hundred times their text when they are
//! decoded would end the program for memory. Fields that this release does not know are no problem: they are skipped, as an API server with
//! this release's schema skips them.
//!
//! ```text
//! DynamicObject ──► decode ──► Policy, ClusterPolicy ──► plain ──► crate::Policy ──► check
//! ControllerRevision.data.spec ──► decode_spec ──► PolicySpec
//! ```

mod bounded;
mod crd;
mod decode;
mod outline;
mod resource;

pub use bounded::{BoundedObject, BoundedValue};
pub use crd::definitions;
pub use decode::{decode, decode_match, decode_spec};
pub use kube_core::DynamicObject;
pub use outline::{Outline, PolicyHead};
pub use resource::{ClusterPolicy, ClusterSpec, NamespacedSpec, Policy, PolicyResource};

pub use crate::report::ReplicaReport;

/// The API group of all our kinds.
pub const GROUP: &str = "policies.portcullis.dev";
/// The API version of all our kinds.
pub const VERSION: &str = "v1alpha1";
/// The finalizer of policies, which lets the controller remove webhooks and revisions first.
pub const FINALIZER: &str = "policies.portcullis.dev/webhooks";
/// The annotation of a policy by which users ask for an audit at once: each new value asks for one.
pub const AUDIT_REQUESTED_ANNOTATION: &str = "policies.portcullis.dev/audit-requested-at";
/// Longest value of [`AUDIT_REQUESTED_ANNOTATION`] that is compared, in bytes; the rest does not count.
pub const MAX_AUDIT_REQUESTED: usize = 64;
