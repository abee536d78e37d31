//! Objects of the API as JSON.

use serde_json::Value;

/// Merges the fields of `patch` into `object`: objects are merged, everything else is replaced, null removes.
pub(crate) fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(serde_json::Map::new());
    }
    let target = object.as_object_mut().expect("it is an object");
    for (name, value) in fields {
        if value.is_null() {
            target.remove(name);
        } else {
            merge(target.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

/// The objects of a list.
pub(crate) fn items(list: Value) -> Vec<Value> {
    match list {
        Value::Object(mut list) => match list.remove("items") {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_joined_replaced_and_removed() {
        let mut object = json!({ "a": { "b": 1, "c": 2 }, "d": [1] });
        merge(&mut object, &json!({ "a": { "b": null, "e": 3 }, "d": [2] }));
        assert_eq!(object, json!({ "a": { "c": 2, "e": 3 }, "d": [2] }));
    }
}
