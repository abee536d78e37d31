//! A rule about a spec, and what rules look at.

use portcullis_contract::RuleWithOperations;
use serde_json::Value;

use crate::{LabelSelector, PolicySpec};

/// A rule about a spec.
pub(super) struct Rule {
    /// Its path in the schema of a spec, which is `self` in CEL.
    pub(super) at: &'static str,
    /// The field that it is about, below `at`; empty if that is `at` itself.
    pub(super) field: &'static str,
    /// What must hold, in CEL. A rule with `oldSelf` is about a change.
    pub(super) cel: &'static str,
    /// What must hold, in Rust. Always true for a rule about a change, as a folder does not know the old value.
    pub(super) holds: fn(&PolicySpec) -> bool,
    /// What is wrong and what to do, as the rest of a sentence that begins with the field.
    pub(super) message: &'static str,
}

/// Whether something holds for each rule of a webhook.
pub(super) fn each_rule(spec: &PolicySpec, holds: fn(&RuleWithOperations) -> bool) -> bool {
    spec.rules.iter().all(holds)
}

/// A selector, read from the field that is kept as the user wrote it; empty if the field is absent or cannot be read.
pub(super) fn selector(value: Option<&Value>) -> LabelSelector {
    value.and_then(|value| serde_json::from_value(value.clone()).ok()).unwrap_or_default()
}

pub(super) fn has(list: &[String], word: &str) -> bool {
    list.iter().any(|entry| entry == word)
}
