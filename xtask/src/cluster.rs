//! Kubernetes control planes for tests and for people: a program of their own, which makes real ones on this machine.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
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

/// Whether tests may start clusters: `PORTCULLIS_CLUSTER` is 1, or it is not 0 and Kubernetes, which takes minutes to build, was
/// built before.
pub(crate) fn is_wanted() -> bool {
    match env::var("PORTCULLIS_CLUSTER").as_deref() {
        Ok("1") => true,
        Ok("0") => false,
        _ => cache().is_some_and(|cache| is_built(&cache)),
    }
}

/// The folder that `portcullis-e2e` keeps it in, found as it does.
fn cache() -> Option<PathBuf> {
    let folder = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    folder("PORTCULLIS_CACHE")
        .or_else(|| Some(folder("XDG_CACHE_HOME")?.join("portcullis")))
        .or_else(|| Some(folder("HOME")?.join(".cache/portcullis")))
}

fn is_built(cache: &Path) -> bool {
    let entries = fs::read_dir(cache).into_iter().flatten().flatten();
    let builds = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("kubernetes-"));
    builds.map(|build| build.path().join("bin/kubernetes")).any(|program| program.is_file())
}
