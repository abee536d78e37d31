//! Applies a patch that a policy made, within limits of depth, work and memory.

use json_patch::jsonptr::Pointer;
use json_patch::{PatchOperation, patch};
use serde_json::Value;

use super::reply::MAX_DEPTH;

/// Most operations of a patch.
const MAX_OPERATIONS: usize = 1000;
/// Most values that a patch goes over or shifts, all operations together: some hundredths of a second. A thousand operations on a list of a
/// thousand items are within it.
const MAX_WORK: usize = 2_000_000;
/// Most memory that the copies of a patch may add together, in bytes: each could double the value.
const MAX_COPIED: usize = 2 << 20;

/// Why a patch cannot be applied.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PatchError {
    /// It has more operations than any policy needs.
    #[error("the patch has more than {MAX_OPERATIONS} operations")]
    TooLong,
    /// Applying it would take too long.
    #[error("the patch has too many operations for a value of this size")]
    TooMuchWork,
    /// It is not a patch of RFC 6902.
    #[error("it is not a JSON patch")]
    Malformed,
    /// It makes the value too large.
    #[error("the patch copies more than {MAX_COPIED} bytes")]
    TooManyCopies,
    /// It would nest the value too deep to be written.
    #[error("the patch nests the value deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// The deadline passed before the patch was applied.
    #[error("the deadline has passed")]
    TimedOut,
    /// It changes a part that the value does not have, or one of its tests fails.
    #[error("the patch does not fit the value")]
    Mismatch,
}

/// A value after a patch of RFC 6902. `count` gets the number of values that each operation went over or shifted, and may end the work.
///
/// # Errors
/// When the patch does not fit the value, or is too large, and when `count` fails.
pub(crate) fn apply_patch<E: From<PatchError>>(
    mut value: Value,
    operations: &[Value],
    count: impl Fn(usize) -> Result<(), E>,
) -> Result<Value, E> {
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooLong.into());
    }
    let (mut work, mut copied) = (0, 0);
    for operation in operations {
        let before = work;
        // One at a time, so that there are copies of no more than one.
        let operation: PatchOperation =
            serde_json::from_value(with_pointers(operation)).map_err(|_| PatchError::Malformed)?;
        let part = |from: &Pointer| value.pointer(from.as_str()).ok_or(PatchError::Mismatch);
        let added = match &operation {
            PatchOperation::Add(add) => Some(&add.value),
            PatchOperation::Replace(replace) => Some(&replace.value),
            PatchOperation::Copy(copy) => Some(part(&copy.from)?),
            PatchOperation::Move(moved) => Some(part(&moved.from)?),
            PatchOperation::Remove(_) | PatchOperation::Test(_) => None,
        };
        if let Some(added) = added {
            // A value that is too deep must never exist: even dropping it would overflow the stack.
            let left = MAX_DEPTH.checked_sub(operation.path().count());
            let values = left.and_then(|left| values(added, left)).ok_or(PatchError::TooDeep)?;
            work += values;
            if let PatchOperation::Copy(_) = &operation {
                copied += values * size_of::<Value>() + serde_json::to_vec(added).map_or(MAX_COPIED, |text| text.len());
            }
        }
        if let PatchOperation::Move(moved) = &operation {
            work += siblings(&value, &moved.from);
        }
        if copied > MAX_COPIED {
            return Err(PatchError::TooManyCopies.into());
        }
        if work > MAX_WORK {
            return Err(PatchError::TooMuchWork.into());
        }
        patch(&mut value, std::slice::from_ref(&operation)).map_err(|_| PatchError::Mismatch)?;
        // What the operation has shifted. It is counted afterwards, since the first half of a move may change what the path means.
        work += siblings(&value, operation.path());
        count(1 + work - before)?;
    }
    Ok(value)
}

/// The number of values in a value, itself included; none if it has more than `levels` levels.
fn values(value: &Value, levels: usize) -> Option<usize> {
    let parts: &mut dyn Iterator<Item = &Value> = match value {
        Value::Array(list) => &mut list.iter(),
        Value::Object(object) => &mut object.values(),
        _ => return Some(1),
    };
    let levels = levels.checked_sub(1)?;
    let mut sum = 1;
    for part in parts {
        sum += values(part, levels)?;
    }
    Some(sum)
}

/// The length of the list that a path leads into: adding or removing an item shifts those behind it. Objects shift nothing.
fn siblings(value: &Value, path: &Pointer) -> usize {
    let parent = path.split_back().and_then(|(parent, _)| value.pointer(parent.as_str()));
    parent.and_then(Value::as_array).map_or(0, Vec::len)
}

