//! Objects and lists: patches, subsets, unions.

use json_patch::{Patch, PatchOperation};
use serde_json::{Map, Value};

use super::{Arguments, Outcome};

/// Most operations of a patch.
const MAX_OPERATIONS: usize = 1000;
/// Most bytes of the value, times operations: each may go over all of it.
const MAX_WORK: usize = 200 << 20;
/// Most bytes that the copies of a patch may have, together: each could double what is there.
const MAX_COPIED: usize = 2 << 20;

pub(super) fn patch(arguments: &Arguments) -> Outcome {
    apply_patch(arguments.value(0)?.clone(), arguments.list(1)?)
}

/// A value after a patch of RFC 6902.
///
/// # Errors
/// When the patch does not fit the value, or is too large.
pub(crate) fn apply_patch(mut value: Value, operations: &[Value]) -> Outcome {
    if operations.len() > MAX_OPERATIONS {
        return Err(format!("the patch has more than {MAX_OPERATIONS} operations"));
    }
    let size = serde_json::to_vec(&value).map_or(MAX_WORK, |text| text.len());
    if size.saturating_mul(operations.len()) > MAX_WORK {
        return Err("the patch has too many operations for a value of this size".to_owned());
    }
    let patch: Patch = serde_json::from_value(Value::Array(operations.iter().map(with_pointers).collect()))
        .map_err(|_| "it is no JSON patch".to_owned())?;
    let mut copied = 0;
    for operation in patch.0 {
        if let PatchOperation::Copy(copy) = &operation
            && let Some(source) = value.pointer(copy.from.as_str())
        {
            copied += serde_json::to_vec(source).map_or(MAX_COPIED, |text| text.len());
            if copied > MAX_COPIED {
                return Err(format!("the patch copies more than {MAX_COPIED} bytes"));
            }
        }
        json_patch::patch(&mut value, &[operation]).map_err(|_| "the patch does not fit the value".to_owned())?;
    }
    Ok(value)
}

/// OPA takes paths without the first slash, and as lists.
fn with_pointers(operation: &Value) -> Value {
    let mut operation = operation.clone();
    for name in ["path", "from"] {
        let Some(path) = operation.get_mut(name) else { continue };
        let pointer = match &*path {
            Value::String(text) if text.is_empty() || text.starts_with('/') => continue,
            Value::String(text) => format!("/{text}"),
            Value::Array(steps) => steps.iter().map(|step| format!("/{}", escaped(step))).collect(),
            _ => continue,
        };
        *path = pointer.into();
    }
    operation
}

fn escaped(step: &Value) -> String {
    let text = step.as_str().map_or_else(|| step.to_string(), str::to_owned);
    text.replace('~', "~0").replace('/', "~1")
}

/// Whether all of the second is in the first, at every depth.
pub(super) fn subset(arguments: &Arguments) -> Outcome {
    Ok(has(arguments.value(0)?, arguments.value(1)?).into())
}

fn has(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(name, value)| whole.get(name).is_some_and(|there| has(there, value)))
        }
        // Lists are compared as a run of neighbours.
        (Value::Array(whole), Value::Array(part)) => {
            part.is_empty() || whole.windows(part.len()).any(|window| window == part)
        }
        (whole, part) => whole == part,
    }
}

/// All objects in one; where they differ, the later one counts.
pub(super) fn union_n(arguments: &Arguments) -> Outcome {
    let mut all = Value::Object(Map::new());
    for object in arguments.list(0)? {
        if !object.is_object() {
            return Err("argument 1 is no list of objects".to_owned());
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

/// Nothing of this program's environment or configuration is for policies.
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
    fn subsets_and_unions() {
        let is = |whole, part| run("object.subset", json!([whole, part])) == Ok(json!(true));
        assert!(is(json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": 1}})));
        assert!(!is(json!({"a": {"b": 1}}), json!({"a": {"b": 2}})));
        assert!(is(json!([1, 2, 3]), json!([2, 3])) && !is(json!([1, 2, 3]), json!([1, 3])));
        let union = run("object.union_n", json!([[{"a": 1, "b": {"c": 1}}, {"b": {"d": 2}}, {"a": 3}]]));
        assert_eq!(union, Ok(json!({"a": 3, "b": {"c": 1, "d": 2}})));
    }
}
