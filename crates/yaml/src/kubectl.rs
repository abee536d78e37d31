//! What kubectl reads otherwise than this crate: it follows YAML 1.1 (go-yaml 2), which has more words and numbers.

use granit_parser::{Event, Parser, ScalarStyle};

/// Most scalars that are reported of one document.
const MOST: usize = 100;

/// A plain scalar that is a text for this crate, and something else for kubectl.
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
            Event::Scalar(text, ScalarStyle::Plain, _, None) if found.len() - of_earlier_documents < MOST => {
                if let Some(meant) = meant(&text) {
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

fn meant(text: &str) -> Option<&'static str> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => return Some("true"),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => return Some("false"),
        _ => {}
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let all = |text: &str, digits: &str| !text.is_empty() && text.chars().all(|c| digits.contains(c));
    let has_zero = unsigned.len() > 1 && unsigned.starts_with('0') && all(unsigned, "0123456789");
    let is_binary = unsigned.strip_prefix("0b").is_some_and(|digits| all(digits, "01_"));
    let starts_with_digit = unsigned.starts_with(|c: char| c.is_ascii_digit());
    let is_grouped = starts_with_digit && unsigned.contains('_') && all(unsigned, "0123456789_.");
    (has_zero || is_binary || (is_grouped && unsigned.matches('.').count() < 2)).then_some(NUMBER)
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

    #[test]
    fn what_both_read_alike_is_not_told() {
        let text = "[true, False, null, ~, 0, 1, -1, 1.5, 1e3, 0x10, 0o17, 1.2.3, 2020-01-01, 12:30, v1, _1, 1_0.0.0, 0a, nope, '']";
        assert_eq!(read_otherwise(text), []);
        assert_eq!(read_otherwise("a: on\nb: [").len(), 1, "what follows cannot be read");
        assert_eq!(read_otherwise(&"- on\n".repeat(1000)).len(), MOST);
    }
}
