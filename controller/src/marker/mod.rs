//! Proof that a group's webhook is called, at every API server (docs/design/overview.md, section 7).
//!
//! Each webhook configuration has a second entry that is only called for the controller's own dry-run change of a revision that carries
//! [`MARKER_ANNOTATION`]. The evaluator denies it with a message that names the group. That denial is the proof. If the change passes, this
//! API server has not seen this version of the webhook yet, or could not call it.
//!
//! ```text
//!  EndpointSlice `kubernetes` ──► each API server ── dry-run patch ──► webhook entry ──► evaluator, /marker/<group>
//!                                       └──────────── 403 "… portcullis marker <group>" ◄───────────────┘
//! ```

mod address;
mod proof;
mod prover;

pub use proof::{ProofProblem, Unproven, pause_after};
pub use prover::Prover;

/// Annotation of a revision in a dry run: the match group and the version of its webhook that is to be proven.
pub const MARKER_ANNOTATION: &str = "policies.portcullis.dev/marker";
