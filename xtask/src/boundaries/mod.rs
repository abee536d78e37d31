//! What ARCHITECTURE.md promises, checked: each rule returns what breaks it, a sentence each.

mod circles;
mod named_tests;
mod rows;
mod tidy;
mod tree;
mod unsafe_code;
mod words;

use std::process::ExitCode;

use anyhow::Result;

use crate::evidence::count::Count;
use crate::files;
use crate::step::{Step, run_all, summary};
use crate::workspace::Workspace;

/// What the names of these steps begin with.
pub(crate) const ALONE: &str = "builds alone: ";

/// Runs all rules, the building of each crate alone included.
pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode> {
    let mut steps = rules(workspace);
    steps.extend(builds_alone(workspace));
    let done = run_all(steps, &workspace.target.join("xtask"))?;
    let (_, totals) = summary(&done, &Count::default());
    Ok(if totals.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The rules that need no compiler.
pub(crate) fn rules(workspace: &Workspace) -> Vec<Step<'_>> {
    vec![
        Step::check("boundaries: dependencies", || tree::check(workspace)),
        Step::check("boundaries: unsafe code", || {
            Ok(unsafe_code::check(&workspace.packages, &files::read_all(&workspace.root)?))
        }),
        Step::check("boundaries: tidy files", || {
            Ok(tidy::check(&workspace.packages, &files::read_all(&workspace.root)?))
        }),
        Step::check(circles::title(), || {
            circles::check(&workspace.packages, &files::read_all(&workspace.root)?, &circles::NOT_YET)
        }),
        Step::check("boundaries: plain words", || Ok(words::check(&files::read_all(&workspace.root)?))),
        Step::check("boundaries: fault rows", || Ok(rows::check(&files::read_all(&workspace.root)?))),
        Step::check("boundaries: named tests", || Ok(named_tests::check(&files::read_all(&workspace.root)?))),
    ]
}

/// Each crate by itself: what it needs it must name, and not get through a neighbour that is built with it.
pub(crate) fn builds_alone(workspace: &Workspace) -> Vec<Step<'_>> {
    let variants = workspace.packages.iter().flat_map(|package| package.variants());
    variants
        .map(|variant| {
            // Lints too: what one feature leaves unused is used by another.
            let mut command = workspace.cargo("clippy");
            command.args(["--quiet", "--no-deps"]).args(variant.args()).args(["--", "--deny", "warnings"]);
            Step::command(format!("{ALONE}{}", variant.label()), command)
        })
        .collect()
}
