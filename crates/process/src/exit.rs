//! How a program ends.

use std::process::ExitCode;
use std::time::Duration;

use crate::standard_error;

/// A setting that cannot be used: the program ends with status 64 (`EX_USAGE`) before any port is open.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct SettingError {
    setting: String,
    problem: String,
}

impl SettingError {
    /// `setting` is what the user typed, for instance `--tls-dir`; `problem` what is wrong and what helps.
    pub fn new(setting: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { setting: setting.into(), problem: problem.into() }
    }
}

/// The variable that a program sets for the programs that it starts, to its own process id, if they should end when it
/// is gone, in whatever way it ended.
pub const EXIT_WITH_PARENT: &str = "PORTCULLIS_EXIT_WITH_PARENT";

/// Runs a program's body, with cryptography installed, and turns its error into a sentence and an exit status: 64 for a [`SettingError`],
/// otherwise 1. The log is written to its end, as far as it is read.
pub fn run(body: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    run_with(body, standard_error::LAST_LINES)
}

/// [`run`], which waits for `patience` until the last lines are written.
fn run_with(body: impl FnOnce() -> anyhow::Result<()>, patience: Duration) -> ExitCode {
    if let Some(parent) = std::env::var_os(EXIT_WITH_PARENT) {
        // The program works without this; it would only stay behind if its parent were killed.
        let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
        // A parent that was killed before the line above does not send a signal.
        let is_there = rustix::process::getppid().is_some_and(|found| parent == *found.as_raw_nonzero().to_string());
        if !is_there {
            return ExitCode::FAILURE;
        }
    }
    crate::install_crypto();
    let _last_lines = LastLines(patience);
    match body() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            standard_error::say(&format!("error: {}\n", sentence(&error)));
            if error.downcast_ref::<SettingError>().is_some() { ExitCode::from(64) } else { ExitCode::FAILURE }
        }
    }
}

/// The error and its causes. Some errors end with their cause's text already, and it is not said twice.
fn sentence(error: &anyhow::Error) -> String {
    let mut sentence = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if sentence.is_empty() {
            sentence = cause;
        } else if !sentence.ends_with(&cause) {
            sentence = format!("{sentence}: {cause}");
        }
    }
    sentence
}

/// Waits until the log is written when the program ends, also if it ends with a panic.
struct LastLines(Duration);

impl Drop for LastLines {
    fn drop(&mut self) {
        standard_error::finish(self.0);
    }
}

/// Reads the command line and the environment. Input that clap refuses ends the process like any bad setting, with
/// status 64.
pub fn parse_args<A: clap::Parser>() -> A {
    A::try_parse().unwrap_or_else(|error| {
        // Help and version are not errors, and nothing can be done about output that cannot be printed.
        let _ = error.print();
        std::process::exit(if error.use_stderr() { 64 } else { 0 })
    })
}

/// On or off, for settings that are said either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Switch {
    /// It is.
    On,
    /// It is not.
    Off,
}

impl Switch {
    /// Whether the setting is on.
    pub fn is_on(self) -> bool {
        self == Self::On
    }
}

/// What happens when somebody applies a policy that would not load. Controller and loaders have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PolicyChecks {
    /// API servers do not ask about policies.
    Off,
    /// API servers ask the evaluators, which admit every policy, with a warning if it would not load.
    Warn,
    /// API servers ask the evaluators, which refuse a policy that cannot load until it is edited.
    Deny,
}

/// A value of a setting that cannot be parsed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ParseError {
    /// The number is not followed by a known unit.
    #[error("{0:?} is not a number of bytes (write it like 65536, 512KiB, 128MiB or 1GiB)")]
    NotBytes(String),
    /// The text does not begin with a number.
    #[error("{0:?} does not begin with a number of bytes")]
    NoNumber(String),
    /// The number does not fit into 64 bits.
    #[error("{0:?} is too many bytes")]
    TooManyBytes(String),
    /// The text is not a duration.
    #[error("{0} (write it like 500ms, 2s or 1m)")]
    NotDuration(humantime::DurationError),
}

