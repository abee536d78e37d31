//! Texts: searching, and what policies say.

use serde_json::Value;

use super::rego_text::rego_text;
use super::{Arguments, BuiltinError, Outcome, list};

/// What it takes to compare two short texts, in units of work.
const COMPARISON: usize = 5;

pub(super) fn quote_glob(arguments: &Arguments) -> Outcome {
    let mut quoted = String::new();
    for character in arguments.text(0)?.chars() {
        if matches!(character, '*' | '?' | '\\' | '[' | ']' | '{' | '}') {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    Ok(quoted.into())
}

pub(super) fn trace(arguments: &Arguments) -> Outcome {
    arguments.text(0)?;
    Ok(true.into())
}

/// `print`: its argument is a list of sets, each with one value to print, or empty where that value is undefined.
pub(super) fn print(arguments: &Arguments) -> Outcome {
    let words = arguments.list(0)?.iter().map(|set| match set.as_array().map(Vec::as_slice) {
        Some([]) | None => "<undefined>".to_owned(),
        Some([value, ..]) => rego_text(value),
    });
    Ok(words.collect::<Vec<_>>().join(" ").into())
}

/// What `print` says, which is its result.
pub(super) fn printed(_: &[Vec<u8>], result: &[u8]) -> Option<String> {
    serde_json::from_slice(result).ok()
}

/// What `trace` says, which is its argument: the result is only that it did.
pub(super) fn traced(arguments: &[Vec<u8>], _: &[u8]) -> Option<String> {
    serde_json::from_slice(arguments.first()?).ok()
}

/// All places where a text occurs in another, counted in characters. They may overlap, so each would be searched for from the next character
/// on: a search that remembers what has matched (Knuth, Morris and Pratt) takes each byte once.
pub(super) fn indexof_n(arguments: &Arguments) -> Outcome {
    let (text, part) = (arguments.text(0)?, arguments.text(1)?);
    if part.is_empty() {
        return Err(BuiltinError::Form("argument 2 is empty"));
    }
    let (length, part, borders) = (part.chars().count(), part.as_bytes(), borders(part.as_bytes()));
    let (mut characters, mut matched) = (0_usize, 0);
    let places = text.bytes().filter_map(|byte| {
        let is_continuation = byte & 0xc0 == 0x80;
        characters += usize::from(!is_continuation);
        while matched > 0 && part[matched] != byte {
            matched = borders[matched - 1];
        }
        matched += usize::from(part[matched] == byte);
        if matched < part.len() {
            return None;
        }
        matched = borders[matched - 1];
        Some(Value::from(characters - length))
    });
    list(arguments.work(), places)
}

/// For each beginning of a text, how long the longest shorter beginning is that it ends with.
fn borders(text: &[u8]) -> Vec<usize> {
    let (mut borders, mut length) = (vec![0; text.len()], 0);
    for end in 1..text.len() {
        while length > 0 && text[end] != text[length] {
            length = borders[length - 1];
        }
        length += usize::from(text[end] == text[length]);
        borders[end] = length;
    }
    borders
}

pub(super) fn count(arguments: &Arguments) -> Outcome {
    Ok(arguments.text(0)?.matches(arguments.text(1)?).count().into())
}

pub(super) fn reverse(arguments: &Arguments) -> Outcome {
    Ok(arguments.text(0)?.chars().rev().collect::<String>().into())
}

pub(super) fn any_prefix(arguments: &Arguments) -> Outcome {
    any(arguments, |text, part| text.starts_with(part))
}

pub(super) fn any_suffix(arguments: &Arguments) -> Outcome {
    any(arguments, |text, part| text.ends_with(part))
}

fn any(arguments: &Arguments, is_it: impl Fn(&str, &str) -> bool) -> Outcome {
    let (texts, parts) = (arguments.texts(0)?, arguments.texts(1)?);
    for text in &texts {
        for part in &parts {
            arguments.work().count(COMPARISON + text.len().min(part.len()) / 8)?;
            if is_it(text, part) {
                return Ok(true.into());
            }
        }
    }
    Ok(false.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::run;

    /// What OPA 1.22.2 answers (v1/topdown/strings.go).
    #[test]
    fn every_place_is_found() {
        for (text, part, places) in [
            ("sad as é sad", "s", json!([0, 5, 9])),
            ("aaa", "aa", json!([0, 1])),
            ("ababa", "aba", json!([0, 2])),
            ("ééé", "éé", json!([0, 1])),
            ("aabaaab", "aab", json!([0, 4])),
            ("a", "ab", json!([])),
            ("abc", "x", json!([])),
        ] {
            assert_eq!(run("indexof_n", json!([text, part])), Ok(places), "{part} in {text}");
        }
        assert!(run("indexof_n", json!(["a", ""])).is_err());
        // Each place takes no longer than any other.
        let (text, part) = ("a".repeat(1 << 20), "a".repeat((1 << 20) - 50_000));
        let places = run("indexof_n", json!([text, part])).expect("places");
        assert_eq!(places.as_array().map(Vec::len), Some(50_001));
    }

    #[test]
    fn what_rules_print_and_trace_is_what_they_say() {
        let arguments = [b"\"hello\"".to_vec()];
        let line = |name: &str, result: &[u8]| {
            let found = super::super::find([(name.to_owned(), 7)].into()).expect("a builtin");
            (found[&7].log_line)(&arguments, result)
        };
        assert_eq!(line("trace", b"true").as_deref(), Some("hello"));
        assert_eq!(line("internal.print", b"\"hello 1\"").as_deref(), Some("hello 1"));
        assert_eq!(line("sprintf", b"\"hello\""), None);
    }

    #[test]
    fn searching() {
        assert_eq!(run("strings.count", json!(["cheese", "e"])), Ok(json!(3)));
        assert_eq!(run("strings.reverse", json!(["abé"])), Ok(json!("éba")));
        assert_eq!(run("strings.any_prefix_match", json!([["a/b", "c"], ["x", "a/"]])), Ok(json!(true)));
        assert_eq!(run("strings.any_suffix_match", json!(["a/b", "a"])), Ok(json!(false)));
        assert_eq!(run("glob.quote_meta", json!(["*.{a}?"])), Ok(json!("\\*.\\{a\\}\\?")));
        assert_eq!(run("internal.print", json!([[["a"], [], [{"b": 1}]]])), Ok(json!("a <undefined> {\"b\": 1}")));
    }
}
