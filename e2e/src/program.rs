//! The programs of the product: finds them, and runs each as a child process with its logs. They are not built here.

use std::env;
use std::fmt;
use std::io::{BufRead as _, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::wait::{LIMIT, eventually};
use crate::{guard, lock};

/// A program of the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Program {
    /// `portcullis-loader`.
    Loader,
    /// `portcullis-evaluator`.
    Evaluator,
    /// `portcullis-reporter`.
    Reporter,
    /// `portcullis-controller`.
    Controller,
    /// `portcullis`.
    Cli,
}

impl Program {
    /// The name of its file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loader => "portcullis-loader",
            Self::Evaluator => "portcullis-evaluator",
            Self::Reporter => "portcullis-reporter",
            Self::Controller => "portcullis-controller",
            Self::Cli => "portcullis",
        }
    }

    /// Its file: in the folder `PORTCULLIS_BIN_DIR`, or where cargo puts debug builds.
    ///
    /// # Panics
    /// When it is not there.
    pub fn path(self) -> PathBuf {
        let folder = env::var_os("PORTCULLIS_BIN_DIR").map_or_else(beside_this_test, PathBuf::from);
        let path = folder.join(self.name());
        assert!(path.is_file(), "{} is not there: run `cargo xtask build` first", path.display());
        path
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A test runs from `target/debug/deps/`; the programs are one folder above.
fn beside_this_test() -> PathBuf {
    let test = env::current_exe().expect("a test knows its own file");
    test.ancestors().nth(2).map(Path::to_owned).expect("a test lies in target/debug/deps")
}

/// The settings with which a program is started.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    /// The name in messages.
    pub(crate) name: String,
    pub(crate) program: Program,
    pub(crate) args: Vec<String>,
    /// Variables that are added to the environment. Everything that could give rights or settings is removed from it
    /// first.
    pub(crate) env: Vec<(String, String)>,
}

/// A running program, or one that ended. It is killed when this is dropped.
pub struct Process {
    launch: Mutex<Launch>,
    child: Mutex<Option<Child>>,
    ended: Mutex<Option<ExitStatus>>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Process {
    /// Starts it.
    pub(crate) fn start(launch: Launch) -> Self {
        let process = Self {
            launch: Mutex::new(launch),
            child: Mutex::default(),
            ended: Mutex::default(),
            lines: Arc::default(),
        };
        process.start_again();
        process
    }

    /// Starts it once more after it has ended. The logs are continued.
    pub(crate) fn start_again(&self) {
        let mut child = lock(&self.child);
        assert!(child.is_none(), "it runs already");
        let Launch { name, program, args, env } = lock(&self.launch).clone();
        let mut command = Command::new(program.path());
        for (key, _) in env::vars_os() {
            let text = key.to_string_lossy().to_uppercase();
            if ["PORTCULLIS_", "KUBE"].iter().any(|prefix| text.starts_with(prefix)) || text.ends_with("_PROXY") {
                command.env_remove(&key);
            }
        }
        command
            .args(args)
            .envs(env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut started = command.spawn().unwrap_or_else(|error| panic!("failed to start {name}: {error}"));
        guard::watch(started.id());
        self.collect(started.stdout.take().expect("standard output is a pipe"));
        self.collect(started.stderr.take().expect("standard error is a pipe"));
        lock(&self.lines).push(format!("--- {name} started with process id {}", started.id()));
        *lock(&self.ended) = None;
        *child = Some(started);
    }

    fn collect(&self, pipe: impl Read + Send + 'static) {
        let lines = Arc::clone(&self.lines);
        thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                lock(&lines).push(String::from_utf8_lossy(&line).into_owned());
            }
        });
    }

    /// Sets or removes an environment variable, with effect from the next start.
    pub fn set_env(&self, name: &str, value: Option<&str>) {
        let env = &mut lock(&self.launch).env;
        env.retain(|(key, _)| key != name);
        env.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    }

    /// Its name, made from those of its pod and of the program.
    pub fn name(&self) -> String {
        lock(&self.launch).name.clone()
    }

    /// Its process id; `None` if it does not run.
    pub fn pid(&self) -> Option<u32> {
        self.ended();
        lock(&self.child).as_ref().map(Child::id)
    }

    /// Whether it runs.
    pub fn is_alive(&self) -> bool {
        self.pid().is_some()
    }

    /// How it ended; `None` if it still runs.
    pub fn ended(&self) -> Option<ExitStatus> {
        let mut child = lock(&self.child);
        if let Some(running) = child.as_mut()
            && let Some(status) = running.try_wait().ok().flatten()
        {
            guard::forget(running.id());
            lock(&self.lines).push(format!("--- it ended: {status}"));
            *lock(&self.ended) = Some(status);
            *child = None;
        }
        *lock(&self.ended)
    }

    /// Sends a signal, if it runs. `SIGSTOP` and `SIGCONT` pause and resume it.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            // It may have ended in the meantime, which is not an error.
            let _ = rustix::process::kill_process_group(pid, signal);
        }
    }

    /// Kills it, and waits for its end.
    pub fn kill(&self) {
        let pid = self.pid();
        self.signal(Signal::KILL);
        self.wait_for_end(pid, LIMIT);
    }

    /// Asks it to end, and kills it if it still runs after `grace`.
    pub fn terminate(&self, grace: Duration) {
        let pid = self.pid();
        self.signal(Signal::TERM);
        // A paused process would not receive the signal.
        self.signal(Signal::CONT);
        if !self.wait_for_end(pid, grace) {
            self.kill();
        }
    }

    /// Waits for the end of this process. Its id is given, as a kubelet may start the next process before the end is
    /// noticed.
    fn wait_for_end(&self, pid: Option<u32>, limit: Duration) -> bool {
        let start = Instant::now();
        while pid.is_some() && self.pid() == pid {
            if start.elapsed() > limit {
                return false;
            }
            thread::sleep(Duration::from_millis(10));
        }
        true
    }

    /// All lines that it has written so far, on both streams.
    pub fn lines(&self) -> Vec<String> {
        lock(&self.lines).clone()
    }

    /// The decoded log lines among them.
    pub fn logs(&self) -> Vec<Value> {
        lock(&self.lines).iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits for a log line.
    ///
    /// # Panics
    /// When none comes in time.
    pub fn wait_for_log(&self, what: &str, mut is: impl FnMut(&Value) -> bool) -> Value {
        eventually(&format!("{what} in the log of {}", self.name()), || self.logs().into_iter().find(|line| is(line)))
    }

    /// The address of a port, from the newest log line `listening`: `admission`, `probes` or `state`.
    ///
    /// # Panics
    /// When the program does not log it in time.
    pub fn address(&self, port: &str) -> SocketAddr {
        let is_it = |line: &Value| line["message"] == "listening" && line["port"] == port;
        let line = self.wait_for_log(&format!("port {port}"), is_it);
        let address = line["address"].as_str().and_then(|text| text.parse().ok());
        address.unwrap_or_else(|| panic!("{} has no address in {line}", self.name()))
    }

    /// Its last lines, to find the cause of a failed test.
    pub(crate) fn last_words(&self, lines: usize) -> String {
        let state = if self.is_alive() { "runs" } else { "does not run" };
        let all = self.lines();
        let left_out = all.len().saturating_sub(lines);
        format!("=== {} {state}; it wrote ({left_out} lines before):\n{}\n", self.name(), all[left_out..].join("\n"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
