//! What a child process writes to standard error. It is kept in a file of limited size, and ports and warnings are read from it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// A log is renamed to `.1` when it has reached this size, in bytes.
const LIMIT: u64 = 10 << 20;
/// Lines that are shown when a program ends.
const TAIL: usize = 5;
/// Longest line that is shown, in bytes.
const SHOWN: usize = 512;
/// Longest line of a policy that is shown, in bytes. The evaluator cuts longer ones.
const SAID: usize = 2 << 10;

/// A log file that never grows beyond its limit; one older file is kept beside it.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
    written: u64,
}

impl LogFile {
    /// Opens a log, to append to it.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        let written = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, written })
    }

    /// Adds a line.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn line(&mut self, line: &str) -> io::Result<()> {
        if self.written >= LIMIT {
            let old = self.path.with_extension("log.1");
            std::fs::rename(&self.path, old)?;
            *self = Self::open(&self.path)?;
        }
        self.written += u64::try_from(line.len()).unwrap_or(0) + 1;
        writeln!(self.file, "{line}")
    }
}

/// A line of a program's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A port is open: its name and address.
    Listening(String, SocketAddr),
    /// A log record, as a text for people.
    Record {
        /// `2026-01-01T00:00:00Z WARN failed to …: error=…`.
        text: String,
        /// Warning or error.
        bad: bool,
    },
    /// What a policy has logged. It may say anything, so nothing is read from it.
    Policy {
        /// `2026-01-01T00:00:00Z INFO policy log policy=… said=…`.
        text: String,
        /// `INFO`, for instance.
        level: String,
        /// Its words.
        said: String,
    },
    /// Another line: a panic, or what a program prints before its log is set up.
    Plain(String),
}

impl Line {
    /// Reads a line, which may or may not be JSON.
    pub fn parse(line: &str) -> Self {
        let Ok(Value::Object(mut fields)) = serde_json::from_str::<Value>(line) else {
            return Self::Plain(portcullis_contract::clean(line, SHOWN));
        };
        let mut take = |name: &str| fields.shift_remove(name).map(|value| words(&value)).unwrap_or_default();
        let [time, level, message] = ["timestamp", "level", "message"].map(&mut take);
        if message == "listening"
            && let Ok(address) = take("address").parse()
        {
            return Self::Listening(take("port"), address);
        }
        let target = take("target");
        let said = fields.get("said").map(words);
        let rest: String = fields.iter().map(|(name, value)| format!(" {name}={}", words(value))).collect();
        let text = portcullis_contract::clean(&format!("{time} {level} {message}{rest}"), SHOWN);
        // The verdict of a policy in mode `monitor` has the same target, and is a line of the evaluator.
        if let Some(said) = said.filter(|_| target == portcullis_process::GUEST_LOG) {
            return Self::Policy { text, level, said: portcullis_contract::clean(&said, SAID) };
        }
        Self::Record { text, bad: matches!(level.as_str(), "WARN" | "ERROR") }
    }
}

fn words(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The last lines that may tell why a program ended.
#[derive(Debug, Default)]
pub struct Tail(VecDeque<String>);

impl Tail {
    /// Adds a line, unless it cannot tell why the program ended.
    pub fn add(&mut self, line: &Line) {
        let text = match line {
            Line::Plain(text) | Line::Record { text, bad: true } => text,
            Line::Listening(..) | Line::Policy { .. } | Line::Record { bad: false, .. } => return,
        };
        // A hint on how to get a backtrace does not explain anything.
        if text.is_empty() || text.starts_with("note: run with") {
            return;
        }
        if self.0.len() == TAIL {
            self.0.pop_front();
        }
        self.0.push_back(text.clone());
    }

    /// The lines, oldest first.
    pub fn lines(&self) -> Vec<String> {
        self.0.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_a_record_and_plain_words() {
        let listening = r#"{"timestamp":"t","level":"INFO","message":"listening","port":"state","address":"127.0.0.1:9081","target":"x"}"#;
        let address = "127.0.0.1:9081".parse().expect("an address");
        assert_eq!(Line::parse(listening), Line::Listening("state".into(), address));
        let warning = r#"{"timestamp":"t","level":"WARN","message":"failed to fetch","policy":"cluster/a","attempts":3,"target":"x"}"#;
        let text = "t WARN failed to fetch policy=cluster/a attempts=3".to_owned();
        assert_eq!(Line::parse(warning), Line::Record { text, bad: true });
        let said = r#"{"timestamp":"t","level":"WARN","message":"policy log","policy":"cluster/a","said":"no team","target":"policy"}"#;
        let text = "t WARN policy log policy=cluster/a said=no team".to_owned();
        assert_eq!(Line::parse(said), Line::Policy { text, level: "WARN".into(), said: "no team".into() });
        let monitored = r#"{"timestamp":"t","level":"INFO","message":"verdict in monitor mode","policy":"cluster/a","allowed":false,"target":"policy"}"#;
        let text = "t INFO verdict in monitor mode policy=cluster/a allowed=false".to_owned();
        assert_eq!(Line::parse(monitored), Line::Record { text, bad: false });
        assert_eq!(Line::parse("error: \u{1b}[1mno"), Line::Plain("error: [1mno".into()));
    }

    #[test]
    fn the_tail_holds_the_last_lines_that_may_be_causes() {
        let mut tail = Tail::default();
        tail.add(&Line::Record { text: "chatter".into(), bad: false });
        for n in 0..9 {
            tail.add(&Line::Plain(n.to_string()));
        }
        assert_eq!(tail.lines(), ["4", "5", "6", "7", "8"]);
    }

    #[test]
    fn a_log_never_grows_without_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("loader.log");
        let mut log = LogFile::open(&path).expect("opens");
        let line = "x".repeat(1 << 20);
        for _ in 0..25 {
            log.line(&line).expect("writes");
        }
        let size = |name: &str| std::fs::metadata(folder.path().join(name)).expect("is there").len();
        assert!(size("loader.log") <= LIMIT + (1 << 20) + 1);
        assert!(size("loader.log.1") <= LIMIT + (1 << 20) + 1);
    }
}
