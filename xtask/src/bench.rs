//! Runs the benchmarks, which are a program of another crate and measure the real programs, built for release.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::cluster;
use crate::guests;
use crate::network;
use crate::programs::{self, CONTROLLER, PROGRAMS, Profile};
use crate::workspace::Workspace;

/// Benchmarks that load a cluster, and run in their own network namespace.
const ON_CLUSTERS: [&str; 8] = ["admission", "all", "applies", "audit", "crowd", "propagate", "scale", "slope"];

/// Benchmarks that also measure a guest in Go.
const WITH_GO: [&str; 4] = ["all", "evaluate", "peer", "start"];

/// Builds the programs for release and runs the benchmarks with these arguments.
pub(crate) fn run(workspace: &Workspace, args: &[OsString]) -> Result<ExitCode> {
    let asks_for_help = args.is_empty() || args.iter().any(|arg| arg == "--help" || arg == "-h" || arg == "help");
    // Pictures are drawn from figures that were measured before.
    let only_draws = args.iter().any(|arg| arg == "plots");
    let is_one_of = |names: &[&str]| args.first().is_some_and(|name| names.iter().any(|known| name == known));
    let on_cluster = is_one_of(&ON_CLUSTERS);
    let mut bench = workspace.cargo("run");
    if !asks_for_help && !only_draws {
        programs::build(workspace, &PROGRAMS, Profile::Release)?;
        if is_one_of(&WITH_GO) {
            match guests::build(&["allowed-registries".to_owned()]) {
                Ok(()) => drop(bench.env("PORTCULLIS_GO_GUESTS", guests::output_dir())),
                Err(error) => eprintln!("warning: the guest in Go is not measured: {error:#}"),
            }
        }
        if on_cluster {
            programs::build(workspace, &[CONTROLLER], Profile::Release)?;
            cluster::build(workspace)?;
            network::own(&mut bench)?;
        }
    }
    let status = bench
        .args(["--quiet", "--release", "--package", "portcullis-bench", "--"])
        .args(args)
        .env("PORTCULLIS_BIN_DIR", workspace.bin_dir(Profile::Release.dir()))
        .status()
        .context("failed to start cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
