//! Applies a patch that a policy made. The sizes of value and patch limit what that may cost.

use json_patch::{Patch, PatchOperation};
use serde_json::Value;

/// Most operations of a patch.
const MAX_OPERATIONS: usize = 1000;
/// Largest product of the value's bytes and the operations: each operation may go over the whole value.
const MAX_WORK: usize = 200 << 20;
/// Most bytes that the copies of a patch may add together: each could double the value.
const MAX_COPIED: usize = 2 << 20;

/// Why a patch cannot be applied.
#[derive(Debug, thiserror::Error)]
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
    /// It changes a part that the value does not have, or one of its tests fails.
    #[error("the patch does not fit the value")]
    Mismatch,
}

/// A value after a patch of RFC 6902.
///
/// # Errors
/// When the patch does not fit the value, or is too large.
pub(crate) fn apply_patch(mut value: Value, operations: &[Value]) -> Result<Value, PatchError> {
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooLong);
    }
    let size = serde_json::to_vec(&value).map_or(MAX_WORK, |text| text.len());
    if size.saturating_mul(operations.len()) > MAX_WORK {
        return Err(PatchError::TooMuchWork);
    }
    let patch: Patch = serde_json::from_value(Value::Array(operations.iter().map(with_pointers).collect()))
        .map_err(|_| PatchError::Malformed)?;
    let mut copied = 0;
    for operation in patch.0 {
        if let PatchOperation::Copy(copy) = &operation
            && let Some(source) = value.pointer(copy.from.as_str())
        {
            copied += serde_json::to_vec(source).map_or(MAX_COPIED, |text| text.len());
            if copied > MAX_COPIED {
                return Err(PatchError::TooManyCopies);
            }
        }
        json_patch::patch(&mut value, &[operation]).map_err(|_| PatchError::Mismatch)?;
    }
    Ok(value)
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
