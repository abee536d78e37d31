//! The benchmarks: a program of their own, which measures the real programs, built for release.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::programs::{self, Profile};
use crate::workspace::Workspace;

/// Builds the programs for release and runs the benchmarks with these arguments.
pub(crate) fn run(workspace: &Workspace, args: &[OsString]) -> Result<ExitCode> {
    let asks_for_help = args.is_empty() || args.iter().any(|arg| arg == "--help" || arg == "-h" || arg == "help");
    if !asks_for_help {
        programs::build(workspace, Profile::Release)?;
    }
    let status = workspace
        .cargo("run")
        .args(["--quiet", "--release", "--package", "portcullis-bench", "--"])
        .args(args)
        .env("PORTCULLIS_BIN_DIR", workspace.bin_dir(Profile::Release.dir()))
        .status()
        .context("failed to start cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
