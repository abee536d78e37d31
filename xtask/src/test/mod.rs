//! All tests: the quick ones first, those of the real programs last.

mod builds;
mod collector;
mod real;

use std::ffi::OsString;
use std::io::Write as _;
use std::mem;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use crate::evidence::count::{Count, count};
use crate::evidence::outcomes::{self, Outcomes};
use crate::executables::{Executable, Executables};
use crate::step::{Done, Group, LIMIT_OF_BUILDS, Outcome, Step, run_all, summary};
use crate::workspace::Workspace;
use crate::{boundaries, cluster, deny, files, generate, guests, tools};

/// The crate whose tests count the instructions of a request.
const EVALUATOR: &str = "portcullis-evaluator";

/// The crate of the black-box tests, which start the real programs.
pub(crate) const BLACK_BOX: &str = "portcullis-tests";

/// The crates with the slowest tests, in the order in which they begin.
const SLOWEST_CRATES: [&str; 4] = ["portcullis-loader", EVALUATOR, "portcullis-reporter", "portcullis-engine"];

/// Which tests to run, and how.
pub(crate) struct Wanted {
    /// Run only the steps with this text in their name.
    pub(crate) filter: String,
    /// Print the names of the steps and run nothing.
    pub(crate) list: bool,
    /// Leave out the tests that start clusters.
    pub(crate) no_cluster: bool,
    /// Arguments for the Rust tests.
    pub(crate) args: Vec<OsString>,
}

/// Runs the selected steps. Fails if one of them does.
pub(crate) fn run(workspace: &Workspace, wanted: &Wanted) -> Result<ExitCode> {
    let executables = Executables::default();
    let mut plan = Plan { workspace, wanted, executables: &executables, groups: Vec::new(), steps: Vec::new() };
    plan.everything()?;
    if wanted.list {
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(
        !plan.groups.iter().all(Group::is_empty),
        "no step has `{}` in its name: `cargo xtask test --list` names them",
        wanted.filter
    );
    let done = run_all(plan.groups, &workspace.target.join("xtask"))?;
    let shown = shown(workspace, wanted, &done)?;
    if !shown.rows.is_empty() {
        Outcomes::here(&workspace.root, shown.rows.clone(), shown.tests.clone())
            .write(&outcomes::of_last_run(&workspace.target))?;
    }
    let (text, totals) = summary(&done, &shown);
    let left_out = if wanted.no_cluster { ", without cluster tests (--no-cluster)" } else { "" };
    println!("\n{text}{left_out}");
    Ok(if totals.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The results of the tests, if all of them were wanted and the build is not broken.
fn shown(workspace: &Workspace, wanted: &Wanted, done: &[Done]) -> Result<Count> {
    let is_whole = wanted.filter.is_empty() && wanted.args.is_empty();
    if !is_whole || done.iter().any(|step| step.outcome == Outcome::NotRun) {
        return Ok(Count::default());
    }
    let mut left_out: Vec<_> = done.iter().filter_map(|step| step.leaves_out).collect();
    left_out.extend(wanted.no_cluster.then_some(real::CLUSTER_TESTS));
    let runs: Vec<_> = done.iter().flat_map(|step| &step.runs).cloned().collect();
    Ok(count(&files::read_all(&workspace.root)?, &runs, &left_out))
}

/// The steps, while they are collected.
struct Plan<'a> {
    workspace: &'a Workspace,
    wanted: &'a Wanted,
    executables: &'a Executables,
    groups: Vec<Group<'a>>,
    /// Those of the next group.
    steps: Vec<Step<'a>>,
}

/// Tests that run when everything is built.
struct Tests<'a> {
    step: Step<'a>,
    /// The things that they start or read.
    needs: &'static [Need],
}

/// A thing that tests start or read.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Need {
    /// The programs that count system calls and instructions.
    Counters,
    Programs,
    Guests,
    Kubernetes,
    Images,
}

