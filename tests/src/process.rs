//! A real program as a child process: its ports, its logs, and signals to it.

use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_testkit::{eventually_within, lock};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::Value;

use crate::{LIMIT, Usage, eventually};

/// How long to wait for the last lines of a program that has ended. A program that it has started may outlive it and keep its
/// streams open.
const LAST_LINES: Duration = Duration::from_secs(5);

/// The pause before something is tried or checked again.
const PAUSE: Duration = Duration::from_millis(5);

/// The settings with which a program is started.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Its name in messages.
    pub name: String,
    /// Its file.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Additional environment variables. All `PORTCULLIS_…`, `OTEL_…` and proxy settings are removed from the environment first.
    pub env: Vec<(String, String)>,
    /// A command line in front of the program's; it must end in `exec`, so that the process keeps its id.
    pub wrapper: Vec<String>,
    /// The user id that it runs as; needs root.
    pub user: Option<u32>,
}

/// A program that runs or has ended. It is killed when this is dropped, with the processes that it started.
pub struct Process {
    name: String,
    launch: Mutex<Launch>,
    child: Mutex<Option<Child>>,
    ended: Mutex<Option<ExitStatus>>,
    lines: Arc<Mutex<Vec<String>>>,
    /// How many of its streams have not been read to their end yet.
    open: Arc<AtomicUsize>,
    /// Whether its streams are not read at the moment.
    is_unread: Arc<AtomicBool>,
}

