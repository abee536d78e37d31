//! Kubernetes control planes for tests and for people: a program of their own, which makes real ones on this machine.

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::workspace::Workspace;

/// The crate that makes them, and tests them.
pub(crate) const PACKAGE: &str = "portcullis-e2e";

/// Runs a command on clusters, like `up`.
pub(crate) fn run(workspace: &Workspace, args: &[OsString]) -> Result<ExitCode> {
    let status = workspace
        .cargo("run")
        .args(["--quiet", "--package", PACKAGE, "--"])
        .args(args)
        .status()
        .context("failed to start cargo")?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// Whether tests may start clusters: only where `PORTCULLIS_CLUSTER` is 1. Nothing that the programs promise needs one yet,
/// and building Kubernetes takes minutes.
pub(crate) fn is_wanted() -> bool {
    env::var("PORTCULLIS_CLUSTER").is_ok_and(|wanted| wanted == "1")
}
