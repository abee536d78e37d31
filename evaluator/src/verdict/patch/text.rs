//! Finds values in a JSON text without building a tree of it, which may take forty times the memory of the text.
//!
//! Only the end of each object and list is noted: eight bytes each, in all at most four times the size of the text. So only stepping over
//! a string or a number takes time in proportion to its length.

use std::borrow::Cow;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// A text that was checked, with an index.
pub(super) struct Text<'a> {
    text: &'a str,
    containers: Vec<Container>,
}

/// An object or a list.
#[derive(Clone, Copy)]
struct Container {
    /// The position after its last byte.
    end: u32,
    /// The first container after it.
    next: u32,
}

/// The position of a value: its first byte, and the first container from there on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) at: u32,
    container: u32,
}

impl<'a> Text<'a> {
    /// Checks a text as strictly as a decoder does, and indexes it. None where it does not pass, for instance because it is nested too deep or
    /// has a number out of range or half of a surrogate pair.
    pub(super) fn of(raw: &'a RawValue) -> Option<Self> {
        let text = raw.get();
        u32::try_from(text.len()).ok()?;
        serde_json::from_str::<Checked>(text).ok()?;
        let openings = text.bytes().filter(|byte| matches!(byte, b'{' | b'[')).count();
        let (mut containers, mut open) = (Vec::with_capacity(openings), Vec::new());
        let mut at = 0;
        while let Some(byte) = text.as_bytes().get(at) {
            match byte {
                b'"' => {
                    at = string_end(text, at);
                    continue;
                }
                b'{' | b'[' => {
                    open.push(containers.len());
                    containers.push(Container { end: 0, next: 0 });
                }
                b'}' | b']' => {
                    let container = open.pop().expect("brackets of JSON are in pairs");
                    containers[container] = Container { end: short(at + 1), next: short(containers.len()) };
                }
                _ => {}
            }
            at += 1;
        }
        Some(Self { text, containers })
    }

    /// The whole text.
    pub(super) fn root(&self) -> Position {
        Position { at: 0, container: 0 }
    }

    /// The first byte of a value, which tells its type.
    pub(super) fn first_byte(&self, place: Position) -> u8 {
        self.text.as_bytes()[long(place.at)]
    }

    /// A value as it is written.
    pub(super) fn raw(&self, place: Position) -> &'a str {
        &self.text[long(place.at)..long(self.after(place).at)]
    }

    /// The values of a list.
    pub(super) fn items(&self, list: Position) -> impl Iterator<Item = Position> {
        let mut next = inside(list);
        std::iter::from_fn(move || {
            next.at = self.skip(next.at);
            let place = (self.first_byte(next) != b']').then_some(next)?;
            next = self.after(place);
            Some(place)
        })
    }

    /// The members of an object: where each key begins, and its value.
    pub(super) fn members(&self, object: Position) -> impl Iterator<Item = (u32, Position)> {
        let mut next = inside(object);
        std::iter::from_fn(move || {
            next.at = self.skip(next.at);
            let key = (self.first_byte(next) != b'}').then_some(next.at)?;
            next.at = self.skip(short(string_end(self.text, long(key))));
            let place = next;
            next = self.after(place);
            Some((key, place))
        })
    }

    /// A key, in its quotes.
    pub(super) fn key(&self, at: u32) -> &'a str {
        &self.text[long(at)..string_end(self.text, long(at))]
    }

    /// The value at a path of keys from the root; none if it does not exist.
    pub(super) fn find(&self, keys: &[&str]) -> Option<Position> {
        keys.iter().try_fold(self.root(), |place, wanted| {
            let is_object = self.first_byte(place) == b'{';
            let found = self.members(place).filter(|(key, _)| unescaped(self.key(*key)) == *wanted);
            // If a key occurs twice, the last one counts, as in every decoder.
            is_object.then(|| found.last()).flatten().map(|(_, place)| place)
        })
    }

    fn after(&self, place: Position) -> Position {
        let at = long(place.at);
        match self.text.as_bytes()[at] {
            b'{' | b'[' => {
                let container = self.containers[long(place.container)];
                Position { at: container.end, container: container.next }
            }
            b'"' => Position { at: short(string_end(self.text, at)), ..place },
            _ => {
                let rest = &self.text.as_bytes()[at..];
                let ends = |byte: &u8| matches!(byte, b',' | b']' | b'}') || byte.is_ascii_whitespace();
                Position { at: short(at + rest.iter().position(ends).unwrap_or(rest.len())), ..place }
            }
        }
    }

    /// The position after white space, commas and colons.
    fn skip(&self, at: u32) -> u32 {
        let rest = &self.text.as_bytes()[long(at)..];
        let is_between = |byte: &u8| matches!(byte, b',' | b':') || byte.is_ascii_whitespace();
        at + short(rest.iter().take_while(|byte| is_between(byte)).count())
    }
}