impl Process {
    /// Starts it.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(launch: Launch) -> Self {
        let process = Self {
            name: launch.name.clone(),
            launch: Mutex::new(launch),
            child: Mutex::default(),
            ended: Mutex::default(),
            lines: Arc::default(),
            open: Arc::default(),
            is_unread: Arc::default(),
        };
        process.start_again();
        process
    }

    /// Starts it again after it has ended, like a kubelet. The logs are continued.
    ///
    /// # Panics
    /// When it runs, or cannot be started.
    pub fn start_again(&self) {
        assert!(!self.is_alive(), "{} runs already", self.name);
        let Launch { name, program, args, env, wrapper, user } = &*lock(&self.launch);
        let mut command = match wrapper.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            None => Command::new(program),
        };
        for (key, _) in std::env::vars_os() {
            let text = key.to_string_lossy().to_uppercase();
            if ["PORTCULLIS_", "OTEL_"].iter().any(|start| text.starts_with(start)) || text.ends_with("_PROXY") {
                command.env_remove(&key);
            }
        }
        command.args(args).envs(env.iter().map(|(key, value)| (key, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        if let Some(user) = user {
            command.uid(*user).gid(*user);
        }
        let mut child = spawn(&mut command).unwrap_or_else(|error| panic!("failed to start {name}: {error}"));
        self.collect(child.stdout.take().expect("standard output is a pipe"));
        self.collect(child.stderr.take().expect("standard error is a pipe"));
        lock(&self.lines).push(format!("--- {name} started with process id {}", child.id()));
        *lock(&self.ended) = None;
        *lock(&self.child) = Some(child);
    }

    fn collect(&self, pipe: impl Read + Send + 'static) {
        let (lines, open, is_unread) = (Arc::clone(&self.lines), Arc::clone(&self.open), Arc::clone(&self.is_unread));
        open.fetch_add(1, Ordering::SeqCst);
        thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                while is_unread.load(Ordering::SeqCst) {
                    thread::sleep(PAUSE);
                }
                lock(&lines).push(String::from_utf8_lossy(&line).into_owned());
            }
            open.fetch_sub(1, Ordering::SeqCst);
        });
    }

    /// Stops reading what it writes, or reads it again. It can write as much as fits into a pipe meanwhile.
    pub fn read_streams(&self, is_read: bool) {
        self.is_unread.store(!is_read, Ordering::SeqCst);
    }

    /// Waits until everything that it wrote before its end has been read.
    fn wait_for_last_lines(&self) {
        let start = Instant::now();
        while self.open.load(Ordering::SeqCst) > 0 && start.elapsed() < LAST_LINES {
            thread::sleep(PAUSE);
        }
    }

    /// Sets or removes an environment variable, with effect from the next start.
    pub fn set_env(&self, name: &str, value: Option<&str>) {
        let env = &mut lock(&self.launch).env;
        env.retain(|(key, _)| key != name);
        env.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    }

    /// Ends it and starts it again with these fail points armed, or none.
    pub fn restart_with(&self, fail_points: Option<&str>) {
        self.kill();
        self.set_env("PORTCULLIS_FAILPOINTS", fail_points);
        self.start_again();
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    ///
    /// # Panics
    /// When it does not run.
    pub fn pid(&self) -> u32 {
        lock(&self.child).as_ref().unwrap_or_else(|| panic!("{} does not run", self.name)).id()
    }

    /// Its process id, if it runs or has just ended.
    pub(crate) fn running(&self) -> Option<u32> {
        lock(&self.child).as_ref().map(Child::id)
    }

    /// Whether it runs.
    pub fn is_alive(&self) -> bool {
        self.ended().is_none() && lock(&self.child).is_some()
    }

    /// How it ended; `None` if it still runs.
    pub fn ended(&self) -> Option<ExitStatus> {
        let mut child = lock(&self.child);
        if let Some(status) = child.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
            lock(&self.lines).push(format!("--- {} ended: {status}", self.name));
            *lock(&self.ended) = Some(status);
            *child = None;
        }
        *lock(&self.ended)
    }

    /// Waits until it has ended and all that it wrote has been read.
    ///
    /// # Panics
    /// When it still runs after `limit`.
    pub fn wait_for_end(&self, limit: Duration) -> ExitStatus {
        let status = eventually_within(limit, &format!("the end of {}", self.name), || self.ended());
        self.wait_for_last_lines();
        status
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// When it does not run.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).expect("a process id");
        rustix::process::kill_process(pid, signal).expect("the process is there");
    }

    /// Limits the descriptors that it may have, while it runs. Those beyond the limit stay open.
    ///
    /// # Panics
    /// When it does not run.
    pub fn limit_descriptors(&self, most: u64) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        // It inherited the limit above which it may not raise its own from the test.
        let limit = Rlimit { current: Some(most), ..getrlimit(Resource::Nofile) };
        prlimit(pid, Resource::Nofile, limit).expect("a lower limit is always allowed");
    }

    /// Kills it with all its children, and waits for its end.
    pub fn kill(&self) {
        if let Some(child) = lock(&self.child).as_ref()
            && let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        {
            // It fails if the group has ended already.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        if self.is_alive() {
            self.wait_for_end(LIMIT);
        }
    }

    /// The resources that it uses.
    pub fn usage(&self) -> Usage {
        Usage::of(self.pid())
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
    /// When none comes, or the program ends before.
    pub fn wait_for_log(&self, what: &str, mut is: impl FnMut(&Value) -> bool) -> Value {
        eventually(&format!("{what} in the log of {}", self.name), || {
            // The end is checked before the lines are read, so that lines from just before the end are found.
            let ended = self.ended();
            if ended.is_some() {
                self.wait_for_last_lines();
            }
            let found = self.logs().into_iter().find(|line| is(line));
            if let (Some(status), None) = (ended, &found) {
                panic!("{} ended with {status} before {what}:\n{}", self.name, self.lines().join("\n"));
            }
            found
        })
    }

    /// The address of a port, from the newest log line `listening`: `admission`, `probes` or `state`.
    ///
    /// # Panics
    /// When the program does not log it in time.
    pub fn address(&self, port: &str) -> SocketAddr {
        let line =
            self.wait_for_log(&format!("port {port}"), |line| line["message"] == "listening" && line["port"] == port);
        let address = line["address"].as_str().and_then(|text| text.parse().ok());
        address.unwrap_or_else(|| panic!("{} has no address in {line}", self.name))
    }
}

/// Starts a command. A file that was just written cannot be executed as long as any process has it open for writing, perhaps one
/// that another test is just starting.
fn spawn(command: &mut Command) -> io::Result<Child> {
    let start = Instant::now();
    loop {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && start.elapsed() < LIMIT => {
                thread::sleep(PAUSE);
            }
            spawned => return spawned,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let alive = self.is_alive();
        if thread::panicking() {
            let state = if alive { "runs" } else { "does not run" };
            eprintln!("=== {} {state}; it wrote:\n{}\n===", self.name, self.lines().join("\n"));
        }
        self.kill();
    }
}
