//! How Rego writes values as text.

use std::fmt::Write as _;
use std::sync::LazyLock;

use regex_syntax::hir::{Class, ClassUnicode, HirKind};
use serde_json::Value;

/// A value as Rego writes it, but a text without quotes.
pub(super) fn rego_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => {
            let mut text = String::new();
            add_rego(&mut text, other);
            text
        }
    }
}

/// Adds a value as Rego writes it. One text takes all of it: a text for each level would be copied as often as it is nested.
fn add_rego(text: &mut String, value: &Value) {
    match value {
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                text.push_str(if index == 0 { "" } else { ", " });
                add_rego(text, item);
            }
            text.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            text.push('{');
            for (index, (name, value)) in members.into_iter().enumerate() {
                text.push_str(if index == 0 { "" } else { ", " });
                add_quoted(text, name, '"', false);
                text.push_str(": ");
                add_rego(text, value);
            }
            text.push('}');
        }
        Value::String(inner) => add_quoted(text, inner, '"', false),
        other => drop(write!(text, "{other}")),
    }
}

/// A text in quotes, as Go's package strconv writes it, with `is_ascii` in ASCII only.
pub(super) fn quoted(text: &str, quote: char, is_ascii: bool) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    add_quoted(&mut quoted, text, quote, is_ascii);
    quoted
}

fn add_quoted(quoted: &mut String, text: &str, quote: char, is_ascii: bool) {
    quoted.push(quote);
    for character in text.chars() {
        match character {
            '\\' => quoted.push_str("\\\\"),
            _ if character == quote => quoted.extend(['\\', quote]),
            _ if (character.is_ascii() || !is_ascii) && is_print(character) => quoted.push(character),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            other => {
                let code = u32::from(other);
                let _ = match code {
                    0..0x80 => write!(quoted, "\\x{code:02x}"),
                    0x80..0x1_0000 => write!(quoted, "\\u{code:04x}"),
                    _ => write!(quoted, "\\U{code:08x}"),
                };
            }
        }
    }
    quoted.push(quote);
}

/// Letters, marks, numbers, punctuation and symbols, which Go shows as they are, besides the space.
static PRINT: LazyLock<ClassUnicode> = LazyLock::new(|| {
    let class = regex_syntax::parse(r"[\p{L}\p{M}\p{N}\p{P}\p{S}]").expect("it is valid");
    match class.into_kind() {
        HirKind::Class(Class::Unicode(class)) => class,
        _ => ClassUnicode::empty(),
    }
});

/// Whether Go shows a character as it is.
pub(super) fn is_print(character: char) -> bool {
    use std::cmp::Ordering;

    if character.is_ascii() {
        return matches!(character, ' '..='~');
    }
    let place = PRINT.ranges().binary_search_by(|range| match character {
        _ if range.end() < character => Ordering::Less,
        _ if range.start() > character => Ordering::Greater,
        _ => Ordering::Equal,
    });
    place.is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What Go's package strconv writes.
    #[test]
    fn what_cannot_be_printed_is_escaped() {
        let text = "a\"b\\c'é\n\t\u{0}\u{7}\u{7f}\u{ad}\u{a0}\u{2028}\u{fffd}\u{10ffff}😀\u{301}";
        let expected = r#""a\"b\\c'é\n\t\x00\a\x7f\u00ad\u00a0\u2028�\U0010ffff😀"#.to_owned() + "\u{301}\"";
        assert_eq!(quoted(text, '"', false), expected);
        assert_eq!(quoted("é😀'\"", '\'', true), r#"'\u00e9\U0001f600\'"'"#);
        assert_eq!(
            rego_text(&json!({"b\u{0}": ["\u{1}", null, 1.5], "a": {}})),
            r#"{"a": {}, "b\x00": ["\x01", null, 1.5]}"#
        );
    }
}
