//! Kubernetes control planes on this machine for tests and for users; the program of another crate starts them.

use std::env;
use std::ffi::OsString;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use crate::programs::Profile;
use crate::workspace::Workspace;
use crate::{network, programs, test_images, tools};

/// The crate that starts control planes, and its tests.
pub(crate) const PACKAGE: &str = "portcullis-e2e";

/// Its tests that start clusters with a node, which need more than the others.
pub(crate) const NODE_TESTS: &str = "node";

/// Runs a command on clusters, like `up`.
pub(crate) fn run(workspace: &Workspace, args: &[OsString]) -> Result<ExitCode> {
    let mut command = command(workspace, args);
    let asks_for_help = args.iter().any(|arg| arg == "--help" || arg == "-h");
    let is_run = args.first().is_some_and(|arg| arg == "run");
    let has_node = (is_run || args.first().is_some_and(|arg| arg == "up")) && args.iter().any(|arg| arg == "--node");
    if has_node && !asks_for_help {
        tools::node()?;
    }
    if is_run && has_node && !asks_for_help {
        test_images::make(workspace, &mut command)?;
    } else if is_run && !asks_for_help {
        programs::build(workspace, &programs::all(), Profile::Dev)?;
        command.env("PORTCULLIS_BIN_DIR", workspace.bin_dir(Profile::Dev.dir()));
    }
    let status = command.status().context("failed to start cargo")?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// Builds Kubernetes and Helm, if they are not in the cache. Its progress is on standard error.
pub(crate) fn build(workspace: &Workspace) -> Result<()> {
    let status = command(workspace, &["build".into()]).status().context("failed to start cargo")?;
    ensure!(status.success(), "failed to build Kubernetes or Helm; the output is above");
    Ok(())
}

fn command(workspace: &Workspace, args: &[OsString]) -> Command {
    let mut command = workspace.cargo("run");
    command.args(["--quiet", "--package", PACKAGE, "--"]).args(args);
    command
}

/// Whether tests can start clusters here.
///
/// # Errors
/// When they cannot; says what is missing, and the next step.
pub(crate) fn possible() -> Result<()> {
    network::possible()?;
    let cached =
        env::var_os("PORTCULLIS_CACHE").or_else(|| env::var_os("XDG_CACHE_HOME")).or_else(|| env::var_os("HOME"));
    ensure!(cached.is_some(), "there is no folder for the cache: set PORTCULLIS_CACHE");
    ensure!(tools::on_path("go"), "Go 1.26 or newer is needed, to build Kubernetes and Helm once");
    Ok(())
}
