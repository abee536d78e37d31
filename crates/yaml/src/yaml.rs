//! Reads YAML 1.2 files, each with one or more documents, into JSON trees.

use granit_parser::{Event, Parser, ScalarStyle, Tag};
use serde_json::Value;

use super::tree::{Builder, Document, TreeError};

/// Deepest nesting that the parser follows. Values below the tree's own limit are read and left out.
const FOLLOWED_DEPTH: usize = 10_000;
/// Memory for what the anchors and aliases of a file repeat, in bytes. One document reaches its own limits first.
const MAX_COPIES: usize = 240 << 20;

/// Why a file could not be read. The texts name lines but no values, which may be secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    /// The text does not have the format.
    #[error("line {line}: {problem}")]
    Syntax {
        /// The line, from 1.
        line: usize,
        /// The parser's text.
        problem: String,
    },
    /// A document breaks a rule.
    #[error("line {line}: {source}")]
    Tree {
        /// The line, from 1.
        line: usize,
        /// The rule.
        source: TreeError,
    },
    /// A scalar that JSON cannot express.
    #[error("line {line}: {problem}")]
    Scalar {
        /// The line, from 1.
        line: usize,
        /// What cannot be expressed.
        problem: &'static str,
    },
    /// The caller has ended the reading.
    #[error("line {line}: the reading was ended")]
    Ended {
        /// The line, from 1.
        line: usize,
    },
}

/// What the reading of a text may take.
pub struct Limits<'l> {
    /// The most memory for copies that anchors and aliases need, in bytes, all documents of the text together. It is counted before a value is
    /// copied.
    pub copies: usize,
    /// Asked before each event of the parser; the reading ends once it says no.
    pub goes_on: &'l dyn Fn() -> bool,
}

/// The documents of a YAML file. Empty documents are left out.
///
/// # Errors
/// When the file is not YAML, or a document exceeds a limit.
pub fn documents(text: &str) -> Result<Vec<Document>, SyntaxError> {
    documents_within(text, &Limits { copies: MAX_COPIES, goes_on: &|| true })
}

/// The same within limits of the caller.
///
/// # Errors
/// When the file is not YAML, or exceeds a limit.
pub fn documents_within(text: &str, limits: &Limits) -> Result<Vec<Document>, SyntaxError> {
    let options = granit_parser::options! {
        flow_nesting_limit: FOLLOWED_DEPTH,
        block_nesting_limit: FOLLOWED_DEPTH,
    };
    let mut documents = Vec::new();
    let mut builder = Builder::new(limits.copies);
    let mut first_line = 1;
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| SyntaxError::Syntax {
            line: error.marker().line(),
            problem: portcullis_contract::clean(&error.info(), 200),
        })?;
        let line = span.start.line();
        if !(limits.goes_on)() {
            return Err(SyntaxError::Ended { line });
        }
        let tree = |source| SyntaxError::Tree { line, source };
        match event {
            Event::DocumentStart(..) => {
                first_line = line;
            }
            Event::DocumentEnd => {
                let next = Builder::new(builder.copies());
                let document = std::mem::replace(&mut builder, next).finish(first_line);
                if !document.value.is_null() {
                    documents.push(document);
                }
            }
            Event::Alias(anchor) => builder.alias(anchor).map_err(tree)?,
            Event::Scalar(text, style, anchor, tag) => {
                let problem = |problem| SyntaxError::Scalar { line, problem };
                if builder.wants_key() {
                    if style == ScalarStyle::Plain && text == "<<" {
                        return Err(problem("merge keys (<<) are not supported: write the keys out"));
                    }
                    builder.key(text.into_owned()).map_err(tree)?;
                } else {
                    let value = scalar(&text, style, tag.as_deref()).map_err(problem)?;
                    builder.scalar(value, anchor).map_err(tree)?;
                }
            }
            Event::SequenceStart(_, anchor, _) => builder.list(anchor).map_err(tree)?,
            Event::MappingStart(_, anchor, _) => builder.map(anchor).map_err(tree)?,
            Event::SequenceEnd | Event::MappingEnd => builder.end().map_err(tree)?,
            _ => {}
        }
    }
    Ok(documents)
}

/// A scalar by the core schema of YAML 1.2.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, &'static str> {
    let resolved = match tag.map(Tag::core_suffix) {
        None => style == ScalarStyle::Plain,
        Some(Some("str")) => false,
        Some(Some(_)) => true,
        Some(None) => return Err("custom tags (!name) are not supported"),
    };
    if resolved { plain(text) } else { Ok(Value::from(text)) }
}

