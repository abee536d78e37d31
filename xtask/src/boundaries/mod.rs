//! Checks the promises of ARCHITECTURE.md: each rule returns its violations, one sentence each.

mod cycles;
mod named_tests;
mod rows;
mod shared_features;
mod tidy;
mod tree;
mod unsafe_code;
mod words;

use std::process::ExitCode;

use anyhow::Result;

use crate::files;
use crate::step::{Step, run_one_by_one};
use crate::workspace::Workspace;

/// The prefix of the names of these steps.
pub(crate) const ALONE: &str = "builds alone: ";

/// Runs all rules, including the building of each crate alone.
pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode> {
    let mut steps = rules(workspace);
    steps.extend(builds_alone(workspace));
    run_one_by_one(steps, &workspace.target.join("xtask"))
}

/// The rules that need no compiler.
pub(crate) fn rules(workspace: &Workspace) -> Vec<Step<'_>> {
    vec![
        Step::check("boundaries: dependencies", || tree::check(workspace)),
        Step::check("boundaries: shared features", || shared_features::check(workspace)),
        Step::check("boundaries: unsafe code", || {
            Ok(unsafe_code::check(&workspace.packages, &files::read_all(&workspace.root)?))
        }),
        Step::check("boundaries: tidy files", || {
            Ok(tidy::check(&workspace.packages, &files::read_all(&workspace.root)?))
        }),
        Step::check(cycles::title(), || {
            cycles::check(&workspace.packages, &files::read_all(&workspace.root)?, &cycles::NOT_YET)
        }),
        Step::check("boundaries: plain words", || Ok(words::check(&files::read_all(&workspace.root)?))),
        Step::check("boundaries: fault rows", || Ok(rows::check(&files::read_all(&workspace.root)?))),
        Step::check("boundaries: named tests", || Ok(named_tests::check(&files::read_all(&workspace.root)?))),
    ]
}

/// Builds each crate alone: it must name what it needs, and not get it through another crate that is built with it.
pub(crate) fn builds_alone(workspace: &Workspace) -> Vec<Step<'_>> {
    let with_code = workspace.packages.iter().filter(|package| package.name != shared_features::PACKAGE);
    let variants = with_code.flat_map(|package| package.variants());
    variants
        .map(|variant| {
            // With lints, because code that one feature leaves unused may be used by another.
            let mut command = workspace.cargo("clippy");
            command.args(["--quiet", "--no-deps"]).args(variant.args()).args(["--", "--deny", "warnings"]);
            Step::command(format!("{ALONE}{}", variant.label()), command)
        })
        .collect()
}
