//! The programs of a pod, and where to find them.

use std::fmt;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use portcullis_registry::Allowed;

/// The name of this program's file.
const NAME: &str = "portcullis";

/// A program of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Program {
    /// Fetches and compiles modules.
    Loader,
    /// Answers.
    Evaluator,
    /// Reports the status.
    Reporter,
}

impl Program {
    /// The name of its file.
    pub fn file(self) -> &'static str {
        match self {
            Self::Loader => "portcullis-loader",
            Self::Evaluator => "portcullis-evaluator",
            Self::Reporter => "portcullis-reporter",
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Loader => "loader",
            Self::Evaluator => "evaluator",
            Self::Reporter => "reporter",
        })
    }
}

/// Programs that were not found.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} neither beside {} nor on PATH; install with `{}` in the folder of the sources",
    they_are(missing), beside.display(), install_command(missing)
)]
pub struct Missing {
    missing: Vec<&'static str>,
    beside: PathBuf,
}

fn they_are(missing: &[&str]) -> String {
    let verb = if missing.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", missing.join(" and "))
}

fn install_command(missing: &[&str]) -> String {
    // Each is built separately, so that the features of one do not get into another.
    let install = |name: &&str| format!("cargo install --locked --path {}", name.trim_start_matches("portcullis-"));
    missing.iter().map(install).collect::<Vec<_>>().join(" && ")
}

/// The paths of `wanted`, each beside this program's own file or on PATH.
///
/// # Errors
/// The programs that are missing, and how to build them.
pub fn find<const N: usize>(wanted: [Program; N]) -> Result<[PathBuf; N], Missing> {
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.parent().unwrap_or(Path::new(".")).to_owned();
    let folders: Vec<PathBuf> = std::iter::once(beside.clone()).chain(folders_on_path()).collect();
    find_in(wanted, &folders, &beside)
}

fn find_in<const N: usize>(wanted: [Program; N], folders: &[PathBuf], beside: &Path) -> Result<[PathBuf; N], Missing> {
    let found = wanted.map(|program| {
        folders.iter().map(|folder| folder.join(program.file())).find(|path| is_executable(path)).ok_or(program.file())
    });
    let missing: Vec<&'static str> = found.iter().filter_map(|found| found.as_ref().err().copied()).collect();
    if missing.is_empty() {
        Ok(found.map(Result::unwrap_or_default))
    } else {
        Err(Missing { missing, beside: beside.to_owned() })
    }
}

fn folders_on_path() -> Vec<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect()
}

/// How to call this program again from the current folder: by its name if PATH leads to it, otherwise by its path.
pub fn own_command() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own_command_in(&own, &folders_on_path(), &std::env::current_dir().unwrap_or_default())
}

fn own_command_in(own: &Path, folders: &[PathBuf], current: &Path) -> PathBuf {
    let name = Path::new(NAME);
    let first = folders.iter().map(|folder| folder.join(name)).find(|path| is_executable(path));
    let is_own = |path: PathBuf| path.canonicalize().is_ok_and(|path| path == own);
    if own.as_os_str().is_empty() || first.is_some_and(is_own) {
        return name.to_owned();
    }
    match own.strip_prefix(current) {
        // A shell looks for a word without a slash on PATH only.
        Ok(below) if below.components().count() == 1 => Path::new(".").join(below),
        Ok(below) => below.to_owned(),
        Err(_) => own.to_owned(),
    }
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Addresses from which modules may come although they are not public, for the loader: this machine, which may run a registry, and those that
/// the user allows.
pub fn allowed_addresses(more: &[Allowed]) -> String {
    let own = ["127.0.0.0/8", "::1"].map(str::to_owned);
    own.into_iter().chain(more.iter().map(Allowed::to_string)).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn this_machine_is_always_allowed() {
        let more: Vec<Allowed> =
            ["10.0.0.0/8", "registry.internal", "::1"].map(|text| text.parse().expect(text)).to_vec();
        assert_eq!(allowed_addresses(&more), "127.0.0.0/8,::1,10.0.0.0/8,registry.internal,::1/128");
    }

    #[test]
    fn what_is_missing_is_named_with_how_to_build_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let loader = folder.path().join("portcullis-loader");
        fs::write(&loader, "").expect("writes");
        let folders = [folder.path().to_owned()];
        let find = || find_in([Program::Loader, Program::Evaluator], &folders, Path::new("/opt/portcullis"));
        assert_eq!(
            find().expect_err("not executable, and not there").to_string(),
            "portcullis-loader and portcullis-evaluator are neither beside /opt/portcullis nor on PATH; install with `cargo install \
             --locked --path loader && cargo install --locked --path evaluator` in the folder of the sources"
        );
        fs::set_permissions(&loader, fs::Permissions::from_mode(0o755)).expect("sets");
        assert_eq!(find_in([Program::Loader], &folders, Path::new("")), Ok([loader]));
    }
    #[test]
    fn the_command_for_this_program_can_be_pasted() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("it is there");
        let [own, other] = ["target/debug", "bin"].map(|dir| root.join(dir));
        for dir in [&own, &other] {
            fs::create_dir_all(dir).expect("a folder");
            fs::write(dir.join(NAME), "").expect("writes");
            fs::set_permissions(dir.join(NAME), fs::Permissions::from_mode(0o755)).expect("sets");
        }
        let command = |path: &[&Path], current: &Path| {
            let folders: Vec<PathBuf> = path.iter().map(|folder| (*folder).to_owned()).collect();
            own_command_in(&own.join(NAME), &folders, current)
        };
        assert_eq!(command(&[&own, &other], &root), Path::new("portcullis"));
        assert_eq!(command(&[&other, &own], &root), Path::new("target/debug/portcullis"), "PATH leads to another one");
        assert_eq!(command(&[], &own), Path::new("./portcullis"));
        assert_eq!(command(&[], &other), own.join(NAME));
    }
}
