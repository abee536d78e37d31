//! The programs: building each by itself, and starting them on a folder.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::profiles;
use crate::progress;
use crate::rustc;
use crate::workspace::Workspace;

/// The packages that make the programs of a pod and the command-line tool, which runs them without a cluster.
pub(crate) const PROGRAMS: [&str; 4] =
    ["portcullis-loader", "portcullis-evaluator", "portcullis-reporter", "portcullis"];

/// The package of the program that only clusters need.
pub(crate) const CONTROLLER: &str = "portcullis-controller";

/// All programs.
pub(crate) fn all() -> Vec<&'static str> {
    [&PROGRAMS[..], &[CONTROLLER]].concat()
}

/// How programs are built.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Profile {
    /// Quick to build, with fail points for tests.
    Dev,
    /// Optimised, as users get them.
    Release,
}

impl Profile {
    pub(crate) fn of(release: bool) -> Self {
        if release { Self::Release } else { Self::Dev }
    }

    /// Name of the folder below cargo's target folder.
    pub(crate) fn dir(self) -> &'static str {
        match self {
            Self::Dev => "debug",
            Self::Release => "release",
        }
    }
}

/// Builds the programs and prints where they are.
pub(crate) fn build_all(workspace: &Workspace, profile: Profile) -> Result<ExitCode> {
    let all = all();
    build(workspace, &all, profile)?;
    let dir = workspace.bin_dir(profile.dir());
    println!("{} are in {}", all.join(", "), dir.display());
    Ok(ExitCode::SUCCESS)
}

/// Builds programs, one cargo command each.
pub(crate) fn build(workspace: &Workspace, programs: &[&str], profile: Profile) -> Result<()> {
    let triple = (profile == Profile::Release).then(|| rustc::version_line("host: ")).transpose()?;
    for (index, program) in programs.iter().enumerate() {
        let label = format!("building {program} ({}/{})", index + 1, programs.len());
        let mut command = build_command(workspace, program, profile);
        let profiled = match &triple {
            Some(triple) => profiles::flag(workspace, program, triple)?.map(|flag| (triple, flag)),
            None => None,
        };
        if let Some((triple, flag)) = &profiled {
            // With an explicit target, the flag does not apply to build scripts, and functions have the names of the profile.
            command.args(["--target", triple]).env("CARGO_ENCODED_RUSTFLAGS", with_users_flags(flag));
        }
        ensure!(progress::watch_cargo(command, &label)?, "{program} does not build; the compiler's output is above");
        if let Some((triple, _)) = profiled {
            let built = workspace.target.join(triple).join(profile.dir()).join(program);
            replace(&workspace.bin_dir(profile.dir()).join(program), &built)?;
        }
    }
    Ok(())
}

/// A flag of the compiler behind those that the user has set, in the form of `CARGO_ENCODED_RUSTFLAGS`, which replaces them.
fn with_users_flags(flag: &str) -> String {
    let users = env::var("CARGO_ENCODED_RUSTFLAGS").ok().filter(|flags| !flags.is_empty());
    let users = users.or_else(|| Some(env::var("RUSTFLAGS").ok()?.split_whitespace().collect::<Vec<_>>().join("\x1f")));
    users.filter(|flags| !flags.is_empty()).map_or_else(|| flag.to_owned(), |users| format!("{users}\x1f{flag}"))
}

/// Puts a program where another one may be, which may be running.
fn replace(path: &Path, program: &Path) -> Result<()> {
    let copy = path.with_extension("new");
    let copied = fs::create_dir_all(path.parent().unwrap_or(path)).and_then(|()| fs::copy(program, &copy));
    copied.and_then(|_| fs::rename(&copy, path)).with_context(|| format!("failed to write {}", path.display()))
}

/// The command that builds one program. Each package is built by itself, because cargo unifies the features of the
/// packages that it builds together, and the evaluator would get the loader's compiler.
pub(crate) fn build_command(workspace: &Workspace, program: &str, profile: Profile) -> Command {
    let mut command = workspace.cargo("build");
    command.args(["--package", program, "--bins"]);
    if profile == Profile::Release {
        command.arg("--release");
    }
    command
}

/// Builds the programs, then becomes `portcullis run DIR`.
///
/// # Errors
/// When a program does not build or the last one cannot be started; otherwise this does not return.
pub(crate) fn run(
    workspace: &Workspace,
    dir: Option<PathBuf>,
    profile: Profile,
    args: &[OsString],
) -> Result<ExitCode> {
    let dir = dir.unwrap_or_else(|| shown(&workspace.root.join("examples")));
    ensure!(
        dir.is_dir(),
        "{} is not a folder: name a folder of Policy manifests, or none for the examples",
        dir.display()
    );
    build(workspace, &PROGRAMS, profile)?;
    let program = workspace.bin_dir(profile.dir()).join("portcullis");
    let error = Command::new(&program).arg("run").arg(dir).args(args).exec();
    Err(error).with_context(|| format!("failed to start {}", program.display()))
}

/// The path in the form in which a user would write it: relative if that is short.
fn shown(path: &Path) -> PathBuf {
    let Ok(here) = std::env::current_dir() else { return path.to_owned() };
    match path.strip_prefix(here) {
        Ok(relative) if !relative.as_os_str().is_empty() => relative.to_owned(),
        _ => path.to_owned(),
    }
}
