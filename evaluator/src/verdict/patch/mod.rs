//! From a mutated object to a JSON Patch (RFC 6902) that is known to make it.
//!
//! The API server turns a patch that does not apply into an internal error, even under `failurePolicy: Ignore`. So the
//! patch is applied here first, and a mutation of a field that a policy must not change is refused.
//!
//! Both objects are untrusted, so [`diff`] works on their texts and limits what the patch costs: to make, to send and to apply.

mod diff;
mod text;

use std::borrow::Cow;
use std::time::Instant;

use serde_json::Value;
use serde_json::value::RawValue;

use self::diff::Diff;
use self::text::{Text, unescaped};
use crate::verdict::offload::SMALL;

/// What a mutation changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A Kubernetes object, which must stay the same object.
    Object,
    /// A raw request, which may become anything.
    Raw,
}

/// Why a mutation is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum PatchError {
    /// The request's own object cannot be decoded.
    #[error("the request's object cannot be mutated: it is nested too deep or has a number out of range")]
    Original,
    /// The guest's object cannot be decoded.
    #[error("the mutated object is nested too deep or has a number out of range")]
    Mutated,
    /// The guest's object is a list or a scalar.
    #[error("the mutated object is not an object")]
    NotAnObject,
    /// The guest's object is another object.
    #[error("the mutated object has another {0} than the request's object")]
    AnotherObject(&'static str),
    /// The patch would be too long.
    #[error("the patch to the mutated object is longer than {} bytes", diff::MAX_PATCH)]
    TooLong,
    /// The patch does not lead from the first object to the mutated one.
    #[error("the patch to the mutated object does not lead there")]
    Astray,
    /// The deadline passed before the patch was made.
    #[error("the patch to the mutated object took too long to make")]
    TooLate,
}

/// A mutation that may be sent.
#[derive(Debug)]
pub(crate) struct Change {
    /// The changed object.
    pub object: Box<RawValue>,
    /// The patch from the first object to it, as JSON; none if it is equal to the first one.
    pub patch: Option<String>,
}

/// How a guest changed `current`, which earlier mutations made of `first`; none if it did not. The work is linear in the length of the
/// three texts.
///
/// # Errors
/// When the mutation may not be applied, or the work is not done before `deadline`.
pub(super) fn change(
    first: &RawValue,
    current: &RawValue,
    mutated: Box<RawValue>,
    subject: Subject,
    deadline: Instant,
) -> Result<Option<Change>, PatchError> {
    let Some(patch) = compare(first, current, &mutated, subject, deadline)? else { return Ok(None) };
    if let Some(patch) = &patch {
        leads_there(first, &mutated, patch)?;
    }
    Ok(Some(Change { object: mutated, patch }))
}

/// The patch from the first object to the mutated one. None if the mutated one is equal to the current one; `Some(None)` if it is equal to
/// the first one.
fn compare(
    first: &RawValue,
    current: &RawValue,
    mutated: &RawValue,
    subject: Subject,
    deadline: Instant,
) -> Result<Option<Option<String>>, PatchError> {
    let from = Text::of(first).ok_or(PatchError::Original)?;
    let to = Text::of(mutated).ok_or(PatchError::Mutated)?;
    if subject == Subject::Object {
        same_object(&from, &to)?;
    }
    let diff = Diff::of(&from, &to, deadline)?;
    let is_changed = match first.get() == current.get() {
        true => !diff.is_empty(),
        // The patch leads from the first object to the last, so it does not matter how the current one differs, only whether it does.
        false => !is_same(current, &to, deadline)?,
    };
    Ok(is_changed.then(|| (!diff.is_empty()).then(|| diff.json())))
}

fn is_same(current: &RawValue, mutated: &Text<'_>, deadline: Instant) -> Result<bool, PatchError> {
    // An earlier member made this object, and its change was taken.
    let current = Text::of(current).ok_or(PatchError::Original)?;
    match Diff::of(&current, mutated, deadline) {
        Ok(diff) => Ok(diff.is_empty()),
        Err(PatchError::TooLong) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Checks that a mutated object is still the same object.
fn same_object(first: &Text<'_>, mutated: &Text<'_>) -> Result<(), PatchError> {
    if mutated.first_byte(mutated.root()) != b'{' {
        return Err(PatchError::NotAnObject);
    }
    for (field, keys) in [
        ("apiVersion", &["apiVersion"][..]),
        ("kind", &["kind"]),
        ("metadata.name", &["metadata", "name"]),
        ("metadata.namespace", &["metadata", "namespace"]),
    ] {
        if set(first, keys) != set(mutated, keys) {
            return Err(PatchError::AnotherObject(field));
        }
    }
    Ok(())
}

/// A field that is present and not null, and whether it is a string. It may be absent: an object whose name the API server will generate
/// has no name yet.
fn set<'a>(object: &Text<'a>, keys: &[&str]) -> Option<(bool, Cow<'a, str>)> {
    match object.raw(object.find(keys)?) {
        "null" => None,
        string if string.starts_with('"') => Some((true, unescaped(string))),
        other => Some((false, other.into())),
    }
}

/// Applies a patch as the API server will. Decoded values take forty times the size of their text, so this is done only where the texts
/// are small, as most are; longer patches are made by the same code.
fn leads_there(first: &RawValue, last: &RawValue, patch: &str) -> Result<(), PatchError> {
    if first.get().len() + last.get().len() + patch.len() > SMALL {
        return Ok(());
    }
    let decode = |raw: &RawValue| serde_json::from_str::<Value>(raw.get()).map_err(|_| PatchError::Astray);
    let (mut object, last) = (decode(first)?, decode(last)?);
    let patch: json_patch::Patch = serde_json::from_str(patch).map_err(|_| PatchError::Astray)?;
    json_patch::patch(&mut object, &patch).map_err(|_| PatchError::Astray)?;
    if object == last { Ok(()) } else { Err(PatchError::Astray) }
}

#[cfg(test)]
mod tests;
