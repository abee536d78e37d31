//! A pod of the product: an object in the API, with processes of this machine as its containers.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use portcullis_testkit::FAIL_POINT;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::http;
use super::intervals::Intervals;
use super::mount::Mount;
use crate::api::Api;
use crate::program::{Process, Program};
use crate::wait::{LIMIT, eventually};
use crate::{lock, stand_in};

/// The exit status of a program that cannot use its settings.
const BAD_SETTING: i32 = 64;

/// The ports on the loopback of a pod.
pub(super) const EVALUATOR_STATE: u16 = 9081;
pub(super) const LOADER_STATE: u16 = 9082;

/// The file with the token of a pod, in the pod's folder.
pub(super) const TOKEN: &str = "account/token";

/// How long containers may take to end before they are killed.
const GRACE: Duration = Duration::from_secs(30);

/// A pod whose kubelet is a thread of the test, with which it is shared.
pub struct Pod {
    pub(super) api: Api,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) address: Ipv4Addr,
    pub(super) folder: PathBuf,
    pub(super) containers: Vec<Container>,
    /// The token of its programs.
    pub(super) token: Mutex<Mount>,
    /// Secrets of the same namespace that are mounted, by their names.
    pub(super) mounts: Vec<(String, Mutex<Mount>)>,
    pub(super) intervals: Intervals,
    pub(super) is_ready: AtomicBool,
    /// Whether the kubelet is gone, so that nothing is restarted or reported to the API server.
    pub(super) is_alone: AtomicBool,
    /// Whether the kubelet's thread has ended.
    pub(super) has_ended: AtomicBool,
    pub(super) thread: Mutex<Option<JoinHandle<()>>>,
}

/// A container.
pub(super) struct Container {
    pub(super) program: Program,
    pub(super) process: Process,
    pub(super) probes: SocketAddr,
    pub(super) restarts: AtomicU32,
    /// Whether it stays down when it ends.
    pub(super) stays_down: AtomicBool,
    /// How it has failed without being killed.
    failures: Mutex<Vec<String>>,
}

impl Container {
    pub(super) fn new(program: Program, process: Process, probes: SocketAddr) -> Self {
        let (restarts, stays_down) = (AtomicU32::new(0), AtomicBool::new(false));
        Self { program, process, probes, restarts, stays_down, failures: Mutex::default() }
    }

    /// Notes that it has ended, unless it was killed, asked to end, ended by a fail point, or stopped by the test.
    pub(super) fn note_end(&self) {
        let Some(status) = self.process.ended() else { return };
        let is_killed = status.signal() == Some(Signal::KILL.as_raw()) || status.code() == Some(FAIL_POINT);
        if !status.success() && !is_killed && !self.stays_down.load(Ordering::SeqCst) {
            lock(&self.failures).push(format!("{}: {status}\n{}", self.program, self.process.last_words(10)));
        }
    }
}

/// A port on the loopback of the pod with this address. Each pod has its own loopback address, as all share the device.
pub(super) fn loopback(address: Ipv4Addr, port: u16) -> SocketAddr {
    let [_, a, b, c] = address.octets();
    SocketAddr::from(([127, a, b, c], port))
}

impl Pod {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The uid of its object.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Its address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The pod's own folder, with `volume`, `private`, `tls`, `paths`, `siblings`, `account` and kubeconfigs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether it has this program.
    pub fn has(&self, program: Program) -> bool {
        self.containers.iter().any(|container| container.program == program)
    }

    fn container(&self, program: Program) -> &Container {
        let found = self.containers.iter().find(|container| container.program == program);
        found.unwrap_or_else(|| panic!("pod {} has no {program}", self.name))
    }

    /// One of its programs, for its logs and its process id.
    ///
    /// # Panics
    /// When it does not have that program.
    pub fn program(&self, program: Program) -> &Process {
        &self.container(program).process
    }

    /// The address of a program's probe port.
    ///
    /// # Panics
    /// When it does not have that program.
    pub fn probes(&self, program: Program) -> SocketAddr {
        self.container(program).probes
    }

