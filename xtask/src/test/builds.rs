//! The builds before the tests: only those that the selected tests need.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::{Need, Plan, collector};
use crate::executables::Executables;
use crate::programs::{self, Profile};
use crate::step::{Group, LIMIT_OF_BUILDS, Step};
use crate::{cluster, guests, test_images, tools};

/// The crate of the program that writes broken modules, in the workspace of the guests.
const MUTANTS: &str = "mutants";

/// The script that compares a module that is kept with one that was just built of the guest `$2`, unless that failed.
const COMPARE: &str =
    r#"! [ -e "$1" ] || cmp "$0" "$1" || { echo "run \`cargo xtask guests $2\` and commit the module"; exit 1; }"#;

impl<'a> Plan<'a> {
    /// Adds the steps that build tests and what they need. If one of them fails, no test is run.
    pub(super) fn builds(&mut self, needs: &[Need]) -> Result<()> {
        let (executables, workspace) = (self.executables, self.workspace);
        self.add_needed(Step::check("build: tests", move || executables.build(workspace)).gate());
        // So far nothing needs what is built.
        self.end_group(Group::beside);
        // These wait for each other, for downloads and for linkers, and Kubernetes takes the longest.
        if needs.contains(&Need::Kubernetes) {
            let build = move || {
                let mut commands = clusters(executables, &["build"])?;
                for build in &mut commands {
                    build.envs(collector::environment());
                }
                Ok(commands)
            };
            let step = Step::commands("build: Kubernetes and helm", build).shown().gate();
            self.add_needed(step.within(LIMIT_OF_BUILDS));
        }
        if needs.contains(&Need::Guests) {
            self.build_guests()?;
            let mut mutants = workspace.cargo_in_guests("build");
            mutants.args(["--quiet", "--package", MUTANTS]);
            self.add_needed(Step::command("build: mutants", mutants).gate().within(LIMIT_OF_BUILDS));
        }
        self.build_programs(needs)
    }

    /// Builds images and programs in one step, because both link to the same paths: what comes last is what stays.
    fn build_programs(&mut self, needs: &[Need]) -> Result<()> {
        let (mut names, mut commands) = (Vec::new(), Vec::new());
        if needs.contains(&Need::Images) {
            names.push("images");
            commands.push(test_images::command(self.workspace)?);
        }
        if needs.contains(&Need::Programs) {
            names.push("programs");
            let build = |program| programs::build_command(self.workspace, program, Profile::Dev);
            commands.extend(programs::all().into_iter().map(build).map(|mut build| {
                build.arg("--quiet");
                build
            }));
        }
        if !names.is_empty() {
            let step = Step::commands(format!("build: {}", names.join(" and ")), move || Ok(commands));
            self.add_needed(step.shown().gate().within(LIMIT_OF_BUILDS));
        }
        Ok(())
    }

    /// Removes what is left of clusters of earlier tests.
    pub(super) fn clean_up(&mut self) {
        let executables = self.executables;
        self.add_needed(Step::commands("cluster: clean up", move || clusters(executables, &["down", "--abandoned"])));
    }

    /// The folder of guests that are built for tests. It is not that of the committed modules, with which a test
    /// compares them.
    pub(super) fn guests_dir(&self) -> PathBuf {
        self.workspace.target.join("guests/built")
    }

    /// The program that writes broken modules.
    pub(super) fn mutants(&self) -> PathBuf {
        self.workspace.target_of_guests().join("debug").join(MUTANTS)
    }

    /// Starts this program again, so that the output goes to the log of the step.
    fn build_guests(&mut self) -> Result<()> {
        let name = "build: guests";
        if !self.wanted.list
            && let Err(missing) = tools::wasm_toolchain()
        {
            let words = format!("the kept modules were NOT compared with what their sources give: {missing:#}");
            self.add_needed(Step::skip(name, words));
            return Ok(());
        }
        let mut command = self.guests_command()?;
        command.args(guests::rust_names());
        if tools::on_path("go") {
            command.args(guests::go_names());
        }
        self.add_needed(Step::command(name, command).within(LIMIT_OF_BUILDS));
        Ok(())
    }

    /// Builds the guests in Rego, and compares them with the modules that are kept, which the tests use. Building OPA for it takes a minute.
    pub(super) fn rego_guests(&mut self) -> Result<()> {
        let name = "guests: kept modules in Rego";
        if !tools::on_path("go") {
            self.add(Step::skip(name, "there is no Go here to build OPA; install Go 1.26 or newer"));
            return Ok(());
        }
        let mut build = self.guests_command()?;
        build.args(guests::rego_modules().map(|(guest, _)| guest));
        let folder = self.guests_dir();
        let compare = guests::rego_modules().map(|(guest, kept)| {
            let mut compare = Command::new("sh");
            compare.args(["-c", COMPARE]).arg(kept).arg(folder.join(format!("{guest}.wasm"))).arg(guest);
            compare
        });
        let commands = [build].into_iter().chain(compare).collect();
        self.add(Step::commands(name, move || Ok(commands)).when_idle().within(LIMIT_OF_BUILDS));
        Ok(())
    }

    /// This program, as it builds guests for tests.
    fn guests_command(&self) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("failed to find this program")?);
        command.args(["guests", "--out"]).arg(self.guests_dir()).env("CARGO_TARGET_DIR", &self.workspace.target);
        Ok(command)
    }
}

/// The program that starts clusters, which was built with its tests.
fn clusters(executables: &Executables, args: &[&str]) -> Result<Vec<Command>> {
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    executables.start(|one| one.package == cluster::PACKAGE && one.kind == "bin" && !one.is_test, &args)
}