fn inside(container: Position) -> Position {
    Position { at: container.at + 1, container: container.container + 1 }
}

/// The byte after the string that begins at `at`.
fn string_end(text: &str, at: usize) -> usize {
    let bytes = text.as_bytes();
    let mut at = at + 1;
    while bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// The text of a string in quotes.
pub(super) fn unescaped(string: &str) -> Cow<'_, str> {
    if string.contains('\\') {
        Cow::Owned(serde_json::from_str(string).expect("the text was checked"))
    } else {
        Cow::Borrowed(&string[1..string.len() - 1])
    }
}

fn long(at: u32) -> usize {
    usize::try_from(at).expect("a usize has 32 bits at least")
}

fn short(at: usize) -> u32 {
    u32::try_from(at).expect("longer texts are not taken")
}

/// Any value; decoding it checks it and keeps nothing.
struct Checked;

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Checked {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self, A::Error> {
        while object.next_entry::<Self, Self>()?.is_some() {}
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).expect("JSON")
    }

    #[test]
    fn values_are_found_whatever_is_between_them() {
        let raw = raw(" { \"a]\\\"\" : [ 1 , [] ,{}, \"}\\\\\" , [[2]] ] ,\n\"b\":{\"c\":-1.5e3 },\"\" : null } ");
        let text = Text::of(&raw).expect("passes");
        let members: Vec<_> = text.members(text.root()).collect();
        let shown: Vec<_> = members.iter().map(|(key, place)| (text.key(*key), text.raw(*place))).collect();
        assert_eq!(
            shown,
            [(r#""a]\"""#, r#"[ 1 , [] ,{}, "}\\" , [[2]] ]"#), (r#""b""#, r#"{"c":-1.5e3 }"#), (r#""""#, "null"),]
        );
        let items: Vec<_> = text.items(members[0].1).map(|place| text.raw(place)).collect();
        assert_eq!(items, ["1", "[]", "{}", r#""}\\""#, "[[2]]"]);
        assert_eq!(text.find(&["b", "c"]).map(|place| text.raw(place)), Some("-1.5e3"));
        for nothing in [&["c"][..], &["b", "x"], &["a]\"", "x"], &["", "x"]] {
            assert_eq!(text.find(nothing), None);
        }
    }

    #[test]
    fn what_nobody_can_decode_does_not_pass() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        for text in ["1e999", "[-1e400]", r#"{"a":"\ud800"}"#, r#"{"\udc00":1}"#, &nested(200)] {
            assert!(Text::of(&raw(text)).is_none(), "{text}");
        }
        for text in ["1e308", "123456789012345678901234567890", r#""\ud83d\ude00""#, &nested(100)] {
            assert!(Text::of(&raw(text)).is_some(), "{text}");
        }
    }

    #[test]
    fn the_index_is_small() {
        for unit in ["0,", "[],", "{},", "[[[]]],", "\"[\","] {
            let raw = raw(&format!("[{}0]", unit.repeat(10_000)));
            let text = Text::of(&raw).expect("passes");
            assert!(text.containers.len() * size_of::<Container>() <= 4 * raw.get().len(), "{unit}");
        }
    }
}