/// A scalar that has neither quotes nor the tag of a text.
pub(super) fn plain(text: &str) -> Result<Value, &'static str> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Value::Null),
        "true" | "True" | "TRUE" => return Ok(Value::Bool(true)),
        "false" | "False" | "FALSE" => return Ok(Value::Bool(false)),
        ".nan" | ".NaN" | ".NAN" => return Err("JSON has no word for not-a-number: quote it if it is a text"),
        _ => {}
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") {
        return Err("JSON has no word for infinity: quote it if it is a text");
    }
    let too_large = "an integer of more than 64 bits would lose digits: quote it";
    for (prefix, radix) in [("0x", 16), ("0o", 8)] {
        if let Some(digits) = text.strip_prefix(prefix)
            && !digits.is_empty()
            && digits.chars().all(|c| c.is_digit(radix))
        {
            return u64::from_str_radix(digits, radix).map(Value::from).map_err(|_| too_large);
        }
    }
    if !unsigned.is_empty() && unsigned.bytes().all(|b| b.is_ascii_digit()) {
        // A number with a leading zero stays a text: YAML 1.1 reads it as octal, YAML 1.2 does not.
        if unsigned.len() > 1 && unsigned.starts_with('0') {
            return Ok(Value::from(text));
        }
        return if text.starts_with('-') {
            text.parse::<i64>().map(Value::from).map_err(|_| too_large)
        } else {
            unsigned.parse::<u64>().map(Value::from).map_err(|_| too_large)
        };
    }
    if is_float(unsigned) {
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        return number.map(number_of).ok_or("the number is too large: quote it if it is a text");
    }
    Ok(Value::from(text))
}

/// A whole number is an integer however it is written: kubectl sends `1.0` and `1e3` as 1 and 1000, and modules with integers in their settings take
/// no others.
pub(super) fn number_of(number: f64) -> Value {
    // Its digits as JSON has them, which are not those of a cast above 2^53.
    let whole = (number.fract() == 0.0).then(|| number.to_string().parse::<i64>().ok()).flatten();
    whole.map_or_else(|| Value::from(number), Value::from)
}

