//! From a mutated object to a JSON Patch that is known to lead there (RFC 6902).
//!
//! The API server turns a patch that does not apply into an internal error, even under `failurePolicy: Ignore`. So the
//! patch is applied here first, and a mutation of what a policy must not touch is refused.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use serde_json::value::RawValue;

/// What a mutation is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A Kubernetes object, which must stay the same object.
    Object,
    /// A raw request, which may become anything.
    Raw,
}

/// A mutation that is not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
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
    /// The patch does not lead from the one to the other.
    #[error("the patch to the mutated object does not lead there")]
    Astray,
}

/// The request's object, decoded.
///
/// # Errors
/// [`PatchError::Original`].
pub fn original(object: &RawValue) -> Result<Value, PatchError> {
    serde_json::from_str(object.get()).map_err(|_| PatchError::Original)
}

/// What a guest made of `current`; nothing when it is the same.
///
/// # Errors
/// When the mutation may not be applied.
pub fn change(current: &Value, mutated: &RawValue, subject: Subject) -> Result<Option<Value>, PatchError> {
    let mutated: Value = serde_json::from_str(mutated.get()).map_err(|_| PatchError::Mutated)?;
    if subject == Subject::Object {
        if !mutated.is_object() {
            return Err(PatchError::NotAnObject);
        }
        for (field, pointer) in [
            ("apiVersion", "/apiVersion"),
            ("kind", "/kind"),
            ("metadata.name", "/metadata/name"),
            ("metadata.namespace", "/metadata/namespace"),
        ] {
            if set(current, pointer) != set(&mutated, pointer) {
                return Err(PatchError::AnotherObject(field));
            }
        }
    }
    Ok((mutated != *current).then_some(mutated))
}

/// A field that is there and not null; an object whose name the API server will make has none.
fn set<'v>(object: &'v Value, pointer: &str) -> Option<&'v Value> {
    object.pointer(pointer).filter(|value| !value.is_null())
}

