//! The tests of the repository, found in its sources.
//!
//! [`syn`] parses the files, so that a name in a comment or in a string does not count as a test.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};
use syn::{Attribute, ItemFn};

use crate::files::TextFile;

/// A function with `#[test]`, or with an attribute like `#[tokio::test]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TestFunction {
    pub(crate) name: String,
    /// Its file, below the repository's folder.
    pub(crate) file: String,
}

/// The tests of all files, sorted by name. Files that do not parse have no tests.
pub(crate) fn tests(files: &[TextFile]) -> Vec<TestFunction> {
    let mut all = Vec::new();
    for file in files.iter().filter(|file| file.is_rust() && file.text.contains("test")) {
        let Ok(parsed) = syn::parse_file(&file.text) else { continue };
        let mut reader = Reader { file: file.path.display().to_string(), tests: &mut all };
        reader.visit_file(&parsed);
    }
    all.sort();
    all
}

/// The tests by their files: `a`, `b` ([one.rs](../tests/tests/faults/one.rs)); `c` (…). What `more` says of a file follows its link.
pub(crate) fn by_files(functions: &[&TestFunction], more: impl Fn(&str) -> String) -> String {
    let mut of_files: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for function in functions {
        of_files.entry(&function.file).or_default().push(format!("`{}`", function.name));
    }
    let file = |(file, names): (&str, Vec<String>)| {
        format!("{} ([{}](../{file}){})", names.join(", "), file.rsplit('/').next().unwrap_or(file), more(file))
    };
    of_files.into_iter().map(file).collect::<Vec<_>>().join("; ")
}

/// Collects the tests of a file.
struct Reader<'a> {
    file: String,
    tests: &'a mut Vec<TestFunction>,
}

impl Visit<'_> for Reader<'_> {
    fn visit_item_fn(&mut self, function: &ItemFn) {
        if function.attrs.iter().any(is_test) {
            self.tests.push(TestFunction { name: function.sig.ident.to_string(), file: self.file.clone() });
        }
        visit::visit_item_fn(self, function);
    }
}

fn is_test(attribute: &Attribute) -> bool {
    attribute.path().segments.last().is_some_and(|last| last.ident == "test")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_with_the_attribute_are_tests() {
        let text = "#[test]\nfn second() {}\n\
            #[cfg(test)]\nmod inner {\n/// Says more.\n#[tokio::test(start_paused = true)]\n#[ignore = \"slow\"]\nasync fn first() {}\n}\n\
            fn helper() { let text = \"#[test] fn no_test() {}\"; }\n// #[test]\nfn none() {}\n";
        let files = [
            TextFile { path: "one/src/lib.rs".into(), text: text.to_owned() },
            TextFile { path: "one/page.md".into(), text: "#[test] fn words() {}".to_owned() },
            TextFile { path: "one/src/broken.rs".into(), text: "#[test] fn broken( {".to_owned() },
        ];
        let function = |name: &str| TestFunction { name: name.to_owned(), file: "one/src/lib.rs".to_owned() };
        assert_eq!(super::tests(&files), [function("first"), function("second")]);
    }
}
