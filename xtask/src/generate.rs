//! The generated files of the repository: the CustomResourceDefinitions, made from the product's types, files of the chart, and the pages
//! of faults and of features with their tests.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use crate::chart::{self, Made};
use crate::evidence::{compatibility, page};
use crate::workspace::Workspace;

/// The folder of the definitions in the repository.
const FOLDER: &str = "helm/definitions";

/// The version of the workspace, which is that of the programs and of the chart.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The package with the types, and its example that writes their definitions, as this program links none of the product's crates.
pub(crate) const DEFINITIONS: (&str, &str) = ("portcullis-api", "crds");

/// Writes the files; or, to check, reports those that are not up to date. `definitions` is the program that writes the definitions, if
/// it is built already.
pub(crate) fn run(workspace: &Workspace, check: bool, definitions: Option<&Path>) -> Result<ExitCode> {
    let kept = workspace.root.join(FOLDER);
    let files = chart::made(&workspace.root, VERSION)?;
    let faults = Made { path: page::PATH.to_owned(), text: page::of(&workspace.root)? };
    let features = Made { path: compatibility::PATH.to_owned(), text: compatibility::of(&workspace.root)? };
    if !check {
        make(workspace, &kept, definitions)?;
        for Made { path, text } in files.iter().chain([&faults, &features]) {
            let path = workspace.root.join(path);
            fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))?;
        }
        println!("{FOLDER}, the chart, {} and {} are up to date", page::PATH, compatibility::PATH);
        return Ok(ExitCode::SUCCESS);
    }
    let made = workspace.target.join("xtask/definitions");
    if made.exists() {
        fs::remove_dir_all(&made).with_context(|| format!("failed to empty {}", made.display()))?;
    }
    make(workspace, &made, definitions)?;
    let mut problems = compare(&read(&kept)?, &read(&made)?);
    let is_kept = |made: &Made| fs::read_to_string(workspace.root.join(&made.path)).is_ok_and(|kept| kept == made.text);
    for Made { path, .. } in files.iter().filter(|made| !is_kept(made)) {
        problems.push(format!("{path} is not what helm/values.yaml and the version of the workspace give"));
    }
    if !is_kept(&faults) {
        problems.push(format!("{} is not what the fault catalogue and the tests give", faults.path));
    }
    if !is_kept(&features) {
        problems.push(format!("{} is not what {} and the tests give", features.path, compatibility::FEATURES));
    }
    for problem in &problems {
        println!("{problem}: run `cargo xtask generate` and commit what it writes");
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn make(workspace: &Workspace, folder: &Path, definitions: Option<&Path>) -> Result<()> {
    let mut command = match definitions {
        Some(program) => Command::new(program),
        None => {
            let (package, example) = DEFINITIONS;
            let mut cargo = workspace.cargo("run");
            cargo.args(["--quiet", "--package", package, "--example", example, "--"]);
            cargo
        }
    };
    let status = command.arg(folder).status().context("failed to start the program that writes the definitions")?;
    ensure!(status.success(), "failed to make the definitions; the output is above");
    Ok(())
}

type Files = BTreeMap<OsString, Vec<u8>>;

fn read(folder: &Path) -> Result<Files> {
    let list = || format!("failed to read {}", folder.display());
    let entries = fs::read_dir(folder).with_context(list)?;
    entries
        .map(|entry| {
            let entry = entry.with_context(list)?;
            let path = entry.path();
            let bytes = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
            Ok((entry.file_name(), bytes))
        })
        .collect()
}

fn compare(kept: &Files, made: &Files) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, bytes) in made {
        if kept.get(name) != Some(bytes) {
            problems.push(format!("{FOLDER}/{} is not what crates/api gives", name.display()));
        }
    }
    for name in kept.keys().filter(|name| !made.contains_key(*name)) {
        problems.push(format!("{FOLDER}/{} is of no kind of crates/api; remove it", name.display()));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_old_missing_or_too_many_is_told() {
        let files = |names: &[(&str, &str)]| {
            names.iter().map(|(name, text)| (OsString::from(name), text.as_bytes().to_vec())).collect::<Files>()
        };
        let kept = files(&[("a", "1"), ("b", "1"), ("d", "1")]);
        let made = files(&[("a", "1"), ("b", "2"), ("c", "1")]);
        assert_eq!(
            compare(&kept, &made),
            [
                "helm/definitions/b is not what crates/api gives",
                "helm/definitions/c is not what crates/api gives",
                "helm/definitions/d is of no kind of crates/api; remove it",
            ],
        );
        assert_eq!(compare(&made, &made), Vec::<String>::new());
    }
}
