//! A program of the pod as a child process.

use std::collections::HashMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_process::SettingError;
use portcullis_util::lock;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio::task::JoinHandle;

use crate::log::{Line, LogFile, Tail};
use crate::program::Program;

/// Longest line that is read, in bytes; the rest of a longer one counts as the next line.
const LONGEST_LINE: u64 = 64 << 10;
/// Longest time from the start until all ports are open.
const START: Duration = Duration::from_secs(20);
/// Longest time until the last lines of a program that has ended are read.
const LAST_LINES: Duration = Duration::from_secs(1);

/// How a program is started.
#[derive(Debug, Clone)]
pub struct ChildSpec {
    /// The program to start.
    pub program: Program,
    /// Its file.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Environment variables that it does not get. An entry that ends in `_` stands for all names that begin with it.
    pub unset: &'static [&'static str],
    /// The ports that it opens; it has started when it has logged them all.
    pub ports: &'static [&'static str],
    /// The file for its log; `None` if it has none.
    pub log: Option<PathBuf>,
    /// What of its log is printed to standard error as well.
    pub echo: Echo,
    /// Whether it shares this program's standard output, and reads from us on its standard input.
    pub speaks: bool,
}

/// What of a program's log is printed to standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Echo {
    /// No line.
    #[default]
    Nothing,
    /// What policies log.
    Policies,
    /// Every line.
    All,
}

/// A program that runs.
#[derive(Debug)]
pub struct Running {
    /// Locked while somebody waits for its end.
    child: AsyncMutex<Child>,
    /// Reads its log; `None` if it has none.
    reader: Option<JoinHandle<()>>,
    tail: Arc<Mutex<Tail>>,
    /// The addresses of its ports.
    pub addresses: HashMap<String, SocketAddr>,
    /// Its standard input, if it `speaks`.
    pub input: Option<ChildStdin>,
}

/// Why a program did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its file cannot be run, or its log cannot be made.
    #[error("failed to start {}: {source}", path.display())]
    Spawn {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// It ended.
    #[error("the {program} ended at once ({status}){}", quoted(tail))]
    Ended {
        /// The program that ended.
        program: Program,
        /// Its exit status.
        status: ExitStatus,
        /// The last lines of its log.
        tail: Vec<String>,
    },
    /// Its ports did not open.
    #[error("the {program} opened no port for {} s{}", START.as_secs(), quoted(tail))]
    Late {
        /// The program that opened no ports.
        program: Program,
        /// The last lines of its log.
        tail: Vec<String>,
    },
}

impl StartError {
    /// The same error, but a [`SettingError`] if the program refused a setting, which is what exit status 64 says. It had the setting from us.
    pub fn into_setting(self) -> anyhow::Error {
        match self {
            Self::Ended { status, .. } if status.code() == Some(64) => {
                SettingError::new("the settings of a program", self.to_string()).into()
            }
            _ => self.into(),
        }
    }
}

/// What is before each of the last lines of a log, in the text of an error.
pub(crate) const NEXT_LINE: &str = "\n  ";

/// The last lines of a log as a text, each on a line of its own.
pub fn quoted(tail: &[String]) -> String {
    tail.iter().fold(String::new(), |text, line| format!("{text}{NEXT_LINE}{line}"))
}

impl Running {
    /// Starts a program and waits until its ports are open.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start(spec: &ChildSpec) -> Result<Self, StartError> {
        let spawn = |source| StartError::Spawn { path: spec.path.clone(), source };
        let log = spec.log.as_deref().map(LogFile::open).transpose().map_err(spawn)?;
        let mut command = Command::new(&spec.path);
        command
            .args(&spec.arguments)
            .args(["--log-format", "json"])
            .env(portcullis_process::EXIT_WITH_PARENT, std::process::id().to_string())
            .stdin(if spec.speaks { Stdio::piped() } else { Stdio::null() })
            .stdout(if spec.speaks { Stdio::inherit() } else { Stdio::null() })
            .stderr(Stdio::piped())
            // Ctrl-C in the terminal reaches this program only, which then ends the others in order.
            .process_group(0)
            .kill_on_drop(true);
        for (name, _) in std::env::vars_os() {
            if is_unset(&name.to_string_lossy(), spec.unset) {
                command.env_remove(&name);
            }
        }
        let mut child = command.spawn().map_err(spawn)?;
        // Taken out, as waiting for the child would close it.
        let input = child.stdin.take();
        let tail = Arc::new(Mutex::new(Tail::default()));
        let (sender, mut listening) = mpsc::channel(8);
        let echo = (spec.echo, spec.program);
        let reader = child.stderr.take().map(|stderr| tokio::spawn(read(stderr, log, echo, Arc::clone(&tail), sender)));

