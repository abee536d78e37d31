//! The real programs of a benchmark: a loader that fills a volume, and an evaluator that serves from it.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use portcullis_contract::{MANIFEST_FILE, MANIFEST_MAX_BYTES, Manifest};
use portcullis_process::files;
use rustix::process::{Pid, Signal, kill_process};

use crate::load::Target;
use crate::usage::{Memory, Usage};

/// How long a loader may take to compile a few modules.
pub(crate) const FILL: Duration = Duration::from_secs(120);
/// How long a loader may take to compile hundreds of modules.
pub(crate) const FILL_MANY: Duration = Duration::from_secs(1800);

/// A folder of policies, with the other folders that the programs need; it is removed at the end.
pub(crate) struct Folder {
    root: tempfile::TempDir,
}

impl Folder {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let root = tempfile::tempdir()?;
        for name in ["policies", "volume", "private", "tls", "broker"] {
            std::fs::create_dir(root.path().join(name))?;
        }
        let folder = Self { root };
        folder.make_certificate()?;
        Ok(folder)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Removes everything from one of its folders.
    pub(crate) fn clear(&self, name: &str) -> anyhow::Result<()> {
        std::fs::remove_dir_all(self.path(name))?;
        Ok(std::fs::create_dir(self.path(name))?)
    }

    /// Adds a cluster policy `name` for pods, with its module.
    pub(crate) fn policy(
        &self,
        name: &str,
        module: &[u8],
        settings: &serde_json::Value,
        mutating: bool,
    ) -> anyhow::Result<()> {
        let file = self.module(name, module)?;
        self.manifest(name, serde_json::json!({"module": file, "settings": settings, "mutating": mutating}))
    }

    /// Adds a module to the folder; returns its name.
    pub(crate) fn module(&self, name: &str, module: &[u8]) -> anyhow::Result<String> {
        let file = format!("{name}.wasm");
        std::fs::write(self.path("policies").join(&file), module)?;
        Ok(file)
    }

    /// Adds a cluster policy `name` for pods, with the rest of its spec.
    pub(crate) fn manifest(&self, name: &str, mut spec: serde_json::Value) -> anyhow::Result<()> {
        spec["rules"] = serde_json::json!([
            {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]},
        ]);
        let manifest = serde_json::json!({
            "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": name},
            "spec": spec,
        });
        std::fs::write(self.path("policies").join(format!("{name}.json")), manifest.to_string())?;
        Ok(())
    }

    /// Lets a real loader fill `volume` until all `policies` have an artifact; returns the manifest.
    pub(crate) fn fill(&self, volume: &Path, policies: usize, longest: Duration) -> anyhow::Result<Manifest> {
        let _loader = self.loader(volume)?;
        let start = Instant::now();
        while start.elapsed() < longest {
            if let Some(manifest) = manifest(volume) {
                if let Some(failure) = manifest.policies.iter().flat_map(|policy| &policy.failures).next() {
                    bail!("the loader failed: {failure}");
                }
                if manifest.policies.iter().filter(|policy| !policy.candidates.is_empty()).count() == policies {
                    return Ok(manifest);
                }
            }
            thread::sleep(Duration::from_millis(20));
        }
        bail!("the loader did not fill the volume within {}", humantime::format_duration(longest))
    }

    /// Starts a loader, which also is the broker of the evaluator.
    pub(crate) fn loader(&self, volume: &Path) -> anyhow::Result<Program> {
        let mut command = program("portcullis-loader")?;
        command.arg("--dir").arg(self.path("policies")).arg("--volume").arg(volume);
        command.arg("--broker-socket").arg(self.path("broker/broker.sock"));
        command.args(["--probe-address", "127.0.0.1:0", "--state-address", "127.0.0.1:0", "--compile-time", "5m"]);
        Program::start(command)
    }

    /// Starts an evaluator and waits until it is ready.
    pub(crate) fn evaluator(&self, volume: &Path, private: &Path) -> anyhow::Result<Evaluator> {
        let mut command = program("portcullis-evaluator")?;
        command.arg("--volume").arg(volume).arg("--private-dir").arg(private).arg("--tls-dir").arg(self.path("tls"));
        command.args(["--address", "127.0.0.1:0", "--probe-address", "127.0.0.1:0", "--state-address", "127.0.0.1:0"]);
        command.args(["--policy-paths", "on"]).arg("--broker-socket").arg(self.path("broker/broker.sock"));
        let start = Instant::now();
        let program = Program::start(command)?;
        let admission = program.address("admission")?;
        let probes = program.address("probes")?;
        while start.elapsed() < Duration::from_secs(120) {
            if is_ready(&probes, "/readyz") {
                return Ok(Evaluator { program, admission, until_ready: start.elapsed() });
            }
            thread::sleep(Duration::from_millis(1));
        }
        bail!("the evaluator was not ready within two minutes")
    }

    fn make_certificate(&self) -> anyhow::Result<()> {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        std::fs::write(self.path("tls/tls.crt"), made.cert.pem())?;
        std::fs::write(self.path("tls/tls.key"), made.signing_key.serialize_pem())?;
        Ok(())
    }
}

