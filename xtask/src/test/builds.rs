//! What is built before tests are run: only what those need that are wanted.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::{Need, Plan};
use crate::executables::Executables;
use crate::programs::{self, Profile};
use crate::step::Step;
use crate::{cluster, e2e, guests, tools};

impl<'a> Plan<'a> {
    /// The steps that build tests, and what they need beside themselves. While one of them fails, no test is run.
    pub(super) fn builds(&mut self, needs: &[Need]) -> Result<()> {
        let (executables, workspace) = (self.executables, self.workspace);
        self.add_needed(Step::check("build: tests", move || executables.build(workspace)).gate());
        if needs.contains(&Need::Guests) {
            self.build_guests()?;
        }
        if needs.contains(&Need::Images) {
            // Before the programs: these static ones are linked where the programs come to be.
            let images = e2e::images_command(workspace)?;
            self.add_needed(Step::command("build: images", images).shown().gate());
        }
        if needs.contains(&Need::Programs) {
            for program in programs::all() {
                let mut build = programs::build_command(workspace, program, Profile::Dev);
                build.arg("--quiet");
                self.add_needed(Step::command(format!("build: {program}"), build).gate());
            }
        }
        if needs.contains(&Need::Kubernetes) {
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