impl<'a> Plan<'a> {
    fn everything(&mut self) -> Result<()> {
        for step in boundaries::rules(self.workspace) {
            self.add(step);
        }
        self.advisories();

        let selected = |tests: Vec<Tests<'a>>| -> Vec<_> {
            tests.into_iter().filter(|tests| self.selects(&tests.step.name)).collect()
        };
        let unit = selected([vec![self.generated()], self.unit_tests()].into_iter().flatten().collect());
        let alone = selected(vec![self.alone()]);
        let beside_few = selected(self.beside_few());
        let real = selected(self.real_tests()?);
        let needed: Vec<_> = [&unit, &alone, &beside_few, &real].into_iter().flatten().collect();
        let needs: Vec<Need> = needed.iter().flat_map(|tests| tests.needs).copied().collect();
        if needs.contains(&Need::Counters) && !self.wanted.list {
            tools::counters();
        }
        if !needed.is_empty() {
            self.builds(&needs)?;
        }
        // Kubernetes is still being built when the other builds have ended, and leaves a part of the machine idle.
        self.guests();
        self.end_group(Group::beside);
        for tests in unit {
            self.add(tests.step);
        }
        self.end_group(Group::beside);
        for tests in alone {
            self.add(tests.step);
        }
        // The first of these tests, which hold up connections, leave half of the machine idle.
        self.rego_guests()?;
        self.end_group(Group::one_by_one);
        for tests in beside_few {
            self.add(tests.step);
        }
        self.end_group(Group::two_at_once);
        for tests in real {
            self.add(tests.step);
        }
        self.end_group(Group::beside);
        if needs.contains(&Need::Kubernetes) {
            self.clean_up();
            self.end_group(Group::one_by_one);
        }
        Ok(())
    }

    fn advisories(&mut self) {
        // Whether the database can be fetched is checked only if the step is selected.
        if self.wanted.list {
            self.add(Step::skip(deny::ADVISORIES, ""));
        } else if self.selects(deny::ADVISORIES) {
            self.add(deny::advisories(self.workspace));
        }
    }

    /// Starts this program again, so that the output goes to the log of the step.
    fn generated(&self) -> Tests<'a> {
        let (executables, workspace) = (self.executables, self.workspace);
        let step = Step::commands("generated files", move || {
            let (package, example) = generate::DEFINITIONS;
            let is_it = |one: &Executable| one.package == package && one.kind == "example" && one.target == example;
            let writes = executables.start(is_it, &[])?;
            let writes = writes.first().context("the program that writes the definitions was not built")?.get_program();
            let mut command = Command::new(std::env::current_exe().context("failed to find this program")?);
            command.args(["generate", "--check", "--definitions"]).arg(writes);
            command.env("CARGO_TARGET_DIR", &workspace.target);
            Ok(vec![command])
        });
        Tests { step, needs: &[] }
    }

    fn guests(&mut self) {
        let mut native = self.workspace.cargo_in_guests("test");
        // Without `--quiet`, which would also keep the names of tests from being written.
        native.args(["--workspace", "--no-fail-fast"]).args(&self.wanted.args);
        self.add(Step::command("guests: tests", native).within(LIMIT_OF_BUILDS));

        self.add(if tools::on_path("go") {
            let workspace = self.workspace;
            Step::commands("guests: tests in Go", move || {
                let test = |name: &str| {
                    let mut go = Command::new("go");
                    go.args(["test", "-v", "./..."]).current_dir(workspace.root.join("guests").join(name));
                    go
                };
                Ok(guests::go_names().map(test).collect())
            })
        } else {
            Step::skip("guests: tests in Go", "there is no Go here; install Go 1.24 or newer")
        });

        self.add(Step::check("guests: kept modules", || {
            Ok(guests::check().err().map(|error| format!("{error:#}")).into_iter().collect())
        }));
    }

    /// The tests of each crate that do not start a cluster. The slowest come first, so that they do not run alone at the end.
    fn unit_tests(&self) -> Vec<Tests<'a>> {
        let mut packages: Vec<_> = self.workspace.packages.iter().filter(|package| package.name != BLACK_BOX).collect();
        packages.sort_by_key(|package| position(&SLOWEST_CRATES, &package.name));
        let tests = packages.into_iter().map(|package| {
            let (executables, args) = (self.executables, self.args());
            let step = Step::commands(format!("tests: {}", package.name), move || {
                // Tests that start clusters come last.
                let is_early = |kind: &str| kind != "test" || package.name != cluster::PACKAGE;
                executables.start(|one| one.is_test && one.package == package.name && is_early(&one.kind), &args)
            });
            Tests { step, needs: if package.name == EVALUATOR { &[Need::Counters] } else { &[] } }
        });
        tests.collect()
    }

    /// The arguments for tests, without the `--` that separates them from cargo's.
    fn args(&self) -> Vec<OsString> {
        self.wanted.args.iter().filter(|arg| *arg != "--").cloned().collect()
    }

    fn selects(&self, name: &str) -> bool {
        name.contains(&self.wanted.filter)
    }

    /// Adds a step, if its name is selected.
    fn add(&mut self, step: Step<'a>) {
        if self.selects(&step.name) {
            self.add_needed(step);
        }
    }

    /// Ends the group of the steps that were added since the last one.
    fn end_group(&mut self, group: impl FnOnce(Vec<Step<'a>>) -> Group<'a>) {
        self.groups.push(group(mem::take(&mut self.steps)));
    }

    /// Adds a step, whatever its name.
    fn add_needed(&mut self, step: Step<'a>) {
        if self.wanted.list {
            // `head` reads only some of them.
            writeln!(std::io::stdout(), "{}", step.name).ok();
        } else {
            self.steps.push(step);
        }
    }
}

/// The position of a name among the slowest; the others are behind them.
fn position(slowest: &[&str], name: &str) -> usize {
    slowest.iter().position(|slow| *slow == name).unwrap_or(slowest.len())
}
