//! What kubectl reads otherwise than this crate: it follows YAML 1.1 (go-yaml 2), which has more words and numbers.

use granit_parser::{Event, Parser, ScalarStyle, Tag};
use serde_json::Value;

use super::yaml::plain;

/// Most scalars that are reported of one document.
const MOST: usize = 100;

/// A plain scalar, or one with the tag of a boolean or a number, that is a text for this crate, and something else for kubectl.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOtherwise {
    /// The line, from 1.
    pub line: usize,
    /// The word, such as `on`; none for a number, which may be secret.
    pub word: Option<String>,
    /// What kubectl reads: `true`, `false` or `a number`.
    pub meant: &'static str,
}

/// The plain scalars, keys too, that kubectl reads otherwise, up to the first place that is not YAML; at most 100 of each document.
pub fn read_otherwise(text: &str) -> Vec<ReadOtherwise> {
    let mut found = Vec::new();
    let mut of_earlier_documents = 0;
    for event in Parser::new_from_str(text) {
        let Ok((event, span)) = event else { break };
        match event {
            Event::DocumentStart(..) => of_earlier_documents = found.len(),
            Event::Scalar(text, style, _, tag) if found.len() - of_earlier_documents < MOST => {
                if may_be_typed(style, tag.as_deref())
                    && let Some(meant) = meant(&text)
                {
                    let word = (meant != NUMBER).then(|| text.into_owned());
                    found.push(ReadOtherwise { line: span.start.line(), word, meant });
                }
            }
            _ => {}
        }
    }
    found
}

const NUMBER: &str = "a number";

/// Whether kubectl may read a scalar as a boolean or a number.
fn may_be_typed(style: ScalarStyle, tag: Option<&Tag>) -> bool {
    match tag.map(Tag::core_suffix) {
        None => style == ScalarStyle::Plain,
        Some(suffix) => matches!(suffix, Some("bool" | "int" | "float")),
    }
}

/// What a text is for kubectl, if it is a text here. As `resolve` of go-yaml 2 decides it.
fn meant(text: &str) -> Option<&'static str> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => return Some("true"),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => return Some("false"),
        _ => {}
    }
    let is_text = matches!(plain(text), Ok(Value::String(_)));
    (is_text && is_number(text)).then_some(NUMBER)
}

fn is_number(text: &str) -> bool {
    match text.as_bytes().first() {
        // Go's own syntax: a `_` is between two digits.
        Some(b'.') => {
            let bytes = text.as_bytes();
            let is_between = |at: usize| {
                let digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit);
                digit(bytes[..at].last()) && digit(bytes.get(at + 1))
            };
            let is_grouped = text.match_indices('_').all(|(at, _)| is_between(at));
            is_grouped && is_float(&text.replace('_', ""))
        }
        Some(b'0'..=b'9' | b'+' | b'-') => {
            let digits = text.replace('_', "");
            // A sign may follow `0b`.
            let is_binary =
                digits.strip_prefix("0b").is_some_and(|binary| is_signed(binary, |one| parse_digits(one, 2)));
            is_signed(&digits, parse_integer) || is_binary || is_float(&digits)
        }
        _ => false,
    }
}

/// Whether a text, maybe with a sign, is a number that fits into 64 bits. `parse` reads it without the sign.
fn is_signed(text: &str, parse: impl Fn(&str) -> Option<u64>) -> bool {
    match (text.strip_prefix('-'), text.strip_prefix('+')) {
        (Some(number), _) => parse(number).is_some_and(|number| number <= i64::MIN.unsigned_abs()),
        (_, Some(number)) => parse(number).is_some_and(|number| i64::try_from(number).is_ok()),
        (None, None) => parse(text).is_some(),
    }
}

/// An integer with the prefix of its base. As in Go, a leading zero alone is the prefix of octal numbers.
fn parse_integer(text: &str) -> Option<u64> {
    let Some(rest) = text.strip_prefix('0') else { return parse_digits(text, 10) };
    let after = |prefixes: [char; 2]| rest.strip_prefix(prefixes);
    match (after(['b', 'B']), after(['o', 'O']), after(['x', 'X'])) {
        (Some(binary), _, _) => parse_digits(binary, 2),
        (_, Some(octal), _) => parse_digits(octal, 8),
        (_, _, Some(hex)) => parse_digits(hex, 16),
        _ if rest.is_empty() => Some(0),
        _ => parse_digits(rest, 8),
    }
}

