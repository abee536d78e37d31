//! Label selectors as JSON.

use serde_json::{Map, Value};

/// A selector without empty parts; if absent, one that selects everything.
pub(super) fn read(selector: Option<&Value>) -> Value {
    let Some(Value::Object(found)) = selector else { return Value::Object(Map::new()) };
    let mut both = Map::new();
    for half in ["matchLabels", "matchExpressions"] {
        let is_empty = |value: &Value| match value {
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => true,
        };
        if let Some(value) = found.get(half).filter(|value| !is_empty(value)) {
            both.insert(half.to_owned(), value.clone());
        }
    }
    Value::Object(both)
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
        let more = json!({"key": "d", "operator": "DoesNotExist"});
        let all = and(both, [more.clone()]);
        assert_eq!(all["matchExpressions"], json!([{"key": "c", "operator": "Exists"}, more]));
        assert_eq!(all["matchLabels"], json!({"a": "b"}));
    }
}
