//! A folder of policies with a loader on it.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_contract::{LoaderPolicy, LoaderState, Manifest, Phase, PolicyEntry};
use portcullis_testkit::eventually_within;
pub(crate) use portcullis_testkit::wat as module;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(120);

/// A module that differs from others by its number.
pub(crate) fn numbered(number: u32) -> Vec<u8> {
    module(&format!(r#"(module (memory (export "memory") 1) (func (export "f") (result i32) i32.const {number}))"#))
}

/// The manifest of a ClusterPolicy.
pub(crate) fn policy(name: &str, module: &str, settings: &str) -> String {
    format!(
        "apiVersion: policies.portcullis.dev/v1alpha1\nkind: ClusterPolicy\nmetadata: {{name: {name}}}\nspec:\n  \
         module: {module}\n  settings: {settings}\n  \
         rules: [{{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}}]\n"
    )
}

/// The folder; it is removed when dropped.
pub(crate) struct Folder(tempfile::TempDir);

/// A running loader; it is killed when dropped.
pub(crate) struct Loader {
    child: Child,
    pub probes: SocketAddr,
    pub state: SocketAddr,
    pub lines: Arc<Mutex<Vec<String>>>,
    pub volume: PathBuf,
}

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file by rename, as good editors do.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path().join(name);
        let temporary = self.path().join(format!(".{}.new", name.replace('/', "-")));
        fs::write(&temporary, content).expect("writes");
        fs::rename(temporary, path).expect("renames");
    }

    pub(crate) fn volume(&self) -> PathBuf {
        self.path().join(".portcullis/volume")
    }

    pub(crate) fn start(&self, extra: &[&str]) -> Loader {
        self.start_with(extra, "")
    }

    /// Starts a loader with fail points.
    pub(crate) fn start_with(&self, extra: &[&str], failpoints: &str) -> Loader {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis-loader"));
        command
            .arg("--dir")
            .arg(self.path())
            .args([
                "--probe-address",
                "127.0.0.1:0",
                "--state-address",
                "127.0.0.1:0",
                "--evaluator-state",
                "127.0.0.1:1",
                "--policy-paths",
                "on",
            ])
            .args([
                "--allow-private",
                "127.0.0.0/8",
                "--retry-initial",
                "100ms",
                "--retry-cap",
                "1s",
                "--log-format",
                "json",
            ])
            .args(extra)
            .args(if extra.contains(&"--retry-outside") { &[][..] } else { &["--retry-outside", "1s"] })
            .env_clear()
            .env("PORTCULLIS_FAILPOINTS", failpoints)
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("starts");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (mut probes, mut state) = (None, None);
        let mut stderr = BufReader::new(child.stderr.take().expect("piped")).lines();
        while probes.is_none() || state.is_none() {
            let line = stderr.next().expect("the loader says where it listens").expect("text");
            let value: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
            let address = value["address"].as_str().and_then(|address| address.parse().ok());
            match value["port"].as_str() {
                Some("probes") => probes = address,
                Some("state") => state = address,
                _ => {}
            }
            lines.lock().expect("a list").push(line);
        }
        let kept = Arc::clone(&lines);
        std::thread::spawn(move || {
            stderr.map_while(Result::ok).for_each(|line| kept.lock().expect("a list").push(line))
        });
        let (probes, state) = (probes.expect("an address"), state.expect("an address"));
        Loader { child, probes, state, lines, volume: self.volume() }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Loader {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM, and returns how the loader ended.
    pub(crate) fn stop(&mut self) -> std::process::ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("kills");
        self.ended()
    }

    /// Waits for its end, and returns how it ended.
    pub(crate) fn ended(&mut self) -> std::process::ExitStatus {
        eventually("the loader to end", || self.child.try_wait().expect("waits"))
    }

    /// The manifest on the volume; `None` if there is none yet.
    pub(crate) fn manifest(&self) -> Option<Manifest> {
        Manifest::decode(&fs::read(self.volume.join("manifest.json")).ok()?).ok()
    }

    pub(crate) fn entry(&self, id: &str) -> Option<PolicyEntry> {
        self.manifest()?.policies.into_iter().find(|entry| entry.id.as_str() == id)
    }

    /// Waits until a generation of a policy is the first candidate.
    pub(crate) fn serves(&self, id: &str, generation: i64) -> PolicyEntry {
        eventually(&format!("{id} to serve generation {generation}"), || {
            self.entry(id).filter(|entry| entry.candidates.first().is_some_and(|first| first.generation == generation))
        })
    }

    pub(crate) fn loader_state(&self) -> LoaderState {
        let (status, body) = get(self.state, "/v1/state");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("a state")
    }

    pub(crate) fn policy(&self, id: &str) -> Option<LoaderPolicy> {
        self.loader_state().policies.into_iter().find(|policy| policy.id.as_str() == id)
    }

    /// Waits until a policy has failed, and returns its state.
    pub(crate) fn fails(&self, id: &str) -> LoaderPolicy {
        eventually(&format!("{id} to fail"), || {
            self.policy(id).filter(|policy| policy.phase == Phase::Failed && policy.failure.is_some())
        })
    }

    /// The value of a series of the metrics; 0 if it does not exist.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        let (_, body) = get(self.probes, "/metrics");
        let value = body.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
        value.unwrap_or(0.0)
    }

    pub(crate) fn log(&self) -> String {
        self.lines.lock().expect("a list").join("\n")
    }

    /// The names of the files in a folder of the volume.
    pub(crate) fn files(&self, folder: &str) -> Vec<String> {
        let names = fs::read_dir(self.volume.join(folder)).expect("lists").flatten();
        let mut names: Vec<_> = names.map(|item| item.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// A plain GET.
pub(crate) fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("connects");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("writes");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("reads");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
    // Joins the chunks of a chunked body.
    let body = if answer.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        unchunk(body)
    } else {
        body.to_owned()
    };
    (status, body)
}

fn unchunk(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 {
            break;
        }
        whole.push_str(&rest[..size]);
        body = rest.get(size + 2..).unwrap_or_default();
    }
    whole
}

/// Waits until `check` returns a value.
pub(crate) fn eventually<T>(what: &str, check: impl FnMut() -> Option<T>) -> T {
    eventually_within(PATIENCE, what, check)
}
