//! Builds static programs, which do not need libraries of the system on which they run.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::profiles;
use crate::programs::{self, Profile};
use crate::progress;
use crate::remap;
use crate::rustc;
use crate::workspace::Workspace;

/// The compiler flag that links the C library statically.
const STATIC: &str = "-Ctarget-feature=+crt-static";

/// A target that programs are built for.
#[derive(Debug, PartialEq)]
pub(super) struct Target {
    triple: String,
    architecture: &'static str,
}

impl Target {
    /// A target by its name in Rust.
    ///
    /// # Errors
    /// When images are not made for it.
    pub(super) fn new(triple: &str) -> Result<Self> {
        let architecture = match triple {
            "x86_64-unknown-linux-gnu" => "amd64",
            "aarch64-unknown-linux-gnu" => "arm64",
            _ => bail!(
                "no images are made for {triple}: name one with `--target x86_64-unknown-linux-gnu` (or aarch64), or build them with \
                 the Dockerfile"
            ),
        };
        Ok(Self { triple: triple.to_owned(), architecture })
    }

    /// The target of this machine.
    pub(super) fn of_this_machine() -> Result<Self> {
        Self::new(&rustc::version_line("host: ")?)
    }

    /// Its name in Rust.
    pub(super) fn triple(&self) -> &str {
        &self.triple
    }

    /// Its architecture as OCI names it.
    pub(super) fn architecture(&self) -> &'static str {
        self.architecture
    }
}

/// Builds a program statically and returns its bytes.
///
/// # Errors
/// When it does not build, or is not static.
pub(super) fn program(
    workspace: &Workspace,
    package: &str,
    profile: Profile,
    target: &Target,
    label: &str,
) -> Result<Vec<u8>> {
    let is_relinked = profile == Profile::Dev && *target == Target::of_this_machine()?;
    let (command, folder) =
        if is_relinked { relink(workspace, package) } else { build(workspace, package, profile, target)? };
    let flags = is_relinked.then_some(STATIC);
    let is_built = progress::watch_cargo_with_flags(command, flags.as_slice(), label)?;
    ensure!(is_built, "failed to build {package}; the compiler's output is above");
    let path = folder.join(profile.dir()).join(package);
    let bytes = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
    ensure!(
        is_static(&bytes).with_context(|| format!("{} is no program for Linux", path.display()))?,
        "{} needs libraries of the system, and an image has none: install the static C library (Debian: libc6-dev)",
        path.display()
    );
    Ok(bytes)
}

/// The build for tests: it reuses what other builds have compiled and applies the flag to the final link only. The result replaces the
/// dynamically linked program until that is built again.
fn relink(workspace: &Workspace, package: &str) -> (Command, PathBuf) {
    let mut command = workspace.cargo("rustc");
    command.args(["--package", package, "--bin", package]);
    (command, workspace.target.clone())
}

/// The build for users: everything with the same flags, in a target folder of its own.
fn build(workspace: &Workspace, package: &str, profile: Profile, target: &Target) -> Result<(Command, PathBuf)> {
    let mut command = programs::build_command(workspace, package, profile);
    let mut flags = flags(workspace).to_vec();
    if profile == Profile::Release {
        flags.extend(profiles::flag(workspace, package, target.triple())?);
    }
    // With an explicit target, these flags do not apply to build scripts, which are shared with other builds.
    command.args(["--locked", "--target", target.triple()]).env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    Ok((command, workspace.target.join(target.triple())))
}

/// The compiler flags: link the C library statically, and keep the paths of this machine out of the program.
fn flags(workspace: &Workspace) -> [String; 4] {
    // The last folder wins if one contains the other.
    [
        STATIC.to_owned(),
        remap::flag(&remap::cargo_home(), "cargo"),
        remap::flag(&workspace.target, "target"),
        remap::flag(&workspace.root, "portcullis"),
    ]
}

/// Whether a program is static, that is, no segment of its ELF file names a dynamic loader.
fn is_static(program: &[u8]) -> Option<bool> {
    /// The segment with the path of a dynamic loader, `PT_INTERP`.
    const INTERPRETER: u32 = 3;
    let number = |at: usize, size: usize| {
        let bytes = program.get(at..at.checked_add(size)?)?;
        Some(bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)))
    };
    // It must be a 64-bit little-endian ELF file.
    if !program.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (start, size, count) = (number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?);
    let mut kinds = (0..count).map(|index| {
        let at = usize::try_from(start.checked_add(index * size)?).ok()?;
        number(at, 4)
    });
    kinds.try_fold(true, |is_static, kind| Some(is_static && kind? != u64::from(INTERPRETER)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The head of an ELF file with segments of these kinds.
    fn elf(kinds: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01".to_vec();
        bytes.resize(0x40, 0);
        bytes[0x20] = 0x40;
        bytes[0x36] = 56;
        bytes[0x38] = kinds.len() as u8;
        for kind in kinds {
            bytes.push(*kind);
            bytes.resize(bytes.len() + 55, 0);
        }
        bytes
    }

    #[test]
    fn a_program_that_names_a_dynamic_loader_is_not_static() {
        assert_eq!(is_static(&elf(&[6, 3, 1, 2])), Some(false));
        assert_eq!(is_static(&elf(&[6, 1, 2])), Some(true));
    }

    #[test]
    fn what_is_no_program_is_neither() {
        assert_eq!(is_static(b"#!/bin/sh"), None);
        assert_eq!(is_static(&elf(&[6, 1])[..0x41]), None);
    }

    #[test]
    fn the_test_itself_is_looked_at() {
        let this = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(is_static(&this), Some(cfg!(target_feature = "crt-static")));
    }

    #[test]
    fn targets_have_the_names_of_both_worlds() {
        let target = Target::new("aarch64-unknown-linux-gnu").unwrap();
        assert_eq!((target.triple(), target.architecture()), ("aarch64-unknown-linux-gnu", "arm64"));
        let error = Target::new("aarch64-apple-darwin").unwrap_err().to_string();
        assert!(error.contains("no images are made for aarch64-apple-darwin: "), "{error}");
    }
}
