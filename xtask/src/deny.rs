//! Checks licences, sources, banned crates and known vulnerabilities with cargo-deny, by the rules of `deny.toml`.

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};

use crate::step::Step;
use crate::tools;
use crate::workspace::Workspace;

/// The name of the step in `cargo xtask test`.
pub(crate) const ADVISORIES: &str = "known weaknesses";

const NOT_INSTALLED: &str =
    "cargo-deny is not installed: run `cargo install --locked cargo-deny` (some minutes), then this again";

/// Runs cargo-deny without advisories, which need a database from the network and are a step of the tests ([`advisories`]).
pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode> {
    ensure!(tools::on_path("cargo-deny"), NOT_INSTALLED);
    let status = workspace
        .cargo("deny")
        .args(["check", "--hide-inclusion-graph", "bans", "licenses", "sources"])
        .status()
        .context("failed to start cargo deny")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Looks for known vulnerabilities in `Cargo.lock`, if the RustSec database can be fetched.
pub(crate) fn advisories(workspace: &Workspace) -> Step<'static> {
    if !tools::on_path("cargo-deny") {
        return Step::skip(ADVISORIES, NOT_INSTALLED);
    }
    // Without the database the check proves nothing and is skipped; with it, a failure to read it must not pass as success.
    let fetched = workspace.cargo("deny").args(["fetch", "db"]).output();
    if !fetched.is_ok_and(|output| output.status.success()) {
        return Step::skip(ADVISORIES, "the RustSec database cannot be fetched: see `cargo deny fetch db`");
    }
    let mut check = workspace.cargo("deny");
    check.args(["check", "--hide-inclusion-graph", "--disable-fetch", "advisories"]);
    Step::command(ADVISORIES, check)
}
