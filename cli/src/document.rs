//! The documents of a manifest, as every command reads them. Pure.

use std::path::Path;

use portcullis_yaml::{ReadError, ReadOtherwise};
use serde_json::Value;

/// A document of a file.
#[derive(Debug)]
pub(crate) struct Document {
    /// The line it begins on, from 1.
    pub(crate) line: usize,
    /// Its content.
    pub(crate) value: Value,
    /// The scalars in it that kubectl gives to an API server as something else than is read here.
    pub(crate) otherwise: Vec<ReadOtherwise>,
    /// The keys above the first value that is nested too deep, and is left out.
    pub(crate) too_deep: Option<Vec<String>>,
}

/// The documents of a file, which its name may call JSON; empty ones are left out.
///
/// # Errors
/// When it is neither YAML nor JSON, exceeds a limit, or has a value that is nested too deep.
pub(crate) fn documents(file: &Path, text: &[u8]) -> Result<Vec<Document>, ReadError> {
    let documents = documents_with_gaps(file, text)?;
    match documents.iter().find(|document| document.too_deep.is_some()) {
        Some(document) => Err(ReadError::TooDeep { line: document.line }),
        None => Ok(documents),
    }
}

/// The same without the values that are nested too deep, so that they do not hide the other documents.
///
/// # Errors
/// When it is neither YAML nor JSON, or exceeds a limit.
pub(crate) fn documents_with_gaps(file: &Path, text: &[u8]) -> Result<Vec<Document>, ReadError> {
    let text = std::str::from_utf8(text).map_err(|_| ReadError::NotText)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (documents, otherwise) = if file.extension().is_some_and(|extension| extension == "json") {
        (portcullis_yaml::json_documents(text)?, Vec::new())
    } else {
        (portcullis_yaml::documents(text)?, portcullis_yaml::read_otherwise(text))
    };
    let ends: Vec<usize> = documents.iter().skip(1).map(|next| next.line).chain([usize::MAX]).collect();
    let documents = documents.into_iter().zip(ends).map(|(document, end)| {
        let portcullis_yaml::Document { line, value, too_deep } = document;
        let otherwise = otherwise.iter().filter(|one| (line..end).contains(&one.line)).cloned().collect();
        Document { line, value, otherwise, too_deep }
    });
    Ok(documents.collect())
}

/// What a user should know of a scalar that kubectl reads otherwise.
pub(crate) fn read_otherwise(one: &ReadOtherwise) -> String {
    format!("line {}: kubectl reads {} as {}: quote it if it is a text", one.line, scalar(one), one.meant)
}

/// The scalar in a message.
pub(crate) fn scalar(one: &ReadOtherwise) -> String {
    one.word.as_ref().map_or_else(|| "a plain scalar".to_owned(), |word| format!("`{word}`"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_has_what_kubectl_reads_otherwise_in_it() {
        let text = "\u{feff}a: on\n---\nb: 'on'\n---\nc: 0644\n";
        let read = documents(Path::new("a.yaml"), text.as_bytes()).expect("reads");
        let told: Vec<_> =
            read.iter().map(|one| one.otherwise.iter().map(read_otherwise).collect::<Vec<_>>()).collect();
        let on = "line 1: kubectl reads `on` as true: quote it if it is a text".to_owned();
        let number = "line 5: kubectl reads a plain scalar as a number: quote it if it is a text".to_owned();
        assert_eq!(told, [vec![on], vec![], vec![number]]);
        assert_eq!(read[0].value, json!({"a": "on"}));
    }

    #[test]
    fn the_name_of_a_file_says_that_it_is_json() {
        let text = "\u{feff}{\"a\": \"on\"}\n{\"b\": 1}";
        let read = documents(Path::new("a.json"), text.as_bytes()).expect("reads");
        let values: Vec<_> = read.into_iter().map(|one| (one.line, one.value, one.otherwise)).collect();
        assert_eq!(values, [(1, json!({"a": "on"}), vec![]), (2, json!({"b": 1}), vec![])]);
        documents(Path::new("-"), text.as_bytes()).expect_err("YAML has no two documents in a row");
    }

    #[test]
    fn what_is_nested_too_deep_is_refused_or_named() {
        let text = format!("a: 1\n---\nb: {}1{}\n", "[".repeat(200), "]".repeat(200));
        let error = documents(Path::new("a.yaml"), text.as_bytes()).expect_err("too deep").to_string();
        assert_eq!(error, "line 2: it is nested deeper than 128 levels");
        let read = documents_with_gaps(Path::new("a.yaml"), text.as_bytes()).expect("reads");
        assert_eq!((read[0].too_deep.is_none(), read[1].too_deep.clone()), (true, Some(vec!["b".to_owned()])));
        assert!(matches!(documents(Path::new("a.yaml"), b"\xff"), Err(ReadError::NotText)));
    }
}
