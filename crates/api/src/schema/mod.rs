//! The schema of a spec: its types, taken from Rust, its limits, and its rules.
//!
//! It serves a folder, where [`Policy::check`](crate::Policy::check) uses it, and a cluster, where the API server uses it in a
//! CustomResourceDefinition.

mod check;
pub(crate) mod limits;
mod names;
mod path;
pub(crate) mod rules;
pub(crate) mod validate;

use std::sync::LazyLock;

use kube_core::schema::{OptionalEnum, StructuralSchemaRewriter};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use schemars::transform::AddNullable;
use serde_json::{Map, Value};

use crate::PolicySpec;
use path::ANY;

/// The schema of a policy's spec, with limits and without rules.
pub(crate) static SPEC: LazyLock<Value> = LazyLock::new(|| {
    let mut schema = of::<PolicySpec>();
    limits::apply(&mut schema, &limits::spec());
    schema
});

/// The structural schema of a type. Its doc comments become the descriptions that `kubectl explain` shows.
pub(crate) fn of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3()
        .with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        })
        .with_transform(AddNullable::default())
        .with_transform(StructuralSchemaRewriter)
        .with_transform(OptionalEnum);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    tidy(&mut schema);
    schema
}

/// Removes what Kubernetes does not want: `null` as a value (an absent field means the same), names of Rust types, and formats of Rust's
/// integers, which an API server warns about. Also removes the line breaks of the source from descriptions.
fn tidy(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    if fields.get("format").and_then(Value::as_str).is_some_and(|format| format.starts_with("uint")) {
        fields.insert("format".to_owned(), "int64".into());
    }
    for gone in ["nullable", "title", "additionalItems"] {
        fields.shift_remove(gone);
    }
    if fields.get("additionalProperties").is_some_and(Value::is_boolean) {
        fields.shift_remove("additionalProperties");
    }
    if fields.get("default").is_some_and(Value::is_null) {
        fields.shift_remove("default");
    }
    if let Some(text) = fields.get("description").and_then(Value::as_str) {
        let text = text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect::<Vec<_>>().join("\n\n");
        fields.insert("description".to_owned(), text.into());
    }
    for inner in subschemas(fields) {
        tidy(inner);
    }
}

/// The schemas one level below.
fn subschemas(fields: &mut Map<String, Value>) -> impl Iterator<Item = &mut Value> {
    fields.iter_mut().flat_map(|(key, value)| -> Box<dyn Iterator<Item = &mut Value>> {
        match (key.as_str(), value) {
            ("properties", Value::Object(properties)) => Box::new(properties.values_mut()),
            ("items" | "additionalProperties", value) => Box::new(std::iter::once(value)),
            _ => Box::new(std::iter::empty()),
        }
    })
}

/// Removes the fields that a schema does not have, as the API server does.
pub(crate) fn prune(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) if schema.get(ANY).is_none() => {
            if let Some(known) = schema.get("properties") {
                fields.retain(|name, _| known.get(name).is_some());
            }
            for (name, inner) in fields {
                let below = schema.get("properties").and_then(|known| known.get(name));
                if let Some(below) = below.or_else(|| schema.get("additionalProperties")) {
                    prune(below, inner);
                }
            }
        }
        Value::Array(items) => {
            if let Some(below) = schema.get("items") {
                items.iter_mut().for_each(|item| prune(below, item));
            }
        }
        _ => {}
    }
}

/// Removes the nulls of a schema's fields, as the API server does before it applies defaults. Free-form parts keep theirs.
pub(crate) fn prune_nulls(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) if schema.get(ANY).is_none() => {
            let below = |name: &str| {
                let property = schema.get("properties").and_then(|known| known.get(name));
                property.or_else(|| schema.get("additionalProperties"))
            };
            fields.retain(|name, inner| !inner.is_null() || below(name).is_none());
            for (name, inner) in fields {
                if let Some(below) = below(name) {
                    prune_nulls(below, inner);
                }
            }
        }
        Value::Array(items) => {
            if let Some(below) = schema.get("items") {
                items.iter_mut().for_each(|item| prune_nulls(below, item));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_newer_release_added_is_left_out_at_every_level() {
        let mut spec = serde_json::json!({
            "module": "a", "novelty": {"deep": 1},
            "settings": {"novelty": 9_007_199_254_740_993_u64},
            "rules": [{"apiGroups": [""], "novelty": true}],
            "policies": {"a": {"module": "m", "novelty": 1}},
        });
        prune(&SPEC, &mut spec);
        let expected = serde_json::json!({
            "module": "a",
            "settings": {"novelty": 9_007_199_254_740_993_u64},
            "rules": [{"apiGroups": [""]}],
            "policies": {"a": {"module": "m"}},
        });
        assert_eq!(spec, expected);
    }
}