/// An operation with its paths as JSON Pointers: OPA also takes them without the first slash, and as lists.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// With as much time as it takes.
    fn apply_patch(value: Value, operations: &[Value]) -> Result<Value, PatchError> {
        super::apply_patch(value, operations, |_| Ok(()))
    }

    /// Lists in lists, of so many levels.
    fn nested(levels: usize) -> Value {
        (1..levels).fold(json!([]), |inner, _| json!([inner]))
    }

    fn path(levels: usize) -> String {
        "/0".repeat(levels)
    }

    /// As many operations as a patch may have.
    fn repeated(operations: &[Value]) -> Vec<Value> {
        operations.iter().cycle().take(MAX_OPERATIONS).cloned().collect()
    }

    #[test]
    fn a_value_has_as_many_levels_as_a_reply() {
        let put = |levels| {
            let operation = json!({"op": "add", "path": path(100), "value": nested(levels)});
            apply_patch(nested(100), &[operation]).err()
        };
        assert_eq!((put(MAX_DEPTH - 100), put(MAX_DEPTH - 99)), (None, Some(PatchError::TooDeep)));
        let far = json!({"op": "add", "path": path(100_000), "value": 0});
        assert_eq!(apply_patch(nested(1), &[far]), Err(PatchError::TooDeep));
        for op in ["move", "copy"] {
            let operation = json!({"op": op, "from": "/a", "path": format!("/b{}", path(70))});
            let value = |levels| json!({"a": nested(levels), "b": nested(70)});
            assert!(apply_patch(value(MAX_DEPTH - 71), std::slice::from_ref(&operation)).is_ok(), "{op}");
            assert_eq!(apply_patch(value(MAX_DEPTH - 70), &[operation]), Err(PatchError::TooDeep), "{op}");
        }
    }

    /// Each round would add a hundred levels.
    #[test]
    fn moves_do_not_nest_without_end() {
        let round = [
            json!({"op": "add", "path": "/b", "value": nested(100)}),
            json!({"op": "move", "from": "/a", "path": format!("/b{}", path(100))}),
            json!({"op": "move", "from": "/b", "path": "/a"}),
        ];
        assert_eq!(apply_patch(json!({"a": 0}), &repeated(&round)), Err(PatchError::TooDeep));
    }

    #[test]
    fn what_shifts_a_long_list_again_and_again_is_refused() {
        let list = || json!(vec![0; 100_000]);
        let removals = |first: Value| {
            let mut operations = vec![json!({"op": "remove", "path": "/0"}); 999];
            operations.insert(0, first);
            operations
        };
        // The list is only there after the first operation.
        let late = removals(json!({"op": "add", "path": "", "value": list()}));
        assert_eq!(apply_patch(json!([]), &late), Err(PatchError::TooMuchWork));
        // Moving the first item away makes the path lead into the long list.
        let there = json!({"op": "move", "from": "/0", "path": "/1/0"});
        let back = json!({"op": "move", "from": "/1/0", "path": "/0"});
        let moved = apply_patch(json!([1, [], list()]), std::slice::from_ref(&there)).expect("a value");
        assert_eq!((&moved[1][0], &moved[1][1]), (&json!(1), &json!(0)));
        let again = repeated(&[there, back]);
        assert_eq!(apply_patch(json!([1, [], list()]), &again), Err(PatchError::TooMuchWork));
        // Moving a large value costs that its depth is looked at.
        let moves =
            [json!({"op": "move", "from": "/a", "path": "/b"}), json!({"op": "move", "from": "/b", "path": "/a"})];
        assert_eq!(apply_patch(json!({"a": list()}), &repeated(&moves)), Err(PatchError::TooMuchWork));
        assert_eq!(apply_patch(json!([]), &removals(json!({}))[..2]), Err(PatchError::Malformed));
    }

    #[test]
    fn a_thousand_operations_on_a_list_of_a_thousand_items_are_applied() {
        let operations = vec![json!({"op": "remove", "path": "/0"}); MAX_OPERATIONS];
        assert_eq!(apply_patch(json!(vec![0; 1000]), &operations), Ok(json!([])));
        assert_eq!(apply_patch(json!([]), &vec![json!({}); MAX_OPERATIONS + 1]), Err(PatchError::TooLong));
    }

    #[test]
    fn each_operation_is_counted_and_may_be_the_last() {
        let counted = std::cell::RefCell::new(Vec::new());
        let count = |values| {
            counted.borrow_mut().push(values);
            if counted.borrow().len() < 2 { Ok(()) } else { Err(PatchError::TimedOut) }
        };
        let operations = vec![json!({"op": "remove", "path": "/0"}); 3];
        assert_eq!(super::apply_patch(json!([1, 2, 3]), &operations, count), Err(PatchError::TimedOut));
        assert_eq!(*counted.borrow(), [3, 2], "the items behind, and the operation itself");
    }

    #[test]
    fn copies_count_what_they_take_in_memory() {
        let copy = [json!({"op": "copy", "from": "/a", "path": "/b"})];
        let patched = |items: usize| apply_patch(json!({"a": vec![0; items]}), &copy).err();
        assert_eq!((patched(20_000), patched(40_000)), (None, Some(PatchError::TooManyCopies)));
    }
}
