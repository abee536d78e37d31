//! The arguments of a builtin, taken by place and type.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{BuiltinError, Once, Work};

/// As many arguments as the module gave; the builtin may expect more or fewer.
pub(in super::super) struct Arguments {
    values: Vec<Value>,
    once: Once,
    work: Work,
}

impl Arguments {
    pub(in super::super) fn new(values: Vec<Value>, once: Once, work: Work) -> Self {
        Self { values, once, work }
    }

    /// What the builtin may do with them.
    pub(super) fn work(&self) -> &Work {
        &self.work
    }

    /// A number that is the same for all builtins of one call.
    pub(super) fn seed(&self) -> u64 {
        self.once.seed
    }

    /// The time, which is the same for all builtins of one call.
    pub(super) fn now(&self) -> Timestamp {
        self.once.now
    }

    pub(super) fn value(&self, place: usize) -> Result<&Value, BuiltinError> {
        self.values.get(place).ok_or(BuiltinError::Missing(place + 1))
    }

    pub(super) fn text(&self, place: usize) -> Result<&str, BuiltinError> {
        self.value(place)?.as_str().ok_or_else(|| is_no("string", place))
    }

    pub(super) fn integer(&self, place: usize) -> Result<i64, BuiltinError> {
        integer(self.value(place)?).ok_or_else(|| is_no("whole number", place))
    }

    pub(super) fn list(&self, place: usize) -> Result<&[Value], BuiltinError> {
        self.value(place)?.as_array().map(Vec::as_slice).ok_or_else(|| is_no("list", place))
    }

    pub(super) fn object(&self, place: usize) -> Result<&Map<String, Value>, BuiltinError> {
        self.value(place)?.as_object().ok_or_else(|| is_no("object", place))
    }

    /// A text, or a list of texts.
    pub(super) fn texts(&self, place: usize) -> Result<Vec<&str>, BuiltinError> {
        match self.value(place)? {
            Value::String(text) => Ok(vec![text]),
            Value::Array(list) => {
                list.iter().map(|item| item.as_str().ok_or_else(|| is_no("list of strings", place))).collect()
            }
            _ => Err(is_no("string or list of strings", place)),
        }
    }
}

/// A whole number, also where it is written like `1.0`.
pub(super) fn integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let float = value.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 9e15)?;
        // Exact: the value is whole and within 2^53.
        #[expect(clippy::cast_possible_truncation, reason = "checked above")]
        Some(float as i64)
    })
}

pub(super) fn is_no(expected: &'static str, place: usize) -> BuiltinError {
    BuiltinError::Type { number: place + 1, expected }
}
