//! The page `docs/compatibility.md`: each feature of Kubewarden, whether it exists here, and the tests that show it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::sources::{self, TestFunction};
use crate::files;

/// The path of the page.
pub(crate) const PATH: &str = "docs/compatibility.md";

/// The path of the features.
pub(crate) const FEATURES: &str = "tests/compatibility.yaml";

/// The text above the tables.
const HEAD: &str = "# Compatibility with Kubewarden\n\n\
    <!-- Written by `cargo xtask generate` from tests/compatibility.yaml. -->\n\n\
    What a policy, a file or a client made for Kubewarden 1.36 meets here. *Works* means as upstream, to the letter of its texts where clients may compare\n\
    them. Each row names the tests that show it. A run of `cargo xtask test` checks the names, and counts the rows whose tests ran and passed.\n";

/// A table of the page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    section: String,
    features: Vec<Feature>,
}

/// A row of a table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Feature {
    feature: String,
    here: Here,
    /// How it differs; empty if it does not.
    #[serde(default)]
    differs: String,
    /// The names of test functions.
    #[serde(default)]
    tests: Vec<String>,
}

/// Whether and how a feature exists here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Here {
    #[serde(rename = "works")]
    Works,
    #[serde(rename = "works differently")]
    Differs,
    #[serde(rename = "not supported")]
    Absent,
}

impl fmt::Display for Here {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Works => "works",
            Self::Differs => "works differently",
            Self::Absent => "not supported",
        })
    }
}

/// The page for the files of the repository.
pub(crate) fn of(root: &Path) -> Result<String> {
    let path = root.join(FEATURES);
    let features = fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
    let sections: Vec<Section> =
        serde_saphyr::from_str(&features).with_context(|| format!("failed to parse {FEATURES}"))?;
    text(&sections, &sources::tests(&files::read_all(root)?)).with_context(|| format!("{FEATURES} cannot be used"))
}

fn text(sections: &[Section], functions: &[TestFunction]) -> Result<String> {
    let mut of_names: BTreeMap<&str, Vec<&TestFunction>> = BTreeMap::new();
    for function in functions {
        of_names.entry(&function.name).or_default().push(function);
    }
    let mut text = HEAD.to_owned();
    for Section { section, features } in sections {
        text += &format!("\n## {section}\n\n| feature | here | how it differs | tests |\n| --- | --- | --- | --- |\n");
        for feature in features {
            text += &row(feature, &of_names).with_context(|| format!("{section}: {}", feature.feature))?;
        }
    }
    Ok(text)
}

fn row(feature: &Feature, of_names: &BTreeMap<&str, Vec<&TestFunction>>) -> Result<String> {
    let Feature { feature, here, differs, tests } = feature;
    ensure!(![feature, differs].iter().any(|cell| cell.contains(['|', '\n'])), "a cell has one line and no `|`");
    ensure!(*here == Here::Absent || !tests.is_empty(), "it names no test");
    let mut functions: Vec<&TestFunction> = Vec::new();
    for test in tests {
        let named = of_names.get(test.as_str());
        functions.extend(named.with_context(|| format!("it names the test {test}, and there is no such test"))?);
    }
    let (here, tests) = (here.to_string(), sources::by_files(&functions, |_| String::new()));
    let cells = [feature.as_str(), &here, differs, &tests];
    // An empty cell has one space.
    let cells = cells.map(|cell| if cell.is_empty() { " ".to_owned() } else { format!(" {cell} ") });
    Ok(format!("|{}|\n", cells.join("|")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(features: &str, functions: &[TestFunction]) -> Result<String> {
        text(&serde_saphyr::from_str::<Vec<Section>>(features)?, functions)
    }

    fn function(name: &str, file: &str) -> TestFunction {
        TestFunction { name: name.to_owned(), file: file.to_owned() }
    }

    #[test]
    fn each_feature_has_its_tests_with_their_files() {
        let features = "\
- section: Policies
  features:
    - feature: '`opa`'
      here: works
      tests: [it_goes_well, it_went_well]
    - feature: metrics
      here: works differently
      differs: 'other names: `a`'
      tests: [it_goes_well]
- section: Tools
  features:
    - {feature: a tool, here: not supported, differs: use another}
";
        let functions = [
            function("it_goes_well", "a/b.rs"),
            function("it_goes_well", "c/d.rs"),
            function("it_went_well", "a/b.rs"),
        ];
        let head = "| feature | here | how it differs | tests |\n| --- | --- | --- | --- |\n";
        let expected = format!(
            "{HEAD}\n## Policies\n\n{head}\
            | `opa` | works | | `it_goes_well`, `it_went_well` ([b.rs](../a/b.rs)); `it_goes_well` ([d.rs](../c/d.rs)) |\n\
            | metrics | works differently | other names: `a` | `it_goes_well` ([b.rs](../a/b.rs)); `it_goes_well` ([d.rs](../c/d.rs)) |\n\
            \n## Tools\n\n{head}| a tool | not supported | use another | |\n"
        );
        assert_eq!(page(features, &functions).expect("a page"), expected);
    }

    #[test]
    fn a_feature_that_no_test_shows_is_named() {
        let row = |rest: &str| format!("- {{section: Policies, features: [{{feature: Rego, {rest}}}]}}\n");
        for (rest, problem) in [
            ("here: works", "it names no test"),
            ("here: works, tests: [gone]", "the test gone, and there is no such test"),
            ("here: works, differs: a|b, tests: [there]", "no `|`"),
        ] {
            let error = page(&row(rest), &[function("there", "a.rs")]).expect_err(rest);
            let words = format!("{error:#}");
            assert!(words.contains("Policies: Rego") && words.contains(problem), "{words}");
        }
        assert!(page(&row("here: perhaps, tests: [there]"), &[function("there", "a.rs")]).is_err());
    }
}