/// The patch that leads from `first` to `last`, in base64.
///
/// # Errors
/// [`PatchError::Astray`], when applying it gives something else.
pub fn patch(first: &Value, last: &Value) -> Result<String, PatchError> {
    let patch = json_patch::diff(first, last);
    let mut applied = first.clone();
    json_patch::patch(&mut applied, &patch).map_err(|_| PatchError::Astray)?;
    if applied != *last {
        return Err(PatchError::Astray);
    }
    serde_json::to_vec(&patch).map(|json| STANDARD.encode(json)).map_err(|_| PatchError::Astray)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn raw(value: &Value) -> Box<RawValue> {
        serde_json::value::to_raw_value(value).expect("serialises")
    }

    fn changed(current: &Value, mutated: &Value) -> Result<Option<Value>, PatchError> {
        change(current, &raw(mutated), Subject::Object)
    }

    fn operations(first: &Value, last: &Value) -> Value {
        let json = STANDARD.decode(patch(first, last).expect("a patch")).expect("base64");
        serde_json::from_slice(&json).expect("JSON")
    }

    fn pod() -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "b"}, "spec": {"x": 1}})
    }

    fn pod_with(pointer: &str, value: Value) -> Value {
        let mut pod = pod();
        *pod.pointer_mut(pointer).expect("is there") = value;
        pod
    }

    #[test]
    fn the_same_object_is_no_change() {
        assert_eq!(changed(&pod(), &pod()), Ok(None));
    }

    #[test]
    fn a_change_becomes_a_patch() {
        let mutated = pod_with("/spec", json!({"x": 2, "a/b~c": null}));
        assert_eq!(changed(&pod(), &mutated), Ok(Some(mutated.clone())));
        assert_eq!(
            operations(&pod(), &mutated),
            json!([
                {"op": "replace", "path": "/spec/x", "value": 2},
                {"op": "add", "path": "/spec/a~1b~0c", "value": null},
            ])
        );
    }

    #[test]
    fn another_object_is_refused() {
        for (pointer, field) in [
            ("/apiVersion", "apiVersion"),
            ("/kind", "kind"),
            ("/metadata/name", "metadata.name"),
            ("/metadata/namespace", "metadata.namespace"),
        ] {
            for value in [json!("other"), Value::Null, json!(1)] {
                assert_eq!(changed(&pod(), &pod_with(pointer, value)), Err(PatchError::AnotherObject(field)));
            }
        }
        for value in [json!([]), json!("text"), json!(1)] {
            assert_eq!(changed(&pod(), &value), Err(PatchError::NotAnObject));
        }
    }

    #[test]
    fn an_object_without_a_name_stays_without() {
        let mut unnamed = pod();
        unnamed["metadata"] = json!({"generateName": "a-"});
        let mut labelled = unnamed.clone();
        labelled["metadata"]["labels"] = json!({"a": "b"});
        assert_eq!(changed(&unnamed, &labelled), Ok(Some(labelled)));
        assert_eq!(changed(&unnamed, &pod()), Err(PatchError::AnotherObject("metadata.name")));
    }

    #[test]
    fn a_raw_request_may_become_anything() {
        let mutated = json!([1]);
        assert_eq!(change(&json!({"a": 1}), &raw(&mutated), Subject::Raw), Ok(Some(mutated)));
    }

    #[test]
    fn large_integers_stay_exact() {
        let first: Value = serde_json::from_str(r#"{"a":9007199254740993,"b":1}"#).expect("JSON");
        let last: Value = serde_json::from_str(r#"{"a":9007199254740992,"b":18446744073709551615}"#).expect("JSON");
        assert_eq!(
            operations(&first, &last).to_string(),
            concat!(
                r#"[{"op":"replace","path":"/a","value":9007199254740992},"#,
                r#"{"op":"replace","path":"/b","value":18446744073709551615}]"#
            )
        );
    }

    #[test]
    fn what_is_too_deep_is_refused() {
        let deep = RawValue::from_string(format!("{}{}", "[".repeat(500), "]".repeat(500))).expect("JSON");
        assert_eq!(original(&deep), Err(PatchError::Original));
        assert_eq!(change(&pod(), &deep, Subject::Object), Err(PatchError::Mutated));
    }

    /// A small generator (xorshift), so that a failing seed can be run again.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }

        fn value(&mut self, depth: u32) -> Value {
            let keys = ["", "a", "b", "a/b", "~", "~1", "0", "-", "ä"];
            match self.below(if depth == 0 { 5 } else { 9 }) {
                0 => Value::Null,
                1 => json!(self.below(2) == 0),
                2 => json!(u64::MAX - self.below(3)),
                3 => json!(f64::from(u32::try_from(self.below(7)).expect("small")) / 4.0),
                4 => json!(keys[usize::try_from(self.below(9)).expect("small")]),
                5 | 6 => (0..self.below(5)).map(|_| self.value(depth - 1)).collect(),
                _ => Value::Object(
                    (0..self.below(5))
                        .map(|_| {
                            let key = keys[usize::try_from(self.below(9)).expect("small")];
                            (key.to_owned(), self.value(depth - 1))
                        })
                        .collect(),
                ),
            }
        }

        /// `value` with some parts replaced.
        fn edited(&mut self, value: &Value) -> Value {
            match value {
                _ if self.below(6) == 0 => self.value(2),
                Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), self.edited(value))).collect(),
                Value::Array(items) => items.iter().map(|item| self.edited(item)).collect(),
                other => other.clone(),
            }
        }
    }

    #[test]
    fn every_patch_leads_to_its_object() {
        for seed in 1..3000_u64 {
            let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let first = random.value(4);
            let last = if seed % 3 == 0 { random.value(4) } else { random.edited(&first) };
            let patch: json_patch::Patch = serde_json::from_value(operations(&first, &last))
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let mut applied = first.clone();
            json_patch::patch(&mut applied, &patch).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert_eq!(applied, last, "seed {seed}");
        }
    }
}
