//! Reads JSON files, each with one or more documents, into JSON trees.
//!
//! It builds a tree of its own, and does not parse into `serde_json::Value` directly, so that duplicate keys are
//! refused and values that are nested too deep are left out, as in YAML.

use serde_json::Value;
use serde_json::value::RawValue;

use super::tree::{Builder, Document, TreeError};
use super::yaml::{SyntaxError, number_of};

/// The documents of a JSON file. Those that are null are left out.
///
/// # Errors
/// When the file is not JSON, or a document exceeds a limit.
pub fn documents(text: &str) -> Result<Vec<Document>, SyntaxError> {
    let mut documents = Vec::new();
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    let mut from = 0;
    while let Some(raw) = stream.next() {
        let raw = raw.map_err(|error| SyntaxError::Syntax {
            line: error.line(),
            // The parser's text names places and characters, but no values.
            problem: portcullis_contract::clean(&error.to_string(), 200),
        })?;
        let gap = &text[from..];
        let line = 1 + count_lines(&text[..from]) + count_lines(&gap[..gap.len() - gap.trim_start().len()]);
        from = stream.byte_offset();
        let document = tree(raw.get(), line)?;
        if !document.value.is_null() {
            documents.push(document);
        }
    }
    Ok(documents)
}

fn count_lines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

/// Walks over text that is known to be JSON.
fn tree(text: &str, first_line: usize) -> Result<Document, SyntaxError> {
    let bytes = text.as_bytes();
    // JSON has no aliases.
    let mut builder = Builder::new(0);
    let (mut at, mut line) = (0, first_line);
    while at < bytes.len() {
        let tree = |source: TreeError| SyntaxError::Tree { line, source };
        match bytes[at] {
            b'{' => builder.map(0).map_err(tree)?,
            b'[' => builder.list(0).map_err(tree)?,
            b'}' | b']' => builder.end().map_err(tree)?,
            b'\n' => line += 1,
            b' ' | b'\t' | b'\r' | b',' | b':' => {}
            first => {
                let end = if first == b'"' { string_end(bytes, at) } else { word_end(bytes, at) };
                let value: Value = serde_json::from_str(&text[at..end])
                    .map_err(|_| SyntaxError::Scalar { line, problem: "a number or text that cannot be read" })?;
                at = end;
                match value {
                    Value::String(key) if builder.wants_key() => builder.key(key).map_err(tree)?,
                    Value::Number(number) if number.is_f64() && is_integer(&bytes[..end], first) => {
                        return Err(SyntaxError::Scalar {
                            line,
                            problem: "an integer of more than 64 bits would lose digits: quote it",
                        });
                    }
                    value => {
                        let float = value.as_f64().filter(|_| value.is_f64());
                        builder.scalar(float.map_or(value, number_of), 0).map_err(tree)?;
                    }
                }
                continue;
            }
        }
        at += 1;
    }
    Ok(builder.finish(first_line))
}

/// Whether the number that ends here has neither a decimal point nor an exponent.
fn is_integer(until: &[u8], first: u8) -> bool {
    let number = until.iter().rev().take_while(|b| matches!(b, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
    first != b'"' && !number.into_iter().any(|b| matches!(b, b'.' | b'e' | b'E'))
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn word_end(bytes: &[u8], start: usize) -> usize {
    let rest = &bytes[start..];
    let end = rest.iter().position(|b| matches!(b, b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n'));
    start + end.unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        let text = r#"{"z":9007199254740993,"a":"\u00e9\ud83d\ude00\"\\","m":null,"n":[-1,2.5,true,{}],"e":""}"#;
        let documents = documents(text).expect("reads");
        assert_eq!(documents[0].value, serde_json::from_str::<Value>(text).expect("reads"));
        assert!(documents[0].value.to_string().starts_with(r#"{"z":9007199254740993,"#));
    }

    #[test]
    fn whole_numbers_are_integers_however_they_are_written() {
        assert_eq!(documents("[1.0,1e3,2.5,-0.5e1]").expect("reads")[0].value, json!([1, 1000, 2.5, -5]));
    }

    #[test]
    fn several_documents_with_their_lines() {
        let documents = documents("{\"a\":1}\n\n{\n\"b\":2}\nnull").expect("reads");
        assert_eq!(
            documents.iter().map(|d| (d.line, d.value.clone())).collect::<Vec<_>>(),
            [(1, json!({"a": 1})), (3, json!({"b": 2}))]
        );
    }

    #[test]
    fn doubled_keys_and_long_integers_are_refused() {
        assert_eq!(
            documents("{\"a\":1,\n\"a\":2}").expect_err("refused").to_string(),
            "line 2: the key \"a\" is there twice"
        );
        assert!(documents("[18446744073709551616]").is_err());
        assert!(documents("[1e40]").is_ok());
    }

    #[test]
    fn deep_nesting_is_left_out_and_named() {
        let text = format!(r#"{{"spec":{{"settings":{{"a":{}1{}}}}}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        let document = &documents(&text).expect("reads")[0];
        assert_eq!(document.too_deep.as_deref(), Some(&["spec".to_owned(), "settings".into(), "a".into()][..]));
    }

    #[test]
    fn cut_files_are_refused() {
        assert!(documents("{\"a\":").is_err());
        assert!(documents("{\"a\": 1}}").is_err());
    }
}
