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
use crate::limit::{Deadline, End};

/// The interval at which the log is read.
const PACE: Duration = Duration::from_millis(100);

/// The number of log lines that are shown to tell where a command hung.
const LAST: usize = 10;

/// The output of commands, and the errors of those that failed, one line each.
pub(crate) struct Written {
    pub(crate) output: String,
    pub(crate) failures: String,
    /// The command that was ended because it took too long, with the last lines of the log.
    pub(crate) hung: Option<String>,
}

/// Runs commands one after the other, all of them within `limit`, with their output in this file, which is overwritten. `tell` gets
/// each panic of a test as soon as it is written. With `is_shown`, standard error is not written to the file.
pub(crate) fn run(
    commands: Vec<Command>,
    path: &Path,
    limit: Duration,
    is_shown: bool,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<Written> {
    let file = File::create(path).with_context(|| format!("failed to create {}", path.display()))?;
    let again = || file.try_clone().with_context(|| format!("failed to open {} twice", path.display()));
    let mut reader = Reader {
        log: File::open(path).with_context(|| format!("failed to read {}", path.display()))?,
        begun: Vec::new(),
    };
    let (mut failures, mut late) = (String::new(), None);
    let deadline = Deadline::after(limit);
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
            let end = deadline.run(command.stdin(Stdio::null()).stdout(again()?).stderr(errors));
            let program = command.get_program().display();
            match end {
                Ok(End::Exited(status)) if status.success() => {}
                Ok(End::Exited(status)) => failures += &format!("{program} ended with {status}\n"),
                Ok(End::Late) => {
                    let words = format!("{program} was ended, as the step may take {}", in_words(deadline.limit()));
                    failures += &format!("{words}\n");
                    late = Some(words);
                }
                Ok(End::NotStarted) => failures += &format!("{program} was not started: the time was over\n"),
                Err(error) => failures += &format!("failed to start {program}: {error}\n"),
            }
        }
        Ok(())
    })?;
    let output = fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
    let output = String::from_utf8_lossy(&output).into_owned();
    let hung = late.map(|words| format!("{words}; its last lines:\n{}", last_lines(&output)));
    Ok(Written { output, failures, hung })
}

fn in_words(limit: Duration) -> String {
    match limit.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => format!("{} minutes", seconds / 60),
    }
}

/// The end of a log, each line indented.
fn last_lines(output: &str) -> String {
    let lines: Vec<_> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(LAST)..].iter();
    last.map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}

/// Reads a log that grows.
struct Reader {
    log: File,
    /// The beginning of a line whose end has not been written yet.
    begun: Vec<u8>,
}

impl Reader {
    /// Reports the panics in the lines that were added since the last time. If the log cannot be read now, it is read once more at the end
    /// of the step.
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

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_panic_is_told_before_the_commands_end() {
        let folder = std::env::temp_dir().join(format!("xtask-log-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let seen = folder.join("seen");
        // The command ends only after its panic was reported.
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                "echo 'FAILING a::b: x.rs:1:1: why' >&2; echo other; until [ -e \"$0\" ]; do sleep 0.01; done",
            ])
            .arg(&seen);
        let reported = Mutex::new(Vec::new());
        let report = |line: &str| {
            reported.lock().unwrap().push(line.to_owned());
            fs::write(&seen, "").unwrap();
        };
        let written = run(vec![command, Command::new("false")], &folder.join("log"), LONG, false, &report).unwrap();
        assert_eq!(reported.into_inner().unwrap(), ["FAILING a::b: x.rs:1:1: why"]);
        assert_eq!(written.output, "FAILING a::b: x.rs:1:1: why\nother\n");
        assert!(written.failures.starts_with("false ended with "), "{}", written.failures);
        assert_eq!(written.hung, None);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_hangs_is_ended_and_its_last_lines_are_told() {
        let folder = std::env::temp_dir().join(format!("xtask-log-hung-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "seq 20; echo 'test a has been running for over 60 seconds'; exec sleep 3600"]);
        let limit = Duration::from_secs(1);
        let written = run(vec![command, Command::new("true")], &folder.join("log"), limit, false, &|_| ()).unwrap();
        assert_eq!(
            written.failures,
            "sh was ended, as the step may take 1 s\ntrue was not started: the time was over\n"
        );
        let hung = written.hung.unwrap();
        assert!(hung.starts_with("sh was ended, as the step may take 1 s; its last lines:\n    12\n"), "{hung}");
        assert!(hung.ends_with("\n    20\n    test a has been running for over 60 seconds"), "{hung}");
        fs::remove_dir_all(folder).unwrap();
    }
}