/// A number of bytes as users write it: `1024`, `64KiB`, `128MiB`, `1GiB`. For clap's `value_parser`.
///
/// # Errors
/// When the text is not such a number, or the number is too large.
pub fn parse_bytes(text: &str) -> Result<u64, ParseError> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" | "Ki" => 10,
        "MiB" | "Mi" => 20,
        "GiB" | "Gi" => 30,
        _ => return Err(ParseError::NotBytes(text.to_owned())),
    };
    let number: u64 = digits.parse().map_err(|_| ParseError::NoNumber(text.to_owned()))?;
    number.checked_mul(1 << shift).ok_or_else(|| ParseError::TooManyBytes(text.to_owned()))
}

/// A number of bytes as users write it and [`parse_bytes`] reads it, in the largest unit of which it is a multiple: `64MiB`, `1000B`.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    let (unit, shift) = match bytes.trailing_zeros() {
        10..20 => ("KiB", 10),
        20..30 => ("MiB", 20),
        30..64 => ("GiB", 30),
        _ => ("B", 0),
    };
    format!("{}{unit}", bytes >> shift)
}

/// A duration as users write it: `500ms`, `2s`, `1m 30s`. For clap's `value_parser`.
///
/// # Errors
/// When the text is not a duration.
pub fn parse_duration(text: &str) -> Result<Duration, ParseError> {
    humantime::parse_duration(text).map_err(ParseError::NotDuration)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::process::{Command, Stdio, exit};
    use std::{env, io};

    use prometheus::Registry;

    use super::*;

    #[test]
    fn no_cause_is_said_twice() {
        use crate::files::FileError;

        let file = FileError::new("open", "/a".as_ref())(io::Error::other("no such file"));
        let error = anyhow::Error::new(file).context("failed to read the settings");
        assert_eq!(sentence(&error), "failed to read the settings: failed to open /a: no such file");
        let error = anyhow::anyhow!("it is full").context("failed to write").context("failed to start");
        assert_eq!(sentence(&error), "failed to start: failed to write: it is full");
    }

    /// The variable that makes a test the program that ends, and says how.
    const ENDS: &str = "PORTCULLIS_TEST_ENDS";
    /// Its lines: more than fit into a pipe.
    const LINES: usize = 8 << 10;

    /// Writes lines that nobody reads yet, and ends.
    fn end(how: &str) -> ! {
        let body = || {
            crate::write_log_in_background(&Registry::new())?;
            (0..LINES).for_each(|number| standard_error::say(&format!("{number:063}\n")));
            io::stdout().write_all(b"read now\n")?;
            assert_ne!(how, "panic");
            anyhow::bail!("no more lines")
        };
        // A panic of a test would not end the process.
        let _ = catch_unwind(AssertUnwindSafe(|| run_with(body, Duration::from_secs(600))));
        exit(0)
    }

    #[test]
    fn the_last_lines_are_written_before_the_end() {
        if let Ok(how) = env::var(ENDS) {
            end(&how);
        }
        for (how, last) in [("error", "error: no more lines\n"), ("panic", "panicked at ")] {
            let mut command = Command::new(env::current_exe().expect("a test has a file"));
            command.args(["--exact", "exit::tests::the_last_lines_are_written_before_the_end", "--nocapture"]);
            command.env(ENDS, how).env("RUST_BACKTRACE", "0").stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().expect("starts");
            let mut said = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
            assert!(said.any(|line| line.ends_with("read now")), "{how}");
            let mut log = String::new();
            child.stderr.take().expect("a pipe").read_to_string(&mut log).expect("reads");
            assert!(child.wait().expect("ends").success(), "{how}");
            let all: String = (0..LINES).map(|number| format!("{number:063}\n")).collect();
            let rest = log.strip_prefix(&all).unwrap_or_else(|| panic!("{how}: {} bytes", log.len()));
            assert!(rest.contains(last), "{how}: {rest}");
        }
    }

    #[test]
    fn bytes_as_users_write_them() {
        for (text, bytes) in [("7", 7), ("64KiB", 65536), ("128 MiB", 128 << 20), ("1Gi", 1 << 30)] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "MiB", "1MB", "-1", "1.5GiB", "99999999999GiB"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_are_written_as_users_write_them() {
        for text in ["0B", "1B", "1000B", "1025B", "1KiB", "1536KiB", "64MiB", "4GiB", "2048GiB"] {
            assert_eq!(format_bytes(parse_bytes(text).expect("parses")), text);
        }
        assert_eq!(parse_bytes(&format_bytes(u64::MAX)), Ok(u64::MAX));
    }
}
