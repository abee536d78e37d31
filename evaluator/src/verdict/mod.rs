//! What a guest answers, and how an evaluation fails.

pub(crate) mod answer;
mod bounded;
pub(crate) mod decision;
pub(crate) mod draft;
pub(crate) mod group;
pub(crate) mod offload;
mod patch;
pub(crate) mod reply;
pub(crate) mod text;
mod warnings;

use std::collections::BTreeMap;

use portcullis_contract::Reason;
use serde::Deserialize;
use serde_json::value::RawValue;

/// A guest's validation response (docs/design/policy-abi.md, section 4). Names are snake case; null and absent are the same.
#[derive(Debug, Deserialize)]
pub struct Verdict {
    /// Whether the request may pass.
    pub accepted: bool,
    /// Why not.
    #[serde(default)]
    pub message: Option<String>,
    /// The HTTP code of a denial.
    #[serde(default)]
    pub code: Option<u16>,
    /// The object as the guest wants it; raw, so that nothing is decoded that nobody looks at.
    #[serde(default)]
    pub mutated_object: Option<Box<RawValue>>,
    /// For the audit log; of a flood, the first ones.
    #[serde(default, deserialize_with = "bounded::annotations")]
    pub audit_annotations: Option<BTreeMap<String, String>>,
    /// For the user; of a flood, the first ones.
    #[serde(default, deserialize_with = "bounded::texts")]
    pub warnings: Option<Vec<String>>,
}

/// One evaluation failed; the policy itself stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {text}")]
pub struct EvaluationError {
    /// Why, in one word.
    pub reason: Reason,
    /// Why, in words: what docs/design/policy-abi.md fixes for the case. Safe to show, 1 KiB at most.
    pub text: String,
}

impl EvaluationError {
    /// Longest text, in bytes.
    pub const MAX_TEXT: usize = 1024;

    /// An error with its text cleaned and cut.
    pub fn new(reason: Reason, text: impl AsRef<str>) -> Self {
        Self { reason, text: portcullis_contract::clean(text.as_ref(), Self::MAX_TEXT) }
    }
}
