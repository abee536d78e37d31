//! Tools that the tests need besides Rust: finds those that are missing, and installs them where that is allowed.
//!
//! Packages are installed only on Debian and as root, as in a container for test runs. On any other machine, the messages
//! say what to install.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, ensure};

use crate::guests;

/// Packages of Debian that compile Rust to WebAssembly.
const WASM_PACKAGES: [&str; 4] = ["rustc-web", "cargo-web", "rust-web-src", "lld"];

/// Whether there is a program of this name on PATH.
pub(crate) fn on_path(program: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// Makes sure that the Rust guests can be built.
///
/// # Errors
/// When they cannot: the reason with the next step, for the line about the skipped test.
pub(crate) fn wasm_toolchain() -> Result<()> {
    let Err(missing) = guests::find_toolchain() else { return Ok(()) };
    if !may_install() {
        return Err(missing);
    }
    install(&WASM_PACKAGES)?;
    guests::find_toolchain()
}

/// The package of Debian that is a registry.
const REGISTRY_PACKAGE: &str = "docker-registry";

/// Makes sure that tests can start a registry.
///
/// # Errors
/// When they cannot: the reason with the next step, for the line about the skipped tests.
pub(crate) fn registry() -> Result<()> {
    if on_path(REGISTRY_PACKAGE) {
        return Ok(());
    }
    let words = "there is no docker-registry; on Debian: `apt-get install --no-install-recommends docker-registry`";
    ensure!(may_install(), words);
    install(&[REGISTRY_PACKAGE])?;
    ensure!(on_path(REGISTRY_PACKAGE), words);
    Ok(())
}

/// The program that tries alerts, and the package of Debian that has it.
const ALERTS: (&str, &str) = ("promtool", "prometheus");

/// Makes sure that tests can try the chart's alerts.
///
/// # Errors
/// When they cannot: the reason with the next step, for the line about the skipped test.
pub(crate) fn alerts() -> Result<()> {
    let (program, package) = ALERTS;
    if on_path(program) {
        return Ok(());
    }
    let words = format!("there is no {program}; on Debian: `apt-get install --no-install-recommends {package}`");
    ensure!(may_install(), words.clone());
    install(&[package])?;
    ensure!(on_path(program), words);
    Ok(())
}

/// The programs that count system calls and instructions, which are also the names of Debian's packages.
const COUNTERS: [&str; 2] = ["strace", "valgrind"];

/// Installs the programs that count system calls and instructions, where that is allowed. The tests that need them report if
/// they are missing.
pub(crate) fn counters() {
    let missing: Vec<_> = COUNTERS.into_iter().filter(|program| !on_path(program)).collect();
    if !missing.is_empty()
        && may_install()
        && let Err(error) = install(&missing)
    {
        println!("{error:#}");
    }
}

/// The needs of a node: a program, or a file in one of the folders of [`NETWORK_PLUGINS`], each with the Debian package that has
/// it.
const NODE_PACKAGES: [(&str, &str); 4] =
    [("containerd", "containerd"), ("runc", "runc"), ("nft", "nftables"), ("ptp", "containernetworking-plugins")];

/// The folders of plugins of pod networks.
const NETWORK_PLUGINS: [&str; 3] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];

/// Makes sure that clusters can have a node.
///
/// # Errors
/// When they cannot: the reason with the next step.
pub(crate) fn node() -> Result<()> {
    ensure!(cfg!(target_os = "linux") && is_root(), "a cluster with a node takes root, on Linux");
    let missing = || -> Vec<&str> {
        let is_there =
            |name: &str| on_path(name) || NETWORK_PLUGINS.iter().any(|folder| Path::new(folder).join(name).is_file());
        NODE_PACKAGES.iter().filter(|(name, _)| !is_there(name)).map(|(_, package)| *package).collect()
    };
    if missing().is_empty() {
        return Ok(());
    }
    let words = format!(
        "a cluster with a node takes containerd, runc, nftables and plugins of pod networks; on Debian: \
         `apt-get install --no-install-recommends {}`",
        missing().join(" "),
    );
    ensure!(may_install(), words.clone());
    install(&missing())?;
    ensure!(missing().is_empty(), words);
    Ok(())
}

fn install(packages: &[&str]) -> Result<()> {
    println!("installing {} with apt-get (some minutes the first time)", packages.join(", "));
    static UPDATED: AtomicBool = AtomicBool::new(false);
    if !UPDATED.load(Ordering::Relaxed) {
        apt_get(&["update", "--quiet", "--quiet"])?;
        UPDATED.store(true, Ordering::Relaxed);
    }
    apt_get(&[&["install", "--quiet", "--quiet", "--yes", "--no-install-recommends"], packages].concat())
}

fn may_install() -> bool {
    Path::new("/etc/debian_version").exists() && on_path("apt-get") && is_root()
}

fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| effective_user(&status) == Some(0))
}

/// The effective user id in `/proc/self/status`: the second number of its `Uid:` line.
fn effective_user(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}

fn apt_get(args: &[&str]) -> Result<()> {
    let output = Command::new("apt-get")
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .context("failed to start apt-get")?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "apt-get {} failed: {}", args.join(" "), words.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_user_is_the_second_number() {
        assert_eq!(effective_user("Name:\txtask\nUid:\t1000\t0\t1000\t1000\nGid:\t5\t5\t5\t5\n"), Some(0));
        assert_eq!(effective_user("Name:\txtask\n"), None);
    }

    #[test]
    fn programs_are_looked_for_on_path() {
        assert!(on_path("sh"));
        assert!(!on_path("a-program-that-nobody-has"));
    }
}
