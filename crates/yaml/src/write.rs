//! Writes values as YAML.

use std::fmt;

use serde::Serialize;
use serde_saphyr::ser_options;

/// Why a value was not written.
pub use serde_saphyr::SerializeError as WriteError;

/// Writes a value in block style, one field per line. A text of several lines is written as a block, and lines are not
/// folded.
///
/// # Errors
/// When a key is not a scalar.
pub fn write<T: Serialize + ?Sized>(value: &T) -> Result<String, WriteError> {
    let mut text = Bounded { text: String::new(), limit: usize::MAX };
    text.write(value)?;
    Ok(text.text)
}

/// The same within `limit` bytes; none if the text would be longer. No more of it is kept in memory: indentation makes a text of deeply
/// nested values a hundred times as long as their JSON.
///
/// # Errors
/// When a key is not a scalar.
pub fn write_within<T: Serialize + ?Sized>(value: &T, limit: usize) -> Result<Option<String>, WriteError> {
    let mut text = Bounded { text: String::new(), limit };
    match text.write(value) {
        Ok(()) => Ok(Some(text.text)),
        // The only failure of the writer.
        Err(WriteError::Format { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A text that refuses what would make it longer than its limit.
struct Bounded {
    text: String,
    limit: usize,
}

impl Bounded {
    fn write<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), WriteError> {
        serde_saphyr::to_fmt_writer_with_options(self, &value, ser_options! { folded_wrap_chars: usize::MAX })
    }
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if more.len() > self.limit - self.text.len() {
            return Err(fmt::Error);
        }
        self.text.push_str(more);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Texts that YAML 1.1, YAML 1.2 or their grammar would read as something else if they were not quoted.
    const NASTY: &[&str] = &[
        "yes",
        "Yes",
        "no",
        "NO",
        "on",
        "On",
        "off",
        "OFF",
        "y",
        "Y",
        "n",
        "N",
        "true",
        "False",
        "~",
        "null",
        "Null",
        "",
        "0x10",
        "0o7",
        "017",
        "0b11",
        "1e3",
        "1_000",
        "+1",
        "-1",
        ".5",
        "1.",
        "1.5e+3",
        "685_230.15",
        ".inf",
        "-.INF",
        ".nan",
        "2020-01-01",
        "2001-12-14t21:59:43.10-05:00",
        "12:30:45",
        "190:20:30",
        "=",
        "<<",
        "- a",
        "-",
        "a: b",
        "a:",
        ": a",
        "# c",
        "a # c",
        " lead",
        "trail ",
        "%x",
        "@x",
        "`x",
        "&x",
        "*x",
        "!x",
        "? x",
        "[x",
        "{x}",
        "|",
        "---",
        "...",
    ];
    /// Texts of several lines, or with characters that are not printable.
    const ODD: &[&str] = &[
        "one\ntwo",
        "one\ntwo\n",
        "one\n\n\n",
        "\n",
        " one\n two",
        "one\r\ntwo",
        "one\ttwo",
        "\tone",
        "\u{0}",
        "\u{7}",
        "\u{85}",
        "\u{2028}",
        "\u{feff}",
        "\u{fffe}",
        "one \ntwo",
        "it's \"quoted\" \\ here",
    ];

    fn written(value: &Value) -> String {
        write(value).expect("writes")
    }

    #[test]
    fn what_is_written_is_read_as_it_was_as_a_value_as_a_key_and_in_a_list() {
        let long = format!("{} {}: # '", "word ".repeat(200), "x".repeat(5000));
        for text in NASTY.iter().chain(ODD).copied().chain([long.as_str()]) {
            // YAML limits a key to 1024 characters.
            let key = if text.len() > 1000 { "key" } else { text };
            let value = json!({"a": text, "b": [text, [text], {"c": text}], "d": {key: text}, "e": 1});
            let yaml = written(&value);
            assert_eq!(crate::read::<Value>(&yaml).expect("is YAML"), value, "{yaml}");
        }
    }

    #[test]
    fn what_could_be_taken_for_something_else_is_never_plain() {
        for text in NASTY {
            let yaml = written(&json!({"a": text, "b": [text], "c": {*text: 1}}));
            let lines: Vec<&str> = yaml.lines().collect();
            for place in [lines[0].strip_prefix("a: "), lines[2].strip_prefix("- "), lines[4].strip_prefix("  ")] {
                let place = place.unwrap_or_else(|| panic!("not where it was:\n{yaml}"));
                assert!(place.starts_with(['"', '\'']), "{text:?} is plain:\n{yaml}");
            }
        }
    }

    #[test]
    fn a_text_above_its_limit_is_not_written_to_the_end() {
        let value = json!({"a": [1, 2]});
        let text = "a:\n- 1\n- 2\n";
        assert_eq!(write_within(&value, text.len()).expect("writes").as_deref(), Some(text));
        assert_eq!(write_within(&value, text.len() - 1).expect("writes"), None);
        // Written whole, it would have 25 MB.
        let deep = (0..120).fold(Value::from(vec![0; 100_000]), |value, _| Value::Array(vec![value]));
        let mut text = Bounded { text: String::new(), limit: 1 << 20 };
        assert!(text.write(&deep).is_err());
        assert!(text.text.len() <= 1 << 20 && text.text.capacity() <= 2 << 20, "{}", text.text.capacity());
    }

    #[test]
    fn plain_words_stay_plain() {
        let value = json!({"kind": "Policy", "module": "registry://ghcr.io/a/b:v1.0", "timeout": 30, "ok": true, "list": [], "of": ["a b", "v1"]});
        let yaml =
            "kind: Policy\nmodule: registry://ghcr.io/a/b:v1.0\ntimeout: 30\nok: true\nlist: []\nof:\n- a b\n- v1\n";
        assert_eq!(written(&value), yaml);
        assert_eq!(written(&json!({"a": "one\ntwo\n"})), "a: |\n  one\n  two\n");
        let long = "word ".repeat(100) + "end";
        assert_eq!(written(&json!({ "a": long })), format!("a: {long}\n"));
    }
}
