//! Checks a value against the limits of a schema, for a folder, where no API server does it.

use serde_json::Value;

use super::path::ANY;
use crate::SpecError;

/// Checks `value`, which is at `path`.
///
/// # Errors
/// The first limit that is broken.
pub(crate) fn validate(schema: &Value, value: &Value, path: &str) -> Result<(), SpecError> {
    let refuse = |problem: String| Err(SpecError::Field { field: path.to_owned(), problem });
    let fits = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("boolean") => value.is_boolean(),
        _ => true,
    };
    if !fits {
        let wanted = schema["type"].as_str().unwrap_or("another form");
        return refuse(format!("want the type {wanted}"));
    }
    if let Some(known) = schema["enum"].as_array().filter(|known| !known.contains(value)) {
        let known: Vec<_> = known.iter().filter_map(Value::as_str).collect();
        return refuse(format!("want {}", known.join(", ")));
    }
    let limit = |key: &str| schema[key].as_u64();
    match value {
        Value::String(text) => {
            let (least, most) = (limit("minLength").unwrap_or(0), limit("maxLength").unwrap_or(u64::MAX));
            if !(least..=most).contains(&(text.chars().count() as u64)) {
                return refuse(format!("want {least} to {most} characters"));
            }
        }
        Value::Number(number) => {
            let (least, most) = (limit("minimum"), limit("maximum"));
            let fits = number.as_i64().is_some_and(|number| {
                let number = u64::try_from(number).unwrap_or(0);
                least.is_none_or(|least| number >= least) && most.is_none_or(|most| number <= most)
            });
            match (least, most) {
                _ if fits => {}
                (Some(least), Some(most)) => return refuse(format!("want {least} to {most}")),
                (Some(least), None) => return refuse(format!("want {least} or more")),
                _ => return refuse("want a whole number".to_owned()),
            }
        }
        Value::Array(items) => {
            count(items.len(), limit("minItems"), limit("maxItems"), path)?;
            for (index, item) in items.iter().enumerate() {
                validate(&schema["items"], item, &format!("{path}[{index}]"))?;
            }
        }
        Value::Object(fields) if schema.get(ANY).is_none() => {
            count(fields.len(), limit("minProperties"), limit("maxProperties"), path)?;
            for (name, inner) in fields {
                let below = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
                let Some(below) = below else {
                    return refuse(format!("unknown field {}", portcullis_contract::clean(name, 100)));
                };
                validate(below, inner, &format!("{path}.{name}"))?;
            }
            let mut required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            if let Some(missing) = required.find(|name| !fields.contains_key(*name)) {
                return Err(SpecError::Field { field: format!("{path}.{missing}"), problem: "is missing".to_owned() });
            }
        }
        _ => {}
    }
    Ok(())
}

fn count(count: usize, least: Option<u64>, most: Option<u64>, path: &str) -> Result<(), SpecError> {
    let problem = match (count as u64, least, most) {
        (0, Some(1..), _) => "want at least one".to_owned(),
        (count, _, Some(most)) if count > most => format!("want at most {most}"),
        _ => return Ok(()),
    };
    Err(SpecError::Field { field: path.to_owned(), problem })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(schema: Value, value: Value) -> String {
        validate(&schema, &value, "spec.x").expect_err("refused").to_string()
    }

    #[test]
    fn limits_are_told_in_plain_words() {
        assert_eq!(said(json!({"enum": ["a", "b"]}), json!("c")), "spec.x: want a, b");
        assert_eq!(said(json!({"minLength": 1, "maxLength": 3}), json!("")), "spec.x: want 1 to 3 characters");
        assert_eq!(said(json!({"minimum": 1, "maximum": 30}), json!(31)), "spec.x: want 1 to 30");
        assert_eq!(said(json!({"minItems": 1}), json!([])), "spec.x: want at least one");
        assert_eq!(said(json!({"items": {"maxLength": 1}}), json!(["a", "bb"])), "spec.x[1]: want 0 to 1 characters");
        assert_eq!(said(json!({"properties": {}}), json!({"a": 1})), "spec.x: unknown field a");
        assert_eq!(said(json!({"required": ["a"]}), json!({})), "spec.x.a: is missing");
        assert_eq!(said(json!({"type": "object"}), json!("a")), "spec.x: want the type object");
    }

    #[test]
    fn a_free_form_object_has_no_limits() {
        assert_eq!(validate(&json!({ANY: true, "maxProperties": 0}), &json!({"a": {"b": 1}}), "spec.x"), Ok(()));
    }
}
