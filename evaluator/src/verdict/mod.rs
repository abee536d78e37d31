//! From the bytes that a guest replies to the answer for the API server.
//!
//! ```text
//!  reply ──► Verdict ──► draft: what changed ──► Decision ──► group: joined with others ──► Answer
//!  EvaluationError ────────────────────────────────┘
//! ```
//!
//! Everything here is bounded: a guest may reply anything, as often as it is asked.

pub(crate) mod answer;
mod apply;
mod bounded;
pub(crate) mod check;
pub(crate) mod decision;
pub(crate) mod draft;
pub(crate) mod group;
pub(crate) mod offload;
mod patch;
pub(crate) mod rego;
pub(crate) mod reply;
pub(crate) mod text;
mod warnings;

pub(crate) use apply::{PatchError, apply_patch};

use std::collections::BTreeMap;

use portcullis_contract::Reason;
use serde::Deserialize;
use serde_json::value::RawValue;

/// A guest's validation response (docs/design/policy-abi.md, section 4). Names are snake case; null and absent are the same.
#[derive(Debug, Deserialize)]
pub struct Verdict {
    /// Whether the request may pass.
    pub accepted: bool,
    /// The message for the user.
    #[serde(default)]
    pub message: Option<String>,
    /// The HTTP code, which counts for a denial.
    #[serde(default)]
    pub code: Option<u16>,
    /// The object as the guest wants it, as JSON text that is decoded only where it is needed.
    #[serde(default)]
    pub mutated_object: Option<Box<RawValue>>,
    /// Annotations for the audit log; the first 64 at most.
    #[serde(default, deserialize_with = "bounded::annotations")]
    pub audit_annotations: Option<BTreeMap<String, String>>,
    /// Warnings for the user; the first 64 at most.
    #[serde(default, deserialize_with = "bounded::texts")]
    pub warnings: Option<Vec<String>>,
    /// Why members of a policy group denied, by their names. No guest gives it.
    #[serde(skip)]
    pub members: Vec<MemberDenial>,
}

/// Why a member of a policy group denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberDenial {
    /// The member.
    pub name: String,
    /// What it said.
    pub message: String,
}

/// The audit annotation of a denial that came after a capability failed, and may be a consequence of that.
pub(crate) const FAILED_CAPABILITY: &str = "capability-unavailable";

impl Verdict {
    /// A verdict without message, code, mutation, annotations and warnings.
    pub(crate) fn plain(accepted: bool) -> Self {
        Self {
            accepted,
            message: None,
            code: None,
            mutated_object: None,
            audit_annotations: None,
            warnings: None,
            members: Vec::new(),
        }
    }

    /// The same verdict, where `failure` says which capability could not be provided before the guest replied; none if all could.
    pub(crate) fn after_failed_capability(mut self, failure: Option<String>) -> Self {
        if let Some(failure) = failure.filter(|_| !self.accepted) {
            let annotations = self.audit_annotations.get_or_insert_default();
            annotations
                .insert(FAILED_CAPABILITY.to_owned(), portcullis_contract::clean(&failure, EvaluationError::MAX_TEXT));
        }
        self
    }
}

/// The text for an evaluation beyond its time limit; it is part of docs/design/policy-abi.md, section 11.
pub(crate) const TIMED_OUT: &str = "Policy execution interrupted because it exceeded the allowed execution time";

/// Why one evaluation gave no verdict. The policy itself stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {text}")]
pub struct EvaluationError {
    /// The cause in one word.
    pub reason: Reason,
    /// The cause, in the words of docs/design/policy-abi.md. Safe to show, 1 KiB at most.
    pub text: String,
}

impl EvaluationError {
    /// Longest text, in bytes.
    pub const MAX_TEXT: usize = 1024;

    /// An error with its text cleaned and cut.
    pub fn new(reason: Reason, text: impl AsRef<str>) -> Self {
        Self { reason, text: portcullis_contract::clean(text.as_ref(), Self::MAX_TEXT) }
    }

    /// The error of an evaluation that is beyond its time limit.
    pub(crate) fn timed_out() -> Self {
        Self::new(Reason::EvaluationTimedOut, TIMED_OUT)
    }
}
