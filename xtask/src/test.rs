//! All tests, in the order in which a failure tells most: what is cheap first, the real programs last.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use crate::programs::{self, CONTROLLER, PROGRAMS, Profile};
use crate::step::{Step, run_all, summary};
use crate::workspace::Workspace;
use crate::{boundaries, cluster, e2e, guests, network, tools};

/// The crate of the black-box tests. They start the real programs, so those are built before it is run, and after the unit
/// tests: building the evaluator's tests may leave a program with their features behind.
const BLACK_BOX: &str = "portcullis-tests";

/// What of the tests to run.
pub(crate) struct Wanted {
    /// Only steps that have this in their name.
    pub(crate) filter: String,
    /// Name the steps, and run nothing.
    pub(crate) list: bool,
    /// Leave out what starts clusters.
    pub(crate) no_cluster: bool,
    /// For the Rust tests.
    pub(crate) args: Vec<OsString>,
}

/// Runs the steps that are wanted. Fails when any of them does.
pub(crate) fn run(workspace: &Workspace, wanted: &Wanted) -> Result<ExitCode> {
    let mut plan = Plan { workspace, wanted, steps: Vec::new() };
    plan.everything()?;
    if wanted.list {
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(
        !plan.steps.is_empty(),
        "no step has `{}` in its name: `cargo xtask test --list` names them",
        wanted.filter
    );
    let done = run_all(plan.steps, &workspace.target.join("xtask"))?;
    let (text, totals) = summary(&done);
    let left_out = if wanted.no_cluster { ", without cluster tests (--no-cluster)" } else { "" };
    println!("\n{text}{left_out}");
    Ok(if totals.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The steps, as they are collected.
struct Plan<'a> {
    workspace: &'a Workspace,
    wanted: &'a Wanted,
    steps: Vec<Step<'a>>,
}

impl<'a> Plan<'a> {
    fn everything(&mut self) -> Result<()> {
        self.formatting();
        for step in boundaries::builds_alone(self.workspace) {
            self.add(step.gate());
        }
        for step in boundaries::rules(self.workspace) {
            self.add(step);
        }
        self.generated()?;
        self.lints();
        self.unit_tests();
        self.guests();
        self.black_box()?;
        self.cluster()
    }

    fn formatting(&mut self) {
        let mut programs = self.workspace.cargo("fmt");
        programs.args(["--all", "--check"]);
        self.add(Step::command("formatting", programs));
        let mut guests = self.in_guests("fmt");
        guests.args(["--all", "--check"]);
        self.add(Step::command("guests: formatting", guests));
    }

    /// This program again, since what cargo says belongs into the step's log.
    fn generated(&mut self) -> Result<()> {
        let mut command = Command::new(std::env::current_exe().context("failed to find this program")?);
        command.args(["generate", "--check"]).env("CARGO_TARGET_DIR", &self.workspace.target);
        self.add(Step::command("generated files", command));
        Ok(())
    }

    fn lints(&mut self) {
        for variant in self.workspace.packages.iter().flat_map(|package| package.variants()) {
            let mut clippy = self.workspace.cargo("clippy");
            clippy
                .args(["--quiet", "--no-deps", "--all-targets"])
                .args(variant.args())
                .args(["--", "--deny", "warnings"]);
            self.add(Step::command(format!("lints: {}", variant.label()), clippy));
        }
    }

    fn unit_tests(&mut self) {
        let packages = self.workspace.packages.iter().filter(|package| package.name != BLACK_BOX);
        for variant in packages.flat_map(|package| package.variants()) {
            let mut selection = variant.args();
            if variant.package == cluster::PACKAGE {
                // Its other tests start clusters, and come last.
                selection.extend(["--lib", "--bins"]);
            }
            let test = self.cargo_test(&selection);
            self.add(Step::command(format!("tests: {}", variant.label()), test));
        }
    }

    fn guests(&mut self) {
        let mut clippy = self.in_guests("clippy");
        clippy.args(["--quiet", "--workspace", "--all-targets", "--", "--deny", "warnings"]);
        self.add(Step::command("guests: lints", clippy));

        let mut native = self.in_guests("test");
        native.args(["--quiet", "--workspace", "--no-fail-fast"]).args(&self.wanted.args);
        self.add(Step::command("guests: tests", native));

        self.add(if tools::on_path("go") {
            let mut go = Command::new("go");
            go.args(["test", "-v", "./..."]).current_dir(self.workspace.root.join("guests/allowed-registries"));
            Step::command("guests: tests in Go", go)
        } else {
            Step::skip("guests: tests in Go", "there is no Go here; install Go 1.24 or newer")
        });

        self.add(Step::check("guests: kept modules", || {
            Ok(guests::check().err().map(|error| format!("{error:#}")).into_iter().collect())
        }));
    }

    /// Programs and guests are built, each as a step, and the tests are told where.
    fn black_box(&mut self) -> Result<()> {
        let mut test = self.cargo_test(&["--package", BLACK_BOX]);
        test.env("PORTCULLIS_BIN_DIR", self.workspace.bin_dir(Profile::Dev.dir()));

        let name = "black-box: build guests";
        if self.selects(name) {
            // A folder of their own: a test compares them with the modules that are kept in the repository.
            let built = self.workspace.target.join("guests/built");
            match if self.wanted.list { Ok(()) } else { tools::wasm_toolchain() } {
                Ok(()) => {
                    let step = Step::command(name, self.build_guests(&built)?);
                    self.add(step);
                    test.env("PORTCULLIS_GUESTS_DIR", built);
                }
                Err(missing) => self.add(Step::skip(
                    name,
                    format!("the kept modules were NOT compared with what their sources give: {missing:#}"),
                )),
            }
        }
        for program in PROGRAMS {
            self.build("black-box", program);
        }
        if let Err(missing) = if self.wanted.list { Ok(()) } else { tools::registry() } {
            let separator = (!self.wanted.args.iter().any(|arg| arg == "--")).then_some("--");
            test.args(separator).args(["--skip", "registries::"]);
            self.add(Step::skip("black-box: registries", format!("nothing was tested with a registry: {missing:#}")));
        }
        self.add(Step::command("black-box: tests", test));
        Ok(())
    }

    /// The tests that start real control planes, each binary as a step, in networks of their own.
    fn cluster(&mut self) -> Result<()> {
        if self.wanted.no_cluster {
            return Ok(());
        }
        if let Err(missing) = if self.wanted.list { Ok(()) } else { cluster::possible() } {
            self.add(Step::skip("cluster: tests", format!("nothing was tested with Kubernetes: {missing:#}")));
            return Ok(());
        }
        self.add(Step::shown("cluster: build Kubernetes and helm", cluster::build_command(self.workspace)));
        for program in PROGRAMS.into_iter().chain([CONTROLLER]) {
            self.build("cluster", program);
        }
        let workspace = self.workspace;
        let package = workspace.packages.iter().find(|package| package.name == cluster::PACKAGE);
        let mut targets = package.context("the crate of the cluster tests is a member")?.test_targets();
        targets.retain(|target| target != e2e::TESTS);
        for target in targets {
            let name = format!("cluster: tests {target}");
            if target == cluster::NODE_TESTS
                && !self.wanted.list
                && self.selects(&name)
                && let Err(missing) = tools::node()
            {
                self.add(Step::skip(name, format!("no pod was run on a node: {missing:#}")));
                continue;
            }
            let mut test = workspace.cargo("test");
            if !self.wanted.list {
                network::own(&mut test)?;
            }
            test.args(["--quiet", "--no-fail-fast", "--package", cluster::PACKAGE, "--test", &target]);
            test.args(&self.wanted.args).env("PORTCULLIS_BIN_DIR", workspace.bin_dir(Profile::Dev.dir()));
            if !self.wanted.args.iter().any(|arg| arg == "--") {
                test.arg("--");
            }
            // Tests of a binary share a cluster and two cores; more of them at once would only wait for each other.
            test.args(["--include-ignored", "--test-threads", "3"]);
            self.add(Step::command(name, test));
        }
        self.chart()?;
        self.add(Step::command("cluster: clean up", cluster::clean_command(workspace)));
        Ok(())
    }

    /// The tests of what the chart promises, on images that are made for them.
    fn chart(&mut self) -> Result<()> {
        let name = format!("cluster: tests {}", e2e::TESTS);
        if !self.wanted.list
            && self.selects(&name)
            && let Err(missing) = tools::node()
        {
            self.add(Step::skip(name, format!("the chart was not installed: {missing:#}")));
            return Ok(());
        }
        let images = format!("cluster: images for {}", e2e::TESTS);
        self.add(Step::shown(images, e2e::images_command(self.workspace)?));
        let mut test = self.workspace.cargo("test");
        if !self.wanted.list {
            network::own(&mut test)?;
        }
        e2e::with_images(&mut test, self.workspace);
        e2e::complete(&mut test, self.workspace, &self.wanted.args);
        self.add(Step::command(name, test));
        Ok(())
    }

    fn build(&mut self, part: &str, program: &str) {
        let mut build = programs::build_command(self.workspace, program, Profile::Dev);
        build.arg("--quiet");
        self.add(Step::command(format!("{part}: build {program}"), build).gate());
    }

    /// This program again, since a step's output belongs into its log.
    fn build_guests(&self, out: &Path) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("failed to find this program")?);
        command.args(["guests", "--out"]).arg(out).env("CARGO_TARGET_DIR", &self.workspace.target);
        if !tools::on_path("go") {
            command.args(guests::rust_names());
        }
        Ok(command)
    }

    fn cargo_test(&self, selection: &[&str]) -> Command {
        let mut test = self.workspace.cargo("test");
        test.args(["--quiet", "--no-fail-fast"]).args(selection).args(&self.wanted.args);
        test
    }

    /// A cargo command in the workspace of the guests, which has other features, profiles and lints.
    fn in_guests(&self, subcommand: &str) -> Command {
        let mut command = self.workspace.cargo(subcommand);
        command
            .current_dir(self.workspace.root.join("guests"))
            .env("CARGO_TARGET_DIR", self.workspace.target.join("guests/build"));
        command
    }

    fn selects(&self, name: &str) -> bool {
        name.contains(&self.wanted.filter)
    }

    fn add(&mut self, step: Step<'a>) {
        if !self.selects(&step.name) {
            return;
        }
        if self.wanted.list {
            println!("{}", step.name);
        } else {
            self.steps.push(step);
        }
    }
}
