//! That the programs and the tests are built from the same dependencies with the same features, as far as they can be.
//!
//! Cargo compiles a dependency once for each set of features, and with it all that is built on it. A feature that only one program wants of
//! a small crate can double the time of a first build.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::tree::{self, Node};
use crate::programs;
use crate::workspace::Workspace;

/// The crate without code that gives dependencies their features.
pub(super) const PACKAGE: &str = "portcullis-workspace-hack";

/// Dependencies that differ on purpose.
const MAY_DIFFER: [(&[&str], &str); 3] = [
    (
        &[
            "cranelift-bitset",
            "gimli",
            "object",
            "pulley-interpreter",
            "wasmparser",
            "wasmtime",
            "wasmtime-environ",
            "wasmtime-internal-core",
            "wasmtime-internal-unwinder",
        ],
        "one program has the compiler and another the runtime",
    ),
    (&["granit-parser", "hyper", "hyper-util", "serde-saphyr"], "the evaluator calls nobody, and reads no YAML"),
    (&["either", "hashbrown", "itertools", "rcgen"], "little is built on them"),
];

/// A package with its version.
type Package<'t> = (&'t str, &'t str);

/// The programs that build a package, by the features with which they do.
type Builds<'t> = BTreeMap<&'t BTreeSet<String>, Vec<&'t str>>;

/// The trees of the programs and of the tests, compared.
pub(super) fn check(workspace: &Workspace) -> Result<Vec<String>> {
    let mut trees = Vec::new();
    for program in programs::all() {
        let of_program = tree::read(workspace, &["--package", program, "--edges", "normal,no-proc-macro"])?;
        trees.push((program, of_program));
    }
    trees.push(("the tests", tree::read(workspace, &["--workspace", "--edges", "normal,dev,no-proc-macro"])?));
    Ok(differing(&trees))
}

/// A sentence for each dependency that is built with different features.
fn differing(trees: &[(&str, BTreeSet<Node>)]) -> Vec<String> {
    let mut builds: BTreeMap<Package<'_>, Builds<'_>> = BTreeMap::new();
    for (owner, tree) in trees {
        for node in tree {
            let of_package = builds.entry((&node.name, &node.version)).or_default();
            of_package.entry(&node.features).or_default().push(owner);
        }
    }
    let may_differ = |name: &str| MAY_DIFFER.iter().any(|(names, _)| names.contains(&name));
    let is_ours = |name: &str| name.starts_with("portcullis");
    builds.retain(|(name, _), sets| sets.len() > 1 && !may_differ(name) && !is_ours(name));
    let sentence = |((name, version), sets): (Package<'_>, Builds<'_>)| {
        let sets = sets.iter().map(|(features, owners)| {
            let features = features.iter().map(String::as_str).collect::<Vec<_>>().join(",");
            format!("{} with `{features}`", owners.join(", "))
        });
        format!(
            "{name} {version} is built more than once, and with it all that is built on it: {}. Give it all these features in \
             crates/workspace-hack/Cargo.toml",
            sets.collect::<Vec<_>>().join("; ")
        )
    };
    builds.into_iter().map(sentence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_with_other_features_is_told() {
        let trees = |other: &str| {
            let tree = |text: &str| tree::parse(text);
            [("loader", tree("mio v1.0.0|log\nwasmtime v48.0.0|cranelift\n")), ("reporter", tree(other))]
        };
        assert_eq!(differing(&trees("mio v1.0.0|log\nwasmtime v48.0.0|runtime\n")), Vec::<String>::new());
        assert_eq!(differing(&trees("mio v2.0.0|\n")), Vec::<String>::new());
        let problems = differing(&trees("mio v1.0.0|\n"));
        assert_eq!(problems.len(), 1);
        assert!(
            problems[0].contains("mio v1.0.0") && problems[0].contains("reporter with ``; loader with `log`"),
            "{problems:?}"
        );
    }
}
