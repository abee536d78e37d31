//! Objects and lists: patches, unions.

use serde_json::{Map, Value};

use super::{Arguments, BuiltinError, Outcome};
use crate::verdict::apply_patch;

/// What it takes to go over one value or to shift it, in units of work.
const TOUCHED: usize = 5;

pub(super) fn patch(arguments: &Arguments) -> Outcome {
    apply_patch(arguments.value(0)?.clone(), arguments.list(1)?, |values| arguments.work().count(values * TOUCHED))
}

/// All objects in one; where they differ, the later one counts.
pub(super) fn union_n(arguments: &Arguments) -> Outcome {
    let mut all = Value::Object(Map::new());
    for object in arguments.list(0)? {
        if !object.is_object() {
            return Err(BuiltinError::Form("argument 1 is not a list of objects"));
        }
        unite(&mut all, object);
    }
    Ok(all)
}

fn unite(all: &mut Value, more: &Value) {
    match (all, more) {
        (Value::Object(all), Value::Object(more)) => {
            for (name, value) in more {
                match all.get_mut(name) {
                    Some(there) => unite(there, value),
                    None => drop(all.insert(name.clone(), value.clone())),
                }
            }
        }
        (all, more) => *all = more.clone(),
    }
}

/// An empty object: policies get nothing of this program's environment or configuration.
pub(super) fn runtime(_: &Arguments) -> Outcome {
    Ok(Value::Object(Map::new()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::run;

    #[test]
    fn patches() {
        let patched = |patch| run("json.patch", json!([{"a": {"b": 1}, "l": [1, 2]}, patch]));
        let expected = Ok(json!({"a": {"b": 1, "c": 2}, "l": [1, 2]}));
        assert_eq!(patched(json!([{"op": "add", "path": "/a/c", "value": 2}])), expected);
        assert_eq!(patched(json!([{"op": "add", "path": "a/c", "value": 2}])), expected);
        assert_eq!(patched(json!([{"op": "add", "path": ["a", "c"], "value": 2}])), expected);
        assert_eq!(patched(json!([{"op": "remove", "path": ["l", 0]}])), Ok(json!({"a": {"b": 1}, "l": [2]})));
        assert!(patched(json!([{"op": "remove", "path": "/x"}])).is_err());
        assert!(patched(json!([{"op": "shout", "path": "/x"}])).is_err());
    }

    /// Each copy would double the value.
    #[test]
    fn a_patch_that_grows_without_end_is_refused() {
        let copies: Vec<_> =
            (0..60).map(|number| json!({"op": "copy", "from": "", "path": format!("/{number}")})).collect();
        let error = run("json.patch", json!([{"a": "x"}, copies])).expect_err("too large");
        assert!(error.contains("copies more than"), "{error}");
    }

    #[test]
    fn unions() {
        let union = run("object.union_n", json!([[{"a": 1, "b": {"c": 1}}, {"b": {"d": 2}}, {"a": 3}]]));
        assert_eq!(union, Ok(json!({"a": 3, "b": {"c": 1, "d": 2}})));
    }
}
