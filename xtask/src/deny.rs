//! Licences, sources and banned crates, by cargo-deny after the rules of `deny.toml`.

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};

use crate::tools;
use crate::workspace::Workspace;

/// Runs cargo-deny. Advisories need a database from the network, so they are left to `cargo deny check advisories`.
pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode> {
    ensure!(
        tools::on_path("cargo-deny"),
        "cargo-deny is not installed: run `cargo install --locked cargo-deny` (some minutes), then this again"
    );
    let status = workspace
        .cargo("deny")
        .args(["check", "--hide-inclusion-graph", "bans", "licenses", "sources"])
        .status()
        .context("failed to start cargo deny")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
