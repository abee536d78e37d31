//! Reads and writes YAML and JSON files of users.
//!
//! Reading follows the core schema of YAML 1.2 and has limits of size, depth and aliases; no reader recurses. Written
//! texts are quoted so that a reader of YAML 1.1, such as kubectl, reads them as the same texts.
#![forbid(unsafe_code)]

mod json;
mod kubectl;
mod tree;
mod write;
mod yaml;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub use json::documents as json_documents;
pub use kubectl::{ReadOtherwise, read_otherwise};
pub use tree::{Document, MAX_DEPTH, TreeError};
pub use write::{WriteError, write, write_within};
pub use yaml::{Limits, SyntaxError, documents, documents_within};

/// Why a text could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is not UTF-8.
    #[error("it is not UTF-8")]
    NotText,
    /// It is not YAML, or exceeds a limit.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// A value is nested too deep.
    #[error("line {line}: it is nested deeper than {MAX_DEPTH} levels")]
    TooDeep {
        /// The line that the document begins on, from 1.
        line: usize,
    },
    /// There are several documents, but only one was expected.
    #[error("it has {0} documents; want one")]
    Several(usize),
    /// The value does not have the expected type.
    #[error(transparent)]
    Form(#[from] serde_json::Error),
}

/// Reads a text of one document; an empty text is null.
///
/// # Errors
/// When it is not YAML, exceeds a limit, has several documents, or does not have the expected type.
pub fn read<T: DeserializeOwned>(text: impl AsRef<[u8]>) -> Result<T, ReadError> {
    let mut documents = read_documents(text)?;
    match documents.len() {
        0 | 1 => Ok(serde_json::from_value(documents.pop().unwrap_or_default())?),
        several => Err(ReadError::Several(several)),
    }
}

/// Reads a text of several documents. Empty documents are left out.
///
/// # Errors
/// When it is not YAML, or exceeds a limit.
pub fn read_documents(text: impl AsRef<[u8]>) -> Result<Vec<Value>, ReadError> {
    let text = std::str::from_utf8(text.as_ref()).map_err(|_| ReadError::NotText)?;
    documents(text)?.into_iter().map(whole).collect()
}

/// Reads a text of one document within limits of the caller; an empty text is null.
///
/// # Errors
/// When it is not YAML, exceeds a limit, or has several documents.
pub fn read_within(text: &str, limits: &Limits) -> Result<Value, ReadError> {
    let mut documents = documents_within(text, limits)?;
    match documents.len() {
        0 | 1 => documents.pop().map_or(Ok(Value::Null), whole),
        several => Err(ReadError::Several(several)),
    }
}

/// The content of a document, if all of it was read.
fn whole(document: Document) -> Result<Value, ReadError> {
    match document.too_deep {
        None => Ok(document.value),
        Some(_) => Err(ReadError::TooDeep { line: document.line }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_document_or_several() {
        let text = "---\na: 1\n---\n# nothing\n---\nb: 2\n...\n";
        assert_eq!(read_documents(text).expect("reads"), [json!({"a": 1}), json!({"b": 2})]);
        assert_eq!(read::<Value>(text).expect_err("refused").to_string(), "it has 2 documents; want one");
        assert_eq!(read::<Option<u8>>("# nothing").expect("reads"), None);
        assert_eq!(read::<Vec<u8>>("[1, 2]").expect("reads"), [1, 2]);
    }

    #[test]
    fn what_is_nested_too_deep_is_refused() {
        let text = format!("a: 1\n---\nb: {}1{}\n", "[".repeat(200), "]".repeat(200));
        let error = read_documents(text).expect_err("refused").to_string();
        assert_eq!(error, "line 2: it is nested deeper than 128 levels");
    }

    #[test]
    fn an_error_does_not_quote_the_text() {
        let error = read::<Value>("password: hunter2\n  b: [").expect_err("refused").to_string();
        assert!(error.contains("line 2") && !error.contains("hunter2"), "{error}");
    }
}
