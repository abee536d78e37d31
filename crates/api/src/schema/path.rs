//! Paths within a schema.

use serde_json::Value;

/// The keyword of an object that may have any fields.
pub(super) const ANY: &str = "x-kubernetes-preserve-unknown-fields";

/// The schema at a path like `rules[].apiGroups`, where `[]` is an entry of a list and `{}` a value of a map; the schema itself where
/// the path is empty.
///
/// # Panics
/// When the schema has no such path.
pub(crate) fn at<'a>(schema: &'a mut Value, path: &str) -> &'a mut Value {
    let steps = path.replace("[]", ".[]").replace("{}", ".{}");
    steps.split('.').filter(|step| !step.is_empty()).fold(schema, |schema, step| {
        let below = match step {
            "[]" => schema.get_mut("items"),
            "{}" => schema.get_mut("additionalProperties"),
            name => schema.get_mut("properties").and_then(|properties| properties.get_mut(name)),
        };
        below.unwrap_or_else(|| panic!("the schema has no {path}"))
    })
}