fn parse_digits(digits: &str, radix: u32) -> Option<u64> {
    digits.chars().all(|digit| digit.is_digit(radix)).then(|| u64::from_str_radix(digits, radix).ok())?
}

/// A decimal number that is not too large for 64 bits: `1.5`, `08`, `1e3`.
fn is_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    super::yaml::is_float(unsigned) && text.parse::<f64>().is_ok_and(f64::is_finite)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_of_yaml_1_1_are_told_with_their_lines() {
        let text = "a: on\nb: [NO, 'yes', \"off\", !!str n]\nc: 0644\nd: 1_000\ne: 0b11\ny: 1\n---\nf: -08\n";
        let found: Vec<_> = read_otherwise(text).into_iter().map(|one| (one.line, one.word, one.meant)).collect();
        let word = |word: &str| Some(word.to_owned());
        assert_eq!(
            found,
            [
                (1, word("on"), "true"),
                (2, word("NO"), "false"),
                (3, None, NUMBER),
                (4, None, NUMBER),
                (5, None, NUMBER),
                (6, word("y"), "true"),
                (8, None, NUMBER),
            ]
        );
    }

    #[test]
    fn many_in_one_document_leave_room_for_those_of_the_next() {
        let text = format!("{}---\na: on\n", "- on\n".repeat(MOST + 1));
        let lines: Vec<_> = read_otherwise(&text).into_iter().map(|one| one.line).collect();
        assert_eq!(lines.len(), MOST + 1);
        assert_eq!(lines.last(), Some(&(MOST + 3)));
    }

    /// As kubectl was seen to read them.
    #[test]
    fn numbers_are_those_of_go() {
        for number in [
            "0XFF",
            "-0x10",
            "+0x10",
            "1_0e3",
            "0x1_0",
            "0O17",
            "-0o17",
            "+0o17",
            "0o1_7",
            "0B11",
            ".5_0",
            "1e_3",
            "0b+1",
            "0b-1",
            "-0b1",
            "+_1",
            ".1e1_0",
            "1__0",
            "0_8",
            "-08",
            "1_0.5e1",
            "-._5",
            "0X_FF",
            "1_0.",
            "-0x8000000000000000",
        ] {
            assert_eq!(meant(number), Some(NUMBER), "{number}");
        }
        for text in [
            "_1",
            "._5",
            ".5_",
            ".5__0",
            "0x",
            "0o",
            "0b",
            "-0b2",
            "2_0-1",
            "0XFFFFFFFFFFFFFFFFF",
            "0x1p4",
            "0x.8p1",
            "--1",
            "+-1",
            "-0x8000000000000001",
            "1_000_",
            "0b-+1",
            ".",
            "+",
            "-",
            "._",
            "0_x_",
        ] {
            let wanted = (text == "1_000_").then_some(NUMBER);
            assert_eq!(meant(text), wanted, "{text}");
        }
    }

    #[test]
    fn a_tag_counts_also_for_what_is_quoted() {
        let text = "[!!bool yes, !!bool 'no', !!int \"0b11\", !!float 0644, !!str yes, !!null on, !!float 1]";
        let found: Vec<_> = read_otherwise(text).into_iter().map(|one| one.meant).collect();
        assert_eq!(found, ["true", "false", NUMBER, NUMBER]);
    }

    #[test]
    fn what_both_read_alike_is_not_told() {
        let text = "[true, False, null, ~, 0, 1, -1, 1.5, 1e3, 0x10, 0o17, 1.2.3, 2020-01-01, 12:30, v1, _1, 1_0.0.0, 0a, nope, '']";
        assert_eq!(read_otherwise(text), []);
        assert_eq!(read_otherwise("a: on\nb: [").len(), 1, "what follows cannot be read");
        assert_eq!(read_otherwise(&"- on\n".repeat(1000)).len(), MOST);
    }
}
