//! The schema with which Helm checks values: types follow from the defaults, and hints add to them.

use serde_json::{Map, Value, json};

use super::values::Setting;

/// The text of the schema's file. Unknown keys are refused, so that typing mistakes are noticed.
pub(super) fn of(settings: &[Setting]) -> String {
    let mut root = mapping("Settings of the chart. Made by `cargo xtask generate` from values.yaml.");
    for setting in settings {
        add(&mut root, &setting.path, describe(setting));
    }
    let mut schema = Map::new();
    schema.insert("$schema".to_owned(), "http://json-schema.org/draft-07/schema#".into());
    schema.extend(root);
    // The values that a parent chart sets for all of its subcharts, and the one by which it often switches a subchart on.
    schema["properties"]["global"] = json!({ "type": "object" });
    schema["properties"]["enabled"] = json!({
        "description": "For the `condition` of a chart that depends on this one.", "type": "boolean",
    });
    format!("{:#}\n", Value::Object(schema))
}

fn mapping(words: &str) -> Map<String, Value> {
    let schema = json!({
        "description": words, "type": "object", "properties": {}, "required": [], "additionalProperties": false,
    });
    match schema {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}

fn describe(setting: &Setting) -> Map<String, Value> {
    let Some(default) = &setting.default else { return mapping(&setting.words) };
    let mut schema = Map::new();
    schema.insert("description".to_owned(), setting.words.as_str().into());
    schema.insert("type".to_owned(), type_of(default).into());
    schema.insert("default".to_owned(), default.clone());
    schema.extend(setting.hints.clone());
    schema
}

fn type_of(default: &Value) -> &'static str {
    match default {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Puts the schema of a key into that of its mapping. All keys are required: null would remove the default, on which templates rely.
fn add(root: &mut Map<String, Value>, path: &[String], schema: Map<String, Value>) {
    let Some((name, above)) = path.split_last() else { return };
    let mut at = root;
    for part in above {
        let Some(Value::Object(inner)) = at.get_mut("properties").and_then(|properties| properties.get_mut(part))
        else {
            return;
        };
        at = inner;
    }
    if let Some(Value::Object(properties)) = at.get_mut("properties") {
        properties.insert(name.clone(), schema.into());
    }
    if let Some(Value::Array(required)) = at.get_mut("required") {
        required.push(name.as_str().into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::values;

    #[test]
    fn defaults_say_the_type_and_hints_say_more() {
        let settings = values::read("# A part.\npart:\n  # Which.\n  # @schema {enum: [a, b]}\n  which: a\n").unwrap();
        let schema: Value = serde_json::from_str(&of(&settings)).unwrap();
        assert_eq!(schema["required"], json!(["part"]));
        let part = &schema["properties"]["part"];
        assert_eq!((&part["additionalProperties"], &part["required"]), (&json!(false), &json!(["which"])));
        assert_eq!(
            part["properties"]["which"],
            json!({ "description": "Which.", "type": "string", "default": "a", "enum": ["a", "b"] })
        );
    }
}
