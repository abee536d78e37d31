//! What a program must never link, checked in its dependency tree.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};

use crate::workspace::Workspace;

/// What one of our packages must not depend on, and why.
struct Rule {
    package: &'static str,
    never: &'static [Ban],
    why: &'static str,
}

enum Ban {
    /// The package of this name.
    Package(&'static str),
    /// Every package whose name begins with this.
    Prefix(&'static str),
    /// This feature of this package.
    Feature(&'static str, &'static str),
}

use Ban::{Feature, Package, Prefix};

const RULES: [Rule; 9] = [
    Rule {
        package: "portcullis-evaluator",
        never: &[
            Package("cranelift-codegen"),
            Package("winch-codegen"),
            Package("wasmtime-internal-cranelift"),
            Package("wasmtime-internal-winch"),
            Prefix("kube"),
            Package("k8s-openapi"),
            Package("reqwest"),
            Package("portcullis-api"),
            Package("schemars"),
        ],
        why: "no compiler, no client and no API type may be where requests arrive",
    },
    Rule {
        package: "portcullis-loader",
        never: &[Feature("wasmtime", "runtime")],
        why: "the loader compiles policies and has no way to run one",
    },
    Rule {
        package: "portcullis-reporter",
        never: &[Package("wasmtime"), Package("cranelift-codegen")],
        why: "the reporter holds the API token and touches no module",
    },
    Rule {
        package: "portcullis-controller",
        never: &[
            Package("wasmtime"),
            Package("cranelift-codegen"),
            Package("portcullis-engine"),
            Package("portcullis-registry"),
        ],
        why: "rights over webhooks are rights over the cluster; nothing of a module comes near them",
    },
    Rule {
        package: "portcullis-kubernetes",
        never: &[Package("wasmtime"), Package("portcullis-api"), Package("portcullis-contract")],
        why: "talking to an API server decides nothing about policies",
    },
    Rule {
        package: "portcullis",
        never: &[Package("wasmtime"), Package("cranelift-codegen")],
        why: "the command-line tool starts the programs and is none of them",
    },
    Rule {
        package: "portcullis-contract",
        never: &[Package("wasmtime"), Package("tokio"), Package("axum"), Package("hyper"), Prefix("kube")],
        why: "the contract is data and pure functions",
    },
    Rule {
        package: "portcullis-matching",
        never: &[Package("wasmtime"), Package("tokio"), Package("hyper"), Prefix("kube")],
        why: "which objects a policy is asked about is decided without any of them",
    },
    Rule { package: "portcullis-api", never: &[Package("wasmtime"), Package("tokio")], why: "the resources are data" },
];

/// One package of a tree, with the features it is built with.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Node {
    pub(super) name: String,
    /// As cargo writes it, for instance `v1.0.0`.
    pub(super) version: String,
    pub(super) features: BTreeSet<String>,
}

pub(super) fn check(workspace: &Workspace) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for rule in &RULES {
        problems.extend(broken(rule, &read(workspace, &["--package", rule.package, "--edges", "normal"])?));
    }
    Ok(problems)
}

/// The packages that `cargo tree` lists with these arguments.
pub(super) fn read(workspace: &Workspace, args: &[&str]) -> Result<BTreeSet<Node>> {
    let mut tree = workspace.cargo("tree");
    tree.args(["--quiet", "--prefix", "none", "--format", "{p}|{f}"]).args(args);
    let output = tree.output().context("failed to start cargo tree")?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo tree failed for {}: {}", args.join(" "), words.trim());
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

/// The violations of the rule in a tree.
fn broken(rule: &Rule, tree: &BTreeSet<Node>) -> Vec<String> {
    let mut problems = Vec::new();
    for node in tree {
        for ban in rule.never {
            let what = match ban {
                Package(name) if node.name == *name => node.name.clone(),
                Prefix(prefix) if node.name.starts_with(prefix) => node.name.clone(),
                Feature(name, feature) if node.name == *name && node.features.contains(*feature) => {
                    format!("{name} with its feature {feature}")
                }
                _ => continue,
            };
            let package = rule.package;
            problems.push(format!(
                "{package} depends on {what}: {} (`cargo tree -p {package} -e normal,features -i {}` shows the way)",
                rule.why, node.name,
            ));
        }
    }
    problems
}

/// Reads lines like `serde v1.0.0 (proc-macro)|derive,std (*)`.
pub(super) fn parse(output: &str) -> BTreeSet<Node> {
    let node = |line: &str| {
        let (package, features) = line.split_once('|')?;
        let features = features.trim_end_matches("(*)").trim();
        let mut words = package.split_whitespace();
        Some(Node {
            name: words.next()?.to_owned(),
            version: words.next()?.to_owned(),
            features: features.split(',').filter(|feature| !feature.is_empty()).map(str::to_owned).collect(),
        })
    };
    output.lines().filter_map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule {
        package: "portcullis-loader",
        never: &[Feature("wasmtime", "runtime"), Prefix("kube"), Package("winch-codegen")],
        why: "it must not",
    };

    #[test]
    fn names_and_features_are_read() {
        let tree = parse("portcullis-loader v0.1.0 (/repo/loader)|\nwasmtime v48.0.8|cranelift,std (*)\n\n");
        let names: Vec<_> = tree.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["portcullis-loader", "wasmtime"]);
        let features: Vec<_> = tree.iter().flat_map(|node| &node.features).collect();
        assert_eq!(features, ["cranelift", "std"]);
    }

    #[test]
    fn a_clean_tree_breaks_nothing() {
        assert_eq!(broken(&RULE, &parse("wasmtime v48.0.8|cranelift,std\nsha2 v0.10.9|\n")), Vec::<String>::new());
    }

    #[test]
    fn a_banned_feature_is_found() {
        let problems = broken(&RULE, &parse("wasmtime v48.0.8|runtime,std\n"));
        assert_eq!(
            problems,
            ["portcullis-loader depends on wasmtime with its feature runtime: it must not \
              (`cargo tree -p portcullis-loader -e normal,features -i wasmtime` shows the way)"],
        );
    }

    #[test]
    fn banned_names_and_beginnings_are_found() {
        assert_eq!(broken(&RULE, &parse("kube-client v2.0.0|\nwinch-codegen v48.0.8|\nwinch v1.0.0|\n")).len(), 2);
    }
}