        let mut addresses = HashMap::new();
        let ended = {
            let all = async {
                while !spec.ports.iter().all(|port| addresses.contains_key(*port)) {
                    match listening.recv().await {
                        Some((port, address)) => drop(addresses.insert(port, address)),
                        // Standard error is closed, so the program is ending.
                        None => std::future::pending().await,
                    }
                }
            };
            tokio::select! {
                () = all => None,
                status = child.wait() => Some(Some(status)),
                () = tokio::time::sleep(START) => Some(None),
            }
        };
        let words = || lock(&tail).lines();
        match ended {
            None => {}
            Some(None) => return Err(StartError::Late { program: spec.program, tail: words() }),
            Some(Some(status)) => {
                let status = status.map_err(spawn)?;
                if let Some(reader) = reader {
                    // The last lines of its log may not have been read yet.
                    let _ = tokio::time::timeout(LAST_LINES, reader).await;
                }
                return Err(StartError::Ended { program: spec.program, status, tail: words() });
            }
        }
        // Later ports are not waited for, but the lines must still be read.
        tokio::spawn(async move { while listening.recv().await.is_some() {} });
        Ok(Self { child: AsyncMutex::new(child), reader, tail, addresses, input })
    }

    /// Waits until the program ends, which is unexpected. Returns its status and the last lines of its log.
    pub async fn ended(&mut self) -> (String, Vec<String>) {
        let status = self.child.get_mut().wait().await;
        self.last_words(&status).await
    }

    /// The same for a program that does not answer; `None` if it still runs after a moment.
    pub async fn has_ended(&self) -> Option<(String, Vec<String>)> {
        let mut child = self.child.lock().await;
        let status = tokio::time::timeout(LAST_LINES, child.wait()).await.ok()?;
        Some(self.last_words(&status).await)
    }

    async fn last_words(&self, status: &std::io::Result<ExitStatus>) -> (String, Vec<String>) {
        let status = status.as_ref().map_or_else(ToString::to_string, ToString::to_string);
        // The last lines of its log may not have been read yet.
        tokio::time::sleep(Duration::from_millis(50)).await;
        (status, lock(&self.tail).lines())
    }

    /// Asks the program to end, waits for `patience`, then ends it. Its log is read to the end.
    pub async fn stop(mut self, patience: Duration) {
        let child = self.child.get_mut();
        let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(id) = id {
            // It may have ended by itself just now.
            let _ = kill_process(id, Signal::TERM);
        }
        // The reporter reads its input to the end before it ends.
        drop(self.input.take());
        if tokio::time::timeout(patience, child.wait()).await.is_err() {
            let _ = child.kill().await;
        }
        if let Some(reader) = self.reader {
            // A process that it left behind may keep its standard error open.
            let _ = tokio::time::timeout(LAST_LINES, reader).await;
        }
    }
}

/// Whether a program does not get the variable of this name.
fn is_unset(name: &str, unset: &[&str]) -> bool {
    unset.iter().any(|one| if one.ends_with('_') { name.starts_with(one) } else { name == *one })
}

/// Reads standard error to its end.
async fn read(
    stderr: impl AsyncRead + Unpin,
    mut log: Option<LogFile>,
    (echo, program): (Echo, Program),
    tail: Arc<Mutex<Tail>>,
    listening: mpsc::Sender<(String, SocketAddr)>,
) {
    let mut reader = BufReader::new(stderr);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        match (&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut bytes).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end();
        if log.as_mut().is_some_and(|log| log.line(text).is_err()) {
            // A full disk must not stop the pod; the last words are still kept.
            log = None;
        }
        let line = Line::parse(text);
        match (echo, &line) {
            (Echo::Policies, Line::Policy { level, said, .. }) => crate::note(&format!("{level}: {said}")),
            (Echo::Nothing | Echo::Policies, _) => {}
            (Echo::All, Line::Listening(port, address)) => crate::note(&format!("{program}: {port} on {address}")),
            (Echo::All, Line::Record { text, .. } | Line::Policy { text, .. } | Line::Plain(text)) => {
                crate::note(&format!("{program}: {text}"));
            }
        }
        lock(&tail).add(&line);
        if let Line::Listening(port, address) = line {
            // Once the program runs, nothing waits for ports any longer.
            let _ = listening.send((port, address)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_ends_is_told_with_its_status_and_its_last_words() {
        let listening = r#"{"level":"INFO","message":"listening","port":"state","address":"127.0.0.1:9"}"#;
        let script = format!("echo '{listening}' >&2; sleep 0.5; echo 'error: no room' >&2; exit 7");
        let spec = ChildSpec {
            program: Program::Loader,
            path: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
            unset: &[],
            ports: &["state"],
            log: None,
            echo: Echo::Nothing,
            speaks: false,
        };
        let running = Running::start(&spec).await.expect("it tells its port");
        let (status, tail) = running.has_ended().await.expect("it ends");
        assert_eq!((status.as_str(), tail), ("exit status: 7", vec!["error: no room".to_owned()]));
    }

    #[test]
    fn variables_are_unset_by_name_or_by_what_they_begin_with() {
        let unset = &["PORTCULLIS_TLS_DIR", "OTEL_"];
        assert!(["PORTCULLIS_TLS_DIR", "OTEL_TRACES_SAMPLER"].iter().all(|name| is_unset(name, unset)));
        assert!(["PORTCULLIS_TLS_DIR_2", "MY_OTEL_X", "OTEL"].iter().all(|name| !is_unset(name, unset)));
    }
}