    /// `GET path` on a program's probe port: status and body, unless it does not answer.
    pub fn probe(&self, program: Program, path: &str) -> Option<(u16, String)> {
        http::get(self.container(program).probes, path, http::TEST_LIMIT).ok()
    }

    /// `GET path` on the evaluator's or the loader's port of the pod's loopback: status and body, unless it does not answer.
    ///
    /// # Panics
    /// When the program has no such port.
    pub fn loopback(&self, program: Program, path: &str) -> Option<(u16, String)> {
        let port = match program {
            Program::Evaluator => EVALUATOR_STATE,
            Program::Loader => LOADER_STATE,
            Program::Reporter | Program::Controller | Program::Cli => panic!("{program} has no port on the loopback"),
        };
        http::get(loopback(self.address, port), path, http::TEST_LIMIT).ok()
    }

    /// How often a program was started again.
    pub fn restarts(&self, program: Program) -> u32 {
        self.container(program).restarts.load(Ordering::SeqCst)
    }

    /// The process of a program, and how often it was started again: both stay as long as it runs.
    pub fn process(&self, program: Program) -> (Option<u32>, u32) {
        (self.program(program).pid(), self.restarts(program))
    }

    /// Whether all its programs were ready at the last probe.
    pub fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::SeqCst)
    }

    /// Waits until it is ready.
    ///
    /// # Panics
    /// When it is not ready in time, or a program refuses its settings; shows the answers of the probes.
    pub fn wait_ready(&self) {
        let start = Instant::now();
        while !self.is_ready() {
            for container in &self.containers {
                let refused = container.process.ended().and_then(|status| status.code()) == Some(BAD_SETTING);
                assert!(!refused, "{} refuses its settings:\n{}", container.program, container.process.last_words(10));
            }
            assert!(
                start.elapsed() < LIMIT,
                "waited in vain for pod {} to be ready:\n{}",
                self.name,
                self.probes_say()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn probes_say(&self) -> String {
        let said = |container: &Container| match http::get(container.probes, "/readyz?verbose", http::PROBE_LIMIT) {
            Ok((code, text)) => format!("{}: {code} {text}\n", container.program),
            Err(error) => format!("{}: {error}\n", container.program),
        };
        self.containers.iter().map(said).collect()
    }

    /// Kills a program. It is started again, as by a kubelet.
    pub fn kill(&self, program: Program) {
        self.container(program).process.kill();
        // Done before the kubelet sees it, so that a test that waits for the pod to be ready waits for the next start.
        self.is_ready.store(false, Ordering::SeqCst);
    }

    /// Kills a program, which stays down until [`Pod::start`].
    pub fn stop(&self, program: Program) {
        self.container(program).stays_down.store(true, Ordering::SeqCst);
        self.kill(program);
    }

    /// Lets a stopped program be started again.
    pub fn start(&self, program: Program) {
        self.container(program).stays_down.store(false, Ordering::SeqCst);
    }

    /// Starts a stopped program once: when it ends, it stays down again.
    ///
    /// # Panics
    /// When it was not stopped.
    pub fn start_once(&self, program: Program) {
        let container = self.container(program);
        assert!(container.stays_down.load(Ordering::SeqCst), "{program} of pod {} was not stopped", self.name);
        container.process.start_again();
    }

    /// Pauses a program (`SIGSTOP`). Soon afterwards the pod is not ready any longer.
    pub fn pause(&self, program: Program) {
        self.container(program).process.signal(Signal::STOP);
    }

    /// Lets a paused program go on.
    pub fn resume(&self, program: Program) {
        self.container(program).process.signal(Signal::CONT);
    }

    /// The token of its programs.
    ///
    /// # Panics
    /// When the file cannot be read.
    pub fn token(&self) -> String {
        fs::read_to_string(self.folder.join(TOKEN)).expect("the pod has a token")
    }

    /// Replaces the token of its programs as a kubelet does: the link to the folder with the file is swapped.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn put_token(&self, token: &str) {
        lock(&self.token).put(token_file(token)).expect("the folder can be written");
    }

    /// Its path in the API.
    pub(super) fn path(&self) -> String {
        stand_in::pod_path(&self.namespace, &self.name)
    }

    /// Deletes the pod as `kubectl delete` does: the object is terminating, the programs are asked to end and have 30 s for
    /// it, then the object is removed. Returns when all this is done.
    ///
    /// # Panics
    /// When the API server does not answer.
    pub fn remove(&self) {
        let deleted = self.api.delete(&self.path(), Some(30)).expect("an API server answers");
        assert!(deleted.is_ok() || deleted.code == 404, "deleting pod {}: {}", self.name, deleted.body);
        // The kubelet sees it and does the rest.
        eventually(&format!("the end of pod {}", self.name), || self.has_ended.load(Ordering::SeqCst).then_some(()));
    }

    /// Simulates the loss of its node: the programs are killed, and the API server is not informed. Afterwards, [`Pod::mark_not_ready`]
    /// does what the controllers of a cluster do, and [`Pod::delete_object`] what an administrator does.
    pub fn lose_node(&self) {
        self.let_go();
        self.kill_all();
    }

    /// Writes into the object that the pod is not ready.
    ///
    /// # Panics
    /// When the API server refuses it.
    pub fn mark_not_ready(&self) {
        self.set_ready(false).expect("an API server answers");
    }

    /// Deletes the object at once, as with `--force`.
    ///
    /// # Panics
    /// When the API server does not answer.
    pub fn delete_object(&self) {
        self.api.delete(&self.path(), Some(0)).expect("an API server answers");
    }

    /// Writes to the API server whether it is ready.
    pub(super) fn set_ready(&self, is_ready: bool) -> Result<(), String> {
        let patch = json!({ "status": stand_in::status(Some(self.address), is_ready) });
        let reply = self.api.patch(&format!("{}/status", self.path()), &patch)?;
        if reply.is_ok() || reply.code == 404 { Ok(()) } else { Err(reply.body.to_string()) }
    }

    /// Ends the kubelet's thread and waits for its end.
    pub(super) fn let_go(&self) {
        self.is_alone.store(true, Ordering::SeqCst);
        if let Some(thread) = lock(&self.thread).take()
            && thread.thread().id() != thread::current().id()
        {
            // A kubelet that failed has written the cause to standard error.
            let _ = thread.join();
        }
    }

    /// Which of its programs have failed although nobody killed them, and how.
    pub(super) fn failures(&self) -> Vec<String> {
        let failures = self.containers.iter().flat_map(|container| lock(&container.failures).clone());
        failures.map(|failure| format!("pod {}: {failure}", self.name)).collect()
    }

    /// Asks all programs to end, and kills those that still run after the grace period.
    pub(super) fn terminate(&self) {
        thread::scope(|scope| {
            for container in &self.containers {
                scope.spawn(|| container.process.terminate(GRACE));
            }
        });
    }

    /// Whether its kubelet has ended or is gone.
    pub(super) fn is_over(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst) || self.is_alone.load(Ordering::SeqCst)
    }

    /// Kills all its programs.
    pub(super) fn kill_all(&self) {
        for container in &self.containers {
            container.process.kill();
        }
    }

    /// The last lines that its programs wrote.
    pub(super) fn last_words(&self) -> String {
        self.containers.iter().map(|container| container.process.last_words(150)).collect()
    }
}

/// The files of the folder with a pod's token.
pub(super) fn token_file(token: &str) -> BTreeMap<String, Vec<u8>> {
    BTreeMap::from([("token".to_owned(), token.into())])
}

/// The files in the `data` of a Secret.
pub(super) fn secret_files(secret: &Value) -> BTreeMap<String, Vec<u8>> {
    use base64::Engine as _;
    let data = secret["data"].as_object().into_iter().flatten();
    let decode = |text: &Value| base64::engine::general_purpose::STANDARD.decode(text.as_str()?).ok();
    data.filter_map(|(name, text)| Some((name.clone(), decode(text)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_decoded() {
        let files = secret_files(&json!({ "data": { "tls.crt": "b25l", "bad": 1 } }));
        assert_eq!(files, BTreeMap::from([("tls.crt".to_owned(), b"one".to_vec())]));
        assert!(secret_files(&json!({})).is_empty());
    }
}
