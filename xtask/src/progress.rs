//! Progress of a cargo command in one line: a first build takes minutes, and a list of four hundred crates tells nothing.

use std::io::{BufRead as _, BufReader, IsTerminal as _, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// A step that takes less is not worth a time.
const WORTH_A_TIME: Duration = Duration::from_secs(3);

/// Runs `cargo build …` and returns whether it succeeded. On a terminal one line counts the crates, elsewhere the label is
/// printed once; warnings and errors of the compiler are shown as they come.
pub(crate) fn watch_cargo(mut command: Command, label: &str) -> Result<bool> {
    let live = std::io::stderr().is_terminal();
    if live {
        eprint!("\r{label}");
    } else {
        eprintln!("{label}");
    }
    let start = Instant::now();
    let mut child = command
        .args(["--quiet", "--message-format", "json-render-diagnostics"])
        .stdout(Stdio::piped())
        .spawn()
        .context("failed to start cargo")?;
    let messages = child.stdout.take().context("standard output of cargo is a pipe")?;
    let mut built = 0;
    for line in BufReader::new(messages).lines() {
        let Some(name) = compiled(&line.context("failed to read what cargo says")?) else { continue };
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

/// The name of the crate that a message of cargo reports as compiled just now; `None` for what was there already.
fn compiled(message: &str) -> Option<String> {
    let message: Value = serde_json::from_str(message).ok()?;
    let now = message["reason"] == "compiler-artifact" && message["fresh"] == false;
    now.then(|| message["target"]["name"].as_str().map(str::to_owned))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_compiled_now_is_named() {
        let message = r#"{"reason":"compiler-artifact","target":{"name":"serde"},"fresh":false}"#;
        assert_eq!(compiled(message), Some("serde".to_owned()));
    }

    #[test]
    fn a_crate_that_was_there_is_not_counted() {
        assert_eq!(compiled(r#"{"reason":"compiler-artifact","target":{"name":"serde"},"fresh":true}"#), None);
    }

    #[test]
    fn other_messages_are_not_counted() {
        assert_eq!(compiled(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(compiled("not JSON"), None);
    }
}
