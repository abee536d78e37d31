//! The images for tests on clusters with a node: their folder, and how they are made.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::images;
use crate::workspace::Workspace;

/// The environment variable with the folder of the images.
pub(crate) const VARIABLE: &str = "PORTCULLIS_IMAGES_DIR";

/// Makes images for tests, and sets their folder for a command.
pub(crate) fn make(workspace: &Workspace, command: &mut Command) -> Result<()> {
    let folder = folder(workspace, false);
    images::run(workspace, &images::Wanted::all(true, &folder))?;
    command.env(VARIABLE, folder);
    Ok(())
}

/// The command that makes images for tests.
pub(crate) fn command(workspace: &Workspace) -> Result<Command> {
    let mut command = Command::new(env::current_exe().context("failed to find this program")?);
    command.args(["images", "--debug", "--out"]).arg(folder(workspace, false));
    command.env("CARGO_TARGET_DIR", &workspace.target);
    Ok(command)
}

/// The folder of test images, apart from those for users.
pub(crate) fn folder(workspace: &Workspace, is_release: bool) -> PathBuf {
    workspace.target.join(if is_release { "images" } else { "images/debug" })
}
