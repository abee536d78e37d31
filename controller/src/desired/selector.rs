//! Label selectors as JSON.

use serde_json::{Map, Value};

/// A selector without empty parts, which an API server does not store either; if absent, one that selects everything.
pub(super) fn read(selector: Option<&Value>) -> Value {
    let Some(Value::Object(found)) = selector else { return Value::Object(Map::new()) };
    let mut both = Map::new();
    for half in ["matchLabels", "matchExpressions"] {
        if let Some(value) = found.get(half).filter(|value| !is_empty(value)) {
            both.insert(half.to_owned(), value.clone());
        }
    }
    let expressions = both.get_mut("matchExpressions").and_then(Value::as_array_mut).into_iter().flatten();
    for expression in expressions.filter_map(Value::as_object_mut) {
        expression.retain(|field, value| field != "values" || !is_empty(value));
    }
    Value::Object(both)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => true,
    }
}

/// A selector that also requires these expressions.
pub(super) fn and(selector: Value, expressions: impl IntoIterator<Item = Value>) -> Value {
    let Value::Object(mut both) = selector else { return selector };
    let more = both.entry("matchExpressions").or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(more) = more {
        more.extend(expressions);
    }
    Value::Object(both)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_halves_are_carried() {
        let both = json!({
            "matchLabels": {"a": "b"},
            "matchExpressions": [{"key": "c", "operator": "Exists"}],
        });
        assert_eq!(read(Some(&both)), both);
        assert_eq!(read(None), json!({}));
        assert_eq!(read(Some(&json!({"matchLabels": {}, "matchExpressions": []}))), json!({}));
        let without = json!({"matchExpressions": [{"key": "c", "operator": "Exists", "values": []}]});
        assert_eq!(read(Some(&without)), json!({"matchExpressions": [{"key": "c", "operator": "Exists"}]}));
        let more = json!({"key": "d", "operator": "DoesNotExist"});
        let all = and(both, [more.clone()]);
        assert_eq!(all["matchExpressions"], json!([{"key": "c", "operator": "Exists"}, more]));
        assert_eq!(all["matchLabels"], json!({"a": "b"}));
    }
}
