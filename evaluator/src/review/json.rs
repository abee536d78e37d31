//! Checks of a JSON text that need no decoding: its type, its depth, and that it is an object where one is required.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Decodes objects only. Code that serde derives also accepts a list in place of an object, which the API server does not.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(Fields(PhantomData))
    }
}

/// The type of a JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    String,
    Object,
    List,
    Bool,
    Number,
}

impl Type {
    /// The type, by the first character; none for null.
    pub(crate) fn of(value: &RawValue) -> Option<Self> {
        match value.get().as_bytes().first()? {
            b'"' => Some(Self::String),
            b'{' => Some(Self::Object),
            b'[' => Some(Self::List),
            b't' | b'f' => Some(Self::Bool),
            b'n' => None,
            _ => Some(Self::Number),
        }
    }

    /// The name of the type, with its article.
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::String => "a string",
            Self::Object => "an object",
            Self::List => "a list",
            Self::Bool => "true or false",
            Self::Number => "a number",
        }
    }
}

/// Whether a JSON text is nested deeper than `limit`. Skipping a value costs no stack, but decoding it does.
pub(crate) fn is_deeper(text: &[u8], limit: usize) -> bool {
    // The number of openings bounds the depth and is counted many bytes at a time.
    let openings = text.iter().filter(|b| matches!(b, b'{' | b'[')).count();
    openings > limit && depth(text) > limit
}

/// The deepest nesting of a JSON text.
fn depth(text: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in text {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_brackets_outside_of_strings_nest() {
        for (text, expected) in
            [("1", 0), ("[[],[[]]]", 3), (r#"{"[[[":"]{\"}"#, 1), (r#"{"a\\":[1]}"#, 2), ("]]][", 1)]
        {
            assert_eq!(depth(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn many_small_lists_are_not_deep() {
        assert!(!is_deeper("[],".repeat(5000).as_bytes(), 10));
        assert!(is_deeper("[".repeat(11).as_bytes(), 10));
    }

    #[test]
    fn a_list_is_no_object() {
        #[derive(serde::Deserialize)]
        struct One {
            a: u8,
        }
        assert_eq!(serde_json::from_str::<Object<One>>(r#"{"a":1}"#).map(|one| one.0.a).ok(), Some(1));
        assert!(serde_json::from_str::<Object<One>>("[1]").is_err());
    }
}
