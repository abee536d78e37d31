//! What compilers and formatters say about the sources, without running any of it.

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::step::{LIMIT_OF_BUILDS, Step, run_one_by_one};
use crate::test::BLACK_BOX;
use crate::workspace::Workspace;
use crate::{boundaries, programs};

/// The crate of the benchmarks.
const BENCH: &str = "portcullis-bench";

/// Checks formatting and lints, of everything at once and of each library by itself. Fails if something is wrong.
///
/// This is apart from the tests because nothing that it compiles is of use to them.
pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode> {
    run_one_by_one(steps(workspace), &workspace.target.join("xtask"))
}

fn steps(workspace: &Workspace) -> Vec<Step<'_>> {
    let formatting = |mut cargo: Command| {
        cargo.args(["--all", "--check"]);
        cargo
    };
    let lints = |mut cargo: Command| {
        cargo.args(["--quiet", "--workspace", "--all-targets", "--", "--deny", "warnings"]);
        cargo
    };
    let mut steps = vec![
        Step::command("formatting", formatting(workspace.cargo("fmt"))),
        Step::command("guests: formatting", formatting(workspace.cargo_in_guests("fmt"))),
        Step::command("lints", lints(workspace.cargo("clippy"))),
    ];
    // Programs are built by themselves for the tests, and benchmarks and tests are always built with the whole workspace.
    let is_else = |step: &Step<'_>| {
        let name = step.name.strip_prefix(boundaries::ALONE);
        programs::all().into_iter().chain([BENCH, BLACK_BOX]).any(|other| Some(other) == name)
    };
    steps.extend(boundaries::builds_alone(workspace).into_iter().filter(|step| !is_else(step)));
    steps.push(Step::command("guests: lints", lints(workspace.cargo_in_guests("clippy"))));
    steps.into_iter().map(|step| step.within(LIMIT_OF_BUILDS)).collect()
}
