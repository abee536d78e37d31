//! Progress of a cargo command in one line: a first build takes minutes, and a list of four hundred crates is of no use.

use std::io::{BufRead as _, BufReader, IsTerminal as _, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// The time of a step is not shown if it is shorter than this.
const WORTH_A_TIME: Duration = Duration::from_secs(3);

/// Runs `cargo build …` and returns whether it succeeded. On a terminal, one line counts the crates; otherwise the label
/// is printed once. Warnings and errors of the compiler are shown as they come.
pub(crate) fn watch_cargo(command: Command, label: &str) -> Result<bool> {
    watch_messages(command, &[], label, |_| ())
}

/// [`watch_cargo`] for `cargo rustc …`, with flags of the compiler for the program itself.
pub(crate) fn watch_cargo_with_flags(command: Command, flags: &[&str], label: &str) -> Result<bool> {
    watch_messages(command, flags, label, |_| ())
}

/// [`watch_cargo_with_flags`], with a callback for each message: see
/// <https://doc.rust-lang.org/cargo/reference/external-tools.html#json-messages>.
pub(crate) fn watch_messages(
    mut command: Command,
    flags: &[&str],
    label: &str,
    mut each: impl FnMut(&Value),
) -> Result<bool> {
    let live = std::io::stderr().is_terminal();
    if live {
        eprint!("\r{label}");
    } else {
        eprintln!("{label}");
    }
    let separator = (!flags.is_empty()).then_some("--");
    let start = Instant::now();
    let mut child = command
        .args(["--quiet", "--message-format", "json-render-diagnostics"])
        .args(separator)
        .args(flags)
        .stdout(Stdio::piped())
        .spawn()
        .context("failed to start cargo")?;
    let messages = child.stdout.take().context("standard output of cargo is a pipe")?;
    let mut built = 0;
    for line in BufReader::new(messages).lines() {
        let Ok(message) = serde_json::from_str(&line.context("failed to read what cargo says")?) else { continue };
        each(&message);
        let Some(name) = compiled(&message) else { continue };
        built += 1;
        if live {
            eprint!("\r\x1b[K{label}: {built} crates, {name}");
            std::io::stderr().flush().ok();
        }
    }
    let success = child.wait().context("failed to wait for cargo")?.success();
    if live {
        let took = start.elapsed();
        let time = if took < WORTH_A_TIME { String::new() } else { format!(": {} s", took.as_secs()) };
        eprintln!("\r\x1b[K{label}{time}");
    }
    Ok(success)
}

/// The name of the crate that a message of cargo reports as just compiled; `None` for one that was compiled before.
fn compiled(message: &Value) -> Option<String> {
    let now = message["reason"] == "compiler-artifact" && message["fresh"] == false;
    now.then(|| message["target"]["name"].as_str().map(str::to_owned))?
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_crate_compiled_now_is_named() {
        let message = json!({ "reason": "compiler-artifact", "target": { "name": "serde" }, "fresh": false });
        assert_eq!(compiled(&message), Some("serde".to_owned()));
    }

    #[test]
    fn a_crate_that_was_there_is_not_counted() {
        let message = json!({ "reason": "compiler-artifact", "target": { "name": "serde" }, "fresh": true });
        assert_eq!(compiled(&message), None);
    }

    #[test]
    fn other_messages_are_not_counted() {
        assert_eq!(compiled(&json!({ "reason": "build-finished", "success": true })), None);
    }
}
