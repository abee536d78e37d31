//! Making the profile of the evaluator for [`profiles`].

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use crate::guests;
use crate::profiles::{self, PACKAGE};
use crate::programs::{self, Profile};
use crate::progress;
use crate::rustc;
use crate::workspace::Workspace;

/// Builds the evaluator with counters, lets it answer requests, and keeps what was counted as the profile of this compiler.
///
/// # Errors
/// When something does not build, or the component `llvm-tools` is missing.
pub(crate) fn run(workspace: &Workspace, args: &[OsString]) -> Result<ExitCode> {
    let merge = rustc::llvm_tools()?.join("llvm-profdata");
    ensure!(merge.is_file(), "there is no {}: `rustup component add llvm-tools`", merge.display());
    let triple = rustc::version_line("host: ")?;
    let folder = workspace.target.join("pgo");
    let (counts, bin) = (folder.join("counts"), folder.join("bin"));
    for folder in [&counts, &bin] {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("failed to empty {}", folder.display()))?;
        }
        fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))?;
    }

    programs::build(workspace, &["portcullis-loader"], Profile::Release)?;
    let mut bench = workspace.cargo("build");
    bench.args(["--release", "--package", "portcullis-bench"]);
    ensure!(progress::watch_cargo(bench, "building the load generator")?, "portcullis-bench does not build");
    let mut counting = programs::build_command(workspace, PACKAGE, Profile::Release);
    let flag = format!("-Cprofile-generate={}", counts.display());
    counting.args(["--target", &triple]).env("CARGO_ENCODED_RUSTFLAGS", flag).env("CARGO_TARGET_DIR", &folder);
    ensure!(progress::watch_cargo(counting, "building the evaluator with counters")?, "{PACKAGE} does not build");

    // The load generator starts the programs that are beside it.
    let released = workspace.bin_dir(Profile::Release.dir());
    copy(&released, "portcullis-loader", &bin)?;
    copy(&released, "portcullis-bench", &bin)?;
    copy(&folder.join(&triple).join(Profile::Release.dir()), PACKAGE, &bin)?;
    let mut load = Command::new(bin.join("portcullis-bench"));
    match guests::build(&["allowed-registries".to_owned()]) {
        Ok(()) => drop(load.env("PORTCULLIS_GO_GUESTS", guests::output_dir())),
        Err(error) => eprintln!("warning: the profile has no policy in Go: {error:#}"),
    }
    // An evaluator writes its counts when it ends, which takes the right to files.
    load.arg("train").args(args).env("PORTCULLIS_NO_CONFINEMENT", "true").env("PORTCULLIS_DRAIN_DELAY", "0s");
    load.env("LLVM_PROFILE_FILE", counts.join("%p.profraw"));
    ensure!(load.status().context("failed to start the load generator")?.success(), "the load failed");

    let path = profiles::path(workspace, &triple)?;
    let parent = path.parent().unwrap_or(&path);
    fs::create_dir_all(parent).with_context(|| format!("failed to create {}", parent.display()))?;
    let usable = counted(&merge, &counts)?;
    ensure!(!usable.is_empty(), "no evaluator has left counts in {}", counts.display());
    ensure!(merged(&merge, &usable, &path)?, "llvm-profdata failed");
    println!("{}", path.display());
    Ok(ExitCode::SUCCESS)
}

/// The counts that can be used. llvm-profdata refuses all files if one has a count that cannot be, as the compiler makes it of
/// `Host::ask_broker` when policies ask their host.
fn counted(merge: &Path, counts: &Path) -> Result<Vec<PathBuf>> {
    let mut usable = Vec::new();
    for entry in fs::read_dir(counts).with_context(|| format!("failed to read {}", counts.display()))? {
        let path = entry.with_context(|| format!("failed to read {}", counts.display()))?.path();
        let profile = path.with_extension("profdata");
        if merged(merge, std::slice::from_ref(&path), &profile)? {
            usable.push(profile);
        } else {
            eprintln!("warning: {} is left out", path.display());
        }
    }
    Ok(usable)
}

/// Merges counts into a profile without the functions that never ran; returns whether llvm-profdata could.
fn merged(merge: &Path, counts: &[PathBuf], profile: &Path) -> Result<bool> {
    let mut command = Command::new(merge);
    command.args(["merge", "-sparse", "-o"]).arg(profile).args(counts);
    Ok(command.status().context("failed to start llvm-profdata")?.success())
}

fn copy(from: &Path, program: &str, to: &Path) -> Result<()> {
    let path = from.join(program);
    fs::copy(&path, to.join(program)).with_context(|| format!("failed to copy {}", path.display()))?;
    Ok(())
}