/// The manifest of a volume, if there is a complete one.
pub(crate) fn manifest(volume: &Path) -> Option<Manifest> {
    let bytes = files::read_regular(&volume.join(MANIFEST_FILE), MANIFEST_MAX_BYTES).ok()?;
    Manifest::decode(&bytes).ok()
}

/// Whether a server answers a GET of this path with 200.
pub(crate) fn is_ready(address: &str, path: &str) -> bool {
    use std::io::{Read as _, Write as _};
    let Ok(mut stream) = std::net::TcpStream::connect(address) else { return false };
    let mut answer = [0; 12];
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).is_ok() && stream.read_exact(&mut answer).is_ok() && answer.ends_with(b"200")
}

/// A ready evaluator.
pub(crate) struct Evaluator {
    program: Program,
    admission: String,
    /// The time from its start to ready.
    pub(crate) until_ready: Duration,
}

impl Evaluator {
    /// The target for one of its policies.
    pub(crate) fn target(&self, policy: &str) -> Target {
        self.at(format!("/validate/{policy}"))
    }

    /// The target for a path.
    pub(crate) fn at(&self, path: String) -> Target {
        Target { authority: self.admission.clone(), path }
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.program.child.id()
    }

    /// Lets it end by itself, as a kubelet does, and waits until it has.
    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        let pid = Pid::from_child(&self.program.child);
        kill_process(pid, Signal::TERM).context("failed to send a signal")?;
        let start = Instant::now();
        while self.program.child.try_wait()?.is_none() {
            anyhow::ensure!(start.elapsed() < Duration::from_secs(60), "the evaluator did not end within a minute");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The processor time used so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        Ok(Usage::of(self.pid())?.cpu)
    }

    /// The memory that it has now.
    pub(crate) fn memory(&self) -> anyhow::Result<Memory> {
        Memory::of(self.pid())
    }
}

/// A running program; ended when dropped.
pub(crate) struct Program {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Program {
    fn start(mut command: Command) -> anyhow::Result<Self> {
        command.args(["--log-format", "json"]).stderr(Stdio::piped()).stdin(Stdio::null());
        let mut child = command.spawn().with_context(|| format!("failed to start {:?}", command.get_program()))?;
        let (sender, lines) = mpsc::channel();
        if let Some(stderr) = child.stderr.take() {
            thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    // If the receiver is gone, the rest is still read, so that the program never blocks.
                    let _ = sender.send(line);
                }
            });
        }
        Ok(Self { child, lines })
    }

    /// The address of a port, from the program's own log.
    fn address(&self, port: &str) -> anyhow::Result<String> {
        let mut seen = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(20)) {
            let event: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
            if event["message"] == "listening" && event["port"] == port {
                return Ok(event["address"].as_str().unwrap_or_default().to_owned());
            }
            seen.push(line);
        }
        bail!("no {port} port was opened:\n{}", seen.join("\n"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail only when the program has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program(name: &str) -> anyhow::Result<Command> {
    let folder = std::env::current_exe()?.parent().map(Path::to_owned).unwrap_or_default();
    let path = folder.join(name);
    anyhow::ensure!(path.exists(), "{} is not there; `cargo xtask bench` builds it", path.display());
    Ok(Command::new(path))
}

/// The folder of the examples.
pub(crate) fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}
