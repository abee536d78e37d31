//! Reads `values.yaml` with its comments. The file has a simple form: the comment of a key is above it, a mapping of settings has a line
//! for each, and every default is on the line of its key.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Map, Value};

/// The beginning of a comment with a part of a key's schema.
const HINT: &str = "@schema ";

/// A key of the values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Setting {
    /// The names of the mappings that it is in, and its own name.
    pub(super) path: Vec<String>,
    /// Its description.
    pub(super) words: String,
    /// The part of its schema that does not follow from the default.
    pub(super) hints: Map<String, Value>,
    /// Its default; `None` for a mapping of settings.
    pub(super) default: Option<Value>,
}

impl Setting {
    /// Its path in the table, like `image.tag`.
    pub(super) fn name(&self) -> String {
        self.path.join(".")
    }
}

/// All keys in order, each mapping before its keys.
///
/// # Errors
/// When a line does not have the simple form, or a key has no comment. It names the line.
pub(super) fn read(text: &str) -> Result<Vec<Setting>> {
    let mut settings = Vec::new();
    let mut reader = Reader::default();
    for (index, line) in text.lines().enumerate() {
        reader.line(line, &mut settings).with_context(|| format!("line {}: {line:?}", index + 1))?;
    }
    Ok(settings)
}

#[derive(Default)]
struct Reader {
    /// The names of the mappings around the line, each with its indentation.
    around: Vec<(usize, String)>,
    words: Vec<String>,
    hints: Map<String, Value>,
}

impl Reader {
    fn line(&mut self, line: &str, settings: &mut Vec<Setting>) -> Result<()> {
        let content = line.trim_start();
        if content.is_empty() {
            // A comment without a key is about the whole file.
            self.words.clear();
            return Ok(());
        }
        if let Some(comment) = content.strip_prefix('#') {
            let comment = comment.strip_prefix(' ').unwrap_or(comment);
            match comment.strip_prefix(HINT) {
                Some(hint) => self.hints.extend(mapping(hint)?),
                None => self.words.push(comment.to_owned()),
            }
            return Ok(());
        }
        let (name, default) = content.split_once(':').context("want `key: default` or `key:`")?;
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        ensure!(
            is_name,
            "want a key of letters and digits; a default that is a list or a mapping goes on the line of its key"
        );
        let indentation = line.len() - content.len();
        self.around.retain(|(of, _)| *of < indentation);
        let path = self.around.iter().map(|(_, name)| name.clone()).chain([name.to_owned()]).collect();
        let words = std::mem::take(&mut self.words).join(" ");
        ensure!(!words.is_empty(), "the key has no comment above it");
        let default = match default.trim() {
            "" => {
                self.around.push((indentation, name.to_owned()));
                None
            }
            default => Some(serde_saphyr::from_str(default).context("the default is not valid YAML")?),
        };
        settings.push(Setting { path, words, hints: std::mem::take(&mut self.hints), default });
        Ok(())
    }
}

fn mapping(text: &str) -> Result<Map<String, Value>> {
    match serde_saphyr::from_str(text).context("the schema is not valid YAML")? {
        Value::Object(mapping) => Ok(mapping),
        _ => bail!("want a mapping after {HINT:?}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn words_and_schema_belong_to_the_key_below() {
        let text = "# Of the file.\n\n# A part.\npart:\n  # @schema {minimum: 1}\n  # How\n  # many.\n  count: 3\n# The end.\nend: []\n";
        let settings = read(text).unwrap();
        let names: Vec<_> = settings.iter().map(Setting::name).collect();
        assert_eq!(names, ["part", "part.count", "end"]);
        assert_eq!((settings[0].words.as_str(), settings[0].default.as_ref()), ("A part.", None));
        assert_eq!((settings[1].words.as_str(), settings[1].default.as_ref()), ("How many.", Some(&json!(3))));
        assert_eq!(settings[1].hints.get("minimum"), Some(&json!(1)));
        assert_eq!(settings[2].default, Some(json!([])));
    }

    #[test]
    fn what_is_not_simple_is_named_by_its_line() {
        for (text, problem) in [
            ("# A list.\nlist:\n  - one\n", "line 3: \"  - one\""),
            ("key: 1\n", "line 1: \"key: 1\""),
            ("# Word.\n# @schema [1]\nkey: 1\n", "line 2: \"# @schema [1]\""),
        ] {
            assert_eq!(read(text).unwrap_err().to_string(), problem);
        }
    }
}
