//! Runs a test in its own network namespace with only a loopback interface, so that no load leaves the machine and nothing is left
//! behind.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::wrapped;

/// The script that is run in the namespace before the program itself.
const LOOPBACK_UP: &str = r#"ip link set lo up && exec "$0" "$@""#;

/// Makes `cargo test` or `cargo run` start what it builds in a network namespace of its own. Cargo itself stays
/// outside.
///
/// # Errors
/// When this machine or user cannot create a network namespace; names the next step.
pub(crate) fn own(cargo: &mut Command) -> Result<()> {
    possible()?;
    let program = std::env::current_exe().context("failed to find this program")?;
    let runner = serde_json::json!([program, "in-own-network"]);
    cargo.args(["--config", &format!("target.'cfg(all())'.runner = {runner}")]);
    Ok(())
}

/// The same command, in its own network namespace.
///
/// # Errors
/// When this program cannot be found.
pub(crate) fn inside_own(command: &Command) -> Result<Command> {
    let program = std::env::current_exe().context("failed to find this program")?;
    let mut inside = Command::new(program);
    inside.arg("in-own-network");
    Ok(wrapped::started_by(inside, command))
}

/// Replaces this process by the program, in its own network namespace.
///
/// # Errors
/// When it cannot be started; otherwise this does not return.
pub(crate) fn become_in_own(program: &[OsString]) -> Result<ExitCode> {
    let error = unshare(possible()?).args(["sh", "-c", LOOPBACK_UP]).args(program).exec();
    Err(error).context("failed to start unshare")
}

/// The flags of `unshare` that work here: as root, or as a user who is root in a user namespace of their own.
pub(crate) fn possible() -> Result<&'static [&'static str]> {
    if !cfg!(target_os = "linux") {
        bail!("it takes Linux, for its network namespaces");
    }
    for flags in [&["--net"][..], &["--map-root-user", "--net"]] {
        let mut tried = unshare(flags);
        tried.args(["ip", "link", "set", "lo", "up"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if tried.status().is_ok_and(|status| status.success()) {
            return Ok(flags);
        }
    }
    bail!("it takes a network namespace: run it as root, with `unshare` (util-linux) and `ip` (iproute2) installed")
}

fn unshare(flags: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(flags);
    command
}