/// `1.5`, `.5`, `1.`, `1e3`: digits with a point or an exponent.
pub(super) fn is_float(text: &str) -> bool {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (text, None),
    };
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    digits(whole)
        && digits(fraction)
        && !(whole.is_empty() && fraction.is_empty())
        && exponent.is_none_or(|exponent| !exponent.is_empty() && digits(exponent))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(text: &str) -> Value {
        let mut documents = documents(text).expect("reads");
        assert_eq!(documents.len(), 1, "{documents:?}");
        documents.remove(0).value
    }

    #[test]
    fn s06_integers_order_empty_and_null_stay() {
        let value = one(
            "z: 9007199254740993\na: ''\nm: null\nn: 18446744073709551615\nk: -9223372036854775808\ne: {}\nl: []\n",
        );
        assert_eq!(
            value.to_string(),
            r#"{"z":9007199254740993,"a":"","m":null,"n":18446744073709551615,"k":-9223372036854775808,"e":{},"l":[]}"#
        );
    }

    #[test]
    fn scalars_follow_the_core_schema() {
        let value = one("[yes, 1.5, 1e3, 0x10, 0o17, 0123, 1.2.3, '1', !!str 2, ~, True, 1_000, .5, 12:30]");
        assert_eq!(
            value,
            json!(["yes", 1.5, 1000, 16, 15, "0123", "1.2.3", "1", "2", null, true, "1_000", 0.5, "12:30"])
        );
    }

    /// As kubectl was seen to send them.
    #[test]
    fn whole_numbers_are_integers_however_they_are_written() {
        let value =
            one("[1.0, 1e3, 5., -2.0, -0.0, 1e18, 1.2345678901234567e18, 1.5, 1e-3, 1e19, -9223372036854775808.0]");
        let large = [json!(1_000_000_000_000_000_000_u64), json!(1_234_567_890_123_456_800_u64)];
        let floats = [json!(1.5), json!(0.001), json!(1e19), json!(-9_223_372_036_854_775_808.0)];
        let whole = [1, 1000, 5, -2, 0].map(|number| json!(number));
        assert_eq!(value, json!([&whole[..], &large, &floats].concat()));
    }

    #[test]
    fn keys_are_texts() {
        assert_eq!(one("1: a\ntrue: b\n"), json!({"1": "a", "true": "b"}));
    }

    #[test]
    fn several_documents_and_empty_ones() {
        let documents = documents("---\na: 1\n---\n# nothing\n---\nb: 2\n").expect("reads");
        assert_eq!(documents.iter().map(|d| d.value.clone()).collect::<Vec<_>>(), [json!({"a": 1}), json!({"b": 2})]);
        assert!(documents[1].line > documents[0].line);
    }

    #[test]
    fn a_doubled_key_and_the_line_are_named() {
        let error = documents("a: 1\nb: 2\na: 3\n").expect_err("refused");
        assert_eq!(error.to_string(), "line 3: the key \"a\" is there twice");
    }

    #[test]
    fn aliases_repeat_a_value() {
        assert_eq!(one("a: &x [1, 2]\nb: *x\n"), json!({"a": [1, 2], "b": [1, 2]}));
    }

    #[test]
    fn a_bomb_of_aliases_is_refused() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let below = level - 1;
            text += &format!("a{level}: &a{level} [{}]\n", vec![format!("*a{below}"); 10].join(", "));
        }
        assert!(matches!(documents(&text), Err(SyntaxError::Tree { source: TreeError::TooLarge, .. })));
    }

    /// As a copy counts: a value for the anchor and one for each alias.
    #[test]
    fn copies_have_a_limit_for_all_documents_together() {
        let within = |text: &str, copies| documents_within(text, &Limits { copies, goes_on: &|| true });
        let document = "---\n- &a [x, x]\n- *a\n- *a\n";
        let needed = 3 * (3 * 448 + 2);
        assert!(within(document, needed).is_ok());
        for (text, copies) in
            [(document, needed - 1), (&*document.repeat(2), needed), (&*document.repeat(3), 3 * needed - 1)]
        {
            let error = within(text, copies).expect_err("refused");
            assert!(matches!(error, SyntaxError::Tree { source: TreeError::TooManyCopies, .. }), "{error}");
        }
        // A key that repeats a text is a copy, too.
        let keys = "- &a text\n- {*a : 1}\n";
        let needed = 2 * (448 + 4);
        assert!(within(keys, needed).is_ok() && within(keys, needed - 1).is_err());
        // Each document is a bomb that has just room.
        let bombs = format!("---\n- &a [{}]\n{}", "0,".repeat(100), "- *a\n".repeat(1000)).repeat(10);
        let error = documents(&bombs).expect_err("refused");
        assert!(matches!(error, SyntaxError::Tree { source: TreeError::TooManyCopies, .. }), "{error}");
    }

    #[test]
    fn a_bomb_of_text_is_refused() {
        let text = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), vec!["*a"; 100].join(", "));
        assert!(matches!(documents(&text), Err(SyntaxError::Tree { source: TreeError::TooLarge, .. })));
    }

    #[test]
    fn deep_nesting_is_left_out_and_named() {
        let text = format!("spec:\n  settings:\n    a: {}1{}\n  module: m\n", "[".repeat(1000), "]".repeat(1000));
        let document = &documents(&text).expect("reads")[0];
        assert_eq!(document.too_deep.as_deref(), Some(&["spec".to_owned(), "settings".into(), "a".into()][..]));
        assert_eq!(document.value["spec"]["module"], json!("m"));
    }

    #[test]
    fn a_hundred_thousand_brackets_end_in_an_error() {
        assert!(documents(&"[".repeat(100_000)).is_err());
        assert!(documents(&"a: {".repeat(100_000)).is_err());
    }

    #[test]
    fn the_caller_ends_the_reading_between_two_events() {
        let left = std::cell::Cell::new(100);
        let goes_on = || {
            left.set(left.get() - 1);
            left.get() > 0
        };
        let error =
            documents_within(&"- a\n".repeat(1000), &Limits { copies: 0, goes_on: &goes_on }).expect_err("ended");
        assert!(matches!(error, SyntaxError::Ended { line } if line < 100), "{error}");
        assert_eq!(left.get(), 0);
    }

    #[test]
    fn integers_that_would_lose_digits_are_refused() {
        for text in ["18446744073709551616", "-9223372036854775809", "0x10000000000000000"] {
            assert!(documents(&format!("a: {text}")).is_err(), "{text}");
        }
    }
}
