//! Rules about several fields, each in two languages: CEL for the API server and Rust for a folder. The messages are the same.

mod both;
mod namespaced;

use portcullis_contract::RuleWithOperations;
use serde_json::{Value, json};

use super::at;
use crate::{Kind, LabelSelector, Policy, PolicySpec, SpecError};

/// A rule about a spec.
pub(crate) struct Rule {
    /// Its path in the schema of a spec, which is `self` in CEL.
    at: &'static str,
    /// The field that it is about, below `at`; empty if that is `at` itself.
    field: &'static str,
    /// What must hold, in CEL. A rule with `oldSelf` is about a change.
    cel: &'static str,
    /// What must hold, in Rust. Always true for a rule about a change, as a folder does not know the old value.
    holds: fn(&PolicySpec) -> bool,
    /// What is wrong and what to do, as the rest of a sentence that begins with the field.
    message: &'static str,
}

/// The rules for a kind.
fn of(kind: Kind) -> impl Iterator<Item = &'static Rule> {
    let own: &[Rule] = match kind {
        Kind::Policy => namespaced::RULES,
        Kind::ClusterPolicy => &[],
    };
    both::RULES.iter().chain(own)
}

/// Adds the rules for a kind to the schema of its spec.
pub(crate) fn apply(schema: &mut Value, kind: Kind) {
    for rule in of(kind) {
        let below = at(schema, rule.at).as_object_mut().expect("a schema is an object");
        let list = below.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
        let mut entry = json!({ "rule": rule.cel, "message": rule.message });
        if !rule.field.is_empty() {
            entry["fieldPath"] = format!(".{}", rule.field).into();
        }
        list.as_array_mut().expect("it is made as a list above").push(entry);
    }
}

/// Checks a policy whose fields are within their limits.
///
/// # Errors
/// The first rule that is broken.
pub(crate) fn check(policy: &Policy) -> Result<(), SpecError> {
    let Some(broken) = of(policy.kind).find(|rule| !(rule.holds)(&policy.spec)) else { return Ok(()) };
    let place = broken.at.replace("[]", "").replace("{}", "");
    let path: Vec<&str> = ["spec", &place, broken.field].into_iter().filter(|part| !part.is_empty()).collect();
    Err(SpecError::Field { field: path.join("."), problem: broken.message.to_owned() })
}

/// Whether something holds for each rule of a webhook.
fn each_rule(spec: &PolicySpec, holds: fn(&RuleWithOperations) -> bool) -> bool {
    spec.rules.iter().all(holds)
}

/// A selector, read from the field that is kept as the user wrote it; empty if the field is absent or cannot be read.
fn selector(value: Option<&Value>) -> LabelSelector {
    value.and_then(|value| serde_json::from_value(value.clone()).ok()).unwrap_or_default()
}

fn has(list: &[String], word: &str) -> bool {
    list.iter().any(|entry| entry == word)
}
