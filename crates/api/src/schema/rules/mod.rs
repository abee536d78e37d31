//! Rules about several fields, each in two languages: CEL for the API server and Rust for a folder. The messages are the same.

mod both;
mod namespaced;
mod rule;

use serde_json::{Value, json};

use super::path::at;
use crate::{Kind, Policy, SpecError};
use rule::Rule;

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
