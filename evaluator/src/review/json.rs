//! Checks of a JSON text that need no decoding: its type, its depth, and that it is an object where one is required.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
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

/// Bytes of a decoded value, without what it points to.
const VALUE: usize = size_of::<Value>();
/// Bytes of a field of a decoded object: its hash, its name and its value.
const FIELD: usize = size_of::<u64>() + size_of::<String>() + VALUE;
/// What the allocator adds to two pieces of memory, in bytes, and what the smallest table of an object's names takes.
const PIECES: usize = 64;

/// The most bytes that a JSON text takes when it is decoded and copied once. A list begins with room for four items and an object for three
/// fields, and both then double; a copy of a list has no room to spare. What is counted inside of strings covers those that are themselves
/// decoded, as JSON or as YAML.
pub(crate) fn decoded(text: &[u8]) -> u64 {
    let next = text.iter().skip(1).map(Some).chain([None]);
    let parts = text.iter().zip(next).map(|(byte, next)| match byte {
        b'[' => 5 * VALUE + PIECES,
        // An item of a list in YAML, which may be a list.
        b'-' if matches!(next, None | Some(b' ' | b'\\')) => 5 * VALUE + PIECES,
        b'{' => 6 * FIELD + 2 * PIECES,
        b',' => 4 * VALUE,
        b':' => 3 * FIELD,
        _ => 0,
    });
    // The value itself, and strings by their length, are there twice.
    let itself = 2 * VALUE + PIECES + 3 * text.len();
    u64::try_from(parts.sum::<usize>().saturating_add(itself)).unwrap_or(u64::MAX)
}

/// The same for a field of an object.
pub(crate) fn decoded_field(name: &str, text: &[u8]) -> u64 {
    let field = 3 * FIELD + 4 * VALUE + 3 * name.len();
    decoded(text).saturating_add(u64::try_from(field).unwrap_or(u64::MAX))
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

/// Bytes that a value and all that it points to take, with what the allocator adds.
#[cfg(test)]
pub(crate) fn taken(value: &Value) -> usize {
    let piece = |bytes: usize| if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16).max(32) };
    let below = match value {
        Value::String(text) => piece(text.capacity()),
        Value::Array(list) => {
            piece(list.capacity() * VALUE) + list.iter().map(|item| taken(item) - VALUE).sum::<usize>()
        }
        Value::Object(fields) if !fields.is_empty() => {
            // The table of names is a power of two and at most seven eighths full; there is a place for each that fits into it.
            let buckets = if fields.len() < 4 { 4 } else { (fields.len() * 8).div_ceil(7).next_power_of_two() };
            let places = if buckets == 4 { 3 } else { buckets / 8 * 7 };
            let own = piece(places * FIELD) + piece(buckets * (size_of::<usize>() + 1) + 16);
            own + fields.iter().map(|(name, value)| piece(name.capacity()) + taken(value) - VALUE).sum::<usize>()
        }
        _ => 0,
    };
    VALUE + below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_takes_more_than_is_counted_for_it() {
        let list = |item: &str, count: usize| format!("[{}]", vec![item; count].join(","));
        let nested = |open: &str, inner: &str, close: &str| open.repeat(120) + inner + &close.repeat(120);
        let fields = |count: usize| {
            let fields: Vec<String> = (0..count).map(|number| format!("\"{number:x}\":0")).collect();
            format!("{{{}}}", fields.join(","))
        };
        let mut texts = vec!["0".to_owned(), "[]".to_owned(), "{}".to_owned(), format!("\"{}\"", "x".repeat(1000))];
        for item in
            ["0", "[]", "{}", "[0]", "[[0]]", "[0,0,0,0,0]", "\"\"", "\"a\"", "{\"\":0}", "{\"\":{\"\":[0]}}", "-1.5e3"]
        {
            texts.extend([1, 2, 4, 5, 9, 1000, 1025, 4097].map(|count| list(item, count)));
        }
        texts.extend([1, 3, 4, 7, 8, 14, 15, 28, 29, 1000, 1793].map(fields));
        for (open, close) in [("[", "]"), ("{\"\":", "}"), ("[0,", "]"), ("[[],", "]"), ("[{\"a\":", "}]")] {
            let deep =
                if open.len() > 4 { open.repeat(60) + "0" + &close.repeat(60) } else { nested(open, "0", close) };
            texts.extend([list(&deep, 50), deep]);
        }
        for text in texts {
            let value: Value = serde_json::from_str(&text).expect("JSON");
            let (taken, counted) = (text.len() + taken(&value) + taken(&value.clone()), decoded(text.as_bytes()));
            assert!(taken as u64 <= counted, "{taken} > {counted}: {}", &text[..text.len().min(80)]);
        }
    }

    #[test]
    fn what_policies_usually_see_counts_for_little_more_than_it_takes() {
        let pod = serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web-5d8f7c9b6d-x2x7k", "namespace": "shop", "labels": {"app.kubernetes.io/name": "web"}},
            "spec": {"containers": [{
                "name": "web", "image": "registry.example.com/shop/web:1.27.3", "ports": [{"containerPort": 8080}],
                "resources": {"limits": {"cpu": "500m", "memory": "256Mi"}, "requests": {"cpu": "100m", "memory": "128Mi"}},
                "securityContext": {"runAsNonRoot": true, "readOnlyRootFilesystem": true}
            }]}
        });
        let text = pod.to_string();
        let (counted, twice) = (decoded(text.as_bytes()), 2 * taken(&pod) as u64);
        assert!(
            twice <= counted && counted < 3 * twice,
            "{counted} bytes for {} of text, which take {twice}",
            text.len()
        );
        // A list of small numbers, as dense as JSON can be.
        assert!(decoded("0,".repeat(1 << 20).as_bytes()) < 320 << 20);
    }

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
