//! The log of a step: commands write to it, and the panics of tests in it are shown while they run.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::evidence::runs;

/// How often the log is looked at.
const PACE: Duration = Duration::from_millis(100);

/// What commands wrote, and what was wrong with those that failed, a line each.
pub(crate) struct Written {
    pub(crate) output: String,
    pub(crate) failures: String,
}

/// Runs commands one after the other with their output in this file, which is made again. `tell` gets each panic of a test as soon as it
/// is written. With `is_shown`, standard error is not in the file.
pub(crate) fn run(
    commands: Vec<Command>,
    path: &Path,
    is_shown: bool,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<Written> {
    let file = File::create(path).with_context(|| format!("failed to create {}", path.display()))?;
    let again = || file.try_clone().with_context(|| format!("failed to open {} twice", path.display()));
    let mut reader = Reader {
        log: File::open(path).with_context(|| format!("failed to read {}", path.display()))?,
        begun: Vec::new(),
    };
    let mut failures = String::new();
    thread::scope(|scope| -> Result<()> {
        // Ends the thread when it goes out of scope.
        let (_running, ended) = mpsc::channel::<()>();
        scope.spawn(move || {
            loop {
                let is_over = ended.recv_timeout(PACE) != Err(RecvTimeoutError::Timeout);
                reader.look(tell);
                if is_over {
                    break;
                }
            }
        });
        for mut command in commands {
            // One file for both streams keeps the order of their lines.
            let errors = if is_shown { Stdio::inherit() } else { again()?.into() };
            match command.stdin(Stdio::null()).stdout(again()?).stderr(errors).status() {
                Ok(status) if status.success() => {}
                Ok(status) => failures += &format!("{} ended with {status}\n", command.get_program().display()),
                Err(error) => failures += &format!("failed to start {}: {error}\n", command.get_program().display()),
            }
        }
        Ok(())
    })?;
    let output = fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
    Ok(Written { output: String::from_utf8_lossy(&output).into_owned(), failures })
}

/// Reads a log that grows.
struct Reader {
    log: File,
    /// The beginning of a line whose end is not there yet.
    begun: Vec<u8>,
}

impl Reader {
    /// Tells of the panics in the lines that came since the last time. A log that cannot be read is read once more at the end of the step.
    fn look(&mut self, tell: &(dyn Fn(&str) + Sync)) {
        if self.log.read_to_end(&mut self.begun).is_err() {
            return;
        }
        let whole = self.begun.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.begun.drain(..whole).collect();
        runs::panics(&String::from_utf8_lossy(&lines)).for_each(tell);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_panic_is_told_before_the_commands_end() {
        let folder = std::env::temp_dir().join(format!("xtask-log-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let seen = folder.join("seen");
        // It ends only when its panic was told.
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                "echo 'FAILING a::b: x.rs:1:1: why' >&2; echo other; until [ -e \"$0\" ]; do sleep 0.01; done",
            ])
            .arg(&seen);
        let told = Mutex::new(Vec::new());
        let tell = |line: &str| {
            told.lock().unwrap().push(line.to_owned());
            fs::write(&seen, "").unwrap();
        };
        let written = run(vec![command, Command::new("false")], &folder.join("log"), false, &tell).unwrap();
        assert_eq!(told.into_inner().unwrap(), ["FAILING a::b: x.rs:1:1: why"]);
        assert_eq!(written.output, "FAILING a::b: x.rs:1:1: why\nother\n");
        assert!(written.failures.starts_with("false ended with "), "{}", written.failures);
        fs::remove_dir_all(folder).unwrap();
    }
}
