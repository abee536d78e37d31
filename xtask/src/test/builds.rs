//! What is built before tests are run: only what those need that are wanted.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::{Need, Plan, Tests};
use crate::executables::Executables;
use crate::programs::{self, CONTROLLER, PROGRAMS, Profile};
use crate::step::Step;
use crate::{cluster, e2e, guests, tools};

impl<'a> Plan<'a> {
    /// The steps that build what these tests need. While one of them fails, no test is run.
    pub(super) fn builds<'t>(&mut self, tests: impl Iterator<Item = &'t Tests<'a>> + Clone) -> Result<()>
    where
        'a: 't,
    {
        let needs = |need| tests.clone().any(|tests| tests.needs.contains(&need));
        let (executables, workspace) = (self.executables, self.workspace);
        if tests.clone().next().is_some() {
            self.add_needed(Step::check("build: tests", move || executables.build(workspace)).gate());
        }
        if needs(Need::Guests) {
            self.build_guests()?;
        }
        if needs(Need::Images) {
            // Before the programs: these static ones are linked where the programs come to be.
            let images = e2e::images_command(workspace)?;
            self.add_needed(Step::command("build: images", images).shown().gate());
        }
        if needs(Need::Programs) {
            for program in PROGRAMS.into_iter().chain([CONTROLLER]) {
                let mut build = programs::build_command(workspace, program, Profile::Dev);
                build.arg("--quiet");
                self.add_needed(Step::command(format!("build: {program}"), build).gate());
            }
        }
        if needs(Need::Kubernetes) {
            let build = move || clusters(executables, &["build"]);
            self.add_needed(Step::commands("build: Kubernetes and helm", build).shown().gate());
        }
        Ok(())
    }

    /// Removes what clusters of ended tests have left.
    pub(super) fn clean_up(&mut self) {
        let executables = self.executables;
        self.add_needed(Step::commands("cluster: clean up", move || clusters(executables, &["down", "--abandoned"])));
    }

    /// Where the guests are built for tests. A folder of their own: a test compares them with the modules that are kept in the repository.
    pub(super) fn guests_dir(&self) -> PathBuf {
        self.workspace.target.join("guests/built")
    }

    /// This program again, since a step's output belongs into its log.
    fn build_guests(&mut self) -> Result<()> {
        let name = "build: guests";
        if !self.wanted.list
            && let Err(missing) = tools::wasm_toolchain()
        {
            let words = format!("the kept modules were NOT compared with what their sources give: {missing:#}");
            self.add_needed(Step::skip(name, words));
            return Ok(());
        }
        let mut command = Command::new(std::env::current_exe().context("failed to find this program")?);
        command.args(["guests", "--out"]).arg(self.guests_dir()).env("CARGO_TARGET_DIR", &self.workspace.target);
        if !tools::on_path("go") {
            command.args(guests::rust_names());
        }
        self.add_needed(Step::command(name, command));
        Ok(())
    }
}

/// The program that makes clusters, which was built with its tests.
fn clusters(executables: &Executables, args: &[&str]) -> Result<Vec<Command>> {
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    executables.start(|one| one.package == cluster::PACKAGE && one.kind == "bin" && !one.is_test, &args)
}
