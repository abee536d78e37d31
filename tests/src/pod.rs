//! The three programs on one folder, as in a pod.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use portcullis_contract::{EvaluatorState, LoaderState, Reason};
use serde_json::Value;

use crate::address::Addresses;
use crate::{Answer, Canary, Client, Process, Program, Review, Volume, canary, eventually};

/// A running pod. Its processes end with it. If it has a canary and the test has not failed, the invariants of the fault catalogue are asserted
/// at its end.
pub struct Pod {
    pub(crate) canary: Option<Canary>,
    pub(crate) loader: Option<Arc<Process>>,
    pub(crate) evaluator: Option<Arc<Process>>,
    pub(crate) reporter: Option<Arc<Process>>,
    pub(crate) root: PathBuf,
    pub(crate) volume: PathBuf,
    pub(crate) plain_http: bool,
    pub(crate) addresses: Addresses,
    pub(crate) client: Client,
}

/// The answer of `/healthz/policies/<id>`.
#[derive(Debug, Clone)]
pub struct Health {
    /// The status: 200, 503 or 500.
    pub code: u16,
    /// The seconds of `Retry-After`, if there is one.
    pub retry_after: Option<u64>,
    /// The body, which names policy, generation, stage and reason.
    pub body: String,
}

impl Pod {
    /// The canary, which is called until the pod ends.
    ///
    /// # Panics
    /// When the pod has none.
    pub fn canary(&self) -> &Canary {
        self.canary.as_ref().expect("the pod has a canary")
    }

    /// The loader.
    ///
    /// # Panics
    /// When the pod has none.
    pub fn loader(&self) -> &Process {
        self.loader.as_deref().expect("the pod has a loader")
    }

    /// The evaluator.
    ///
    /// # Panics
    /// When the pod has none.
    pub fn evaluator(&self) -> &Process {
        self.evaluator.as_deref().expect("the pod has an evaluator")
    }

    /// The reporter.
    ///
    /// # Panics
    /// When the pod has none.
    pub fn reporter(&self) -> &Process {
        self.reporter.as_deref().expect("the pod has a reporter")
    }

    /// Whether the pod has a reporter, and so a status.
    pub fn has_reporter(&self) -> bool {
        self.reporter.is_some()
    }

    /// The programs that the pod has.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        [&self.evaluator, &self.loader, &self.reporter].into_iter().flatten().map(Arc::as_ref)
    }

    /// Waits until every program of the pod is ready.
    ///
    /// # Panics
    /// When one is not in time.
    pub fn wait_ready(&self) {
        for program in [Program::Evaluator, Program::Loader, Program::Reporter] {
            if self.process(program).is_some() {
                eventually(&format!("{program} to be ready"), || {
                    self.probe(program, "/readyz?verbose").ok().filter(|answer| answer.status == 200)
                });
            }
        }
    }

    /// Waits until the admission port answers: an evaluator that was started again opens the port before it has read its certificate,
    /// which may even be after it serves policies.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub fn wait_admission(&self) {
        eventually("the admission port to answer", || self.new_client().get("/").ok());
    }

    /// Calls the canary again, as soon as the evaluator serves it: for rows that restart the evaluator, which may be ready before it has
    /// loaded all policies.
    ///
    /// # Panics
    /// When the pod has no canary, or it is not served in time.
    pub fn resume_canary(&self) {
        self.wait_current(&canary::id(), 1);
        self.wait_admission();
        self.canary().resume();
    }

    /// Waits until the loader provides host capabilities.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub fn wait_broker(&self) {
        eventually("the broker to be connected", || (self.metric("portcullis_broker_connected") > 0.5).then_some(()));
    }

    fn process(&self, program: Program) -> Option<&Process> {
        match program {
            Program::Evaluator => self.evaluator.as_deref(),
            Program::Loader => self.loader.as_deref(),
            Program::Reporter | Program::Cli => self.reporter.as_deref(),
        }
    }

    /// I2: asserts that no program has ended.
    ///
    /// # Panics
    /// When one has ended.
    pub fn assert_alive(&self) {
        for process in self.processes() {
            assert!(process.is_alive(), "{} has ended: {:?}", process.name(), process.ended());
        }
    }

    /// The address of the admission port.
    pub fn admission(&self) -> SocketAddr {
        self.addresses.admission()
    }

    /// Kills loader and evaluator, and starts them again with empty volumes, like a fresh pod.
    ///
    /// # Panics
    /// When the folders cannot be emptied.
    pub fn start_fresh(&self) {
        self.evaluator().kill();
        self.loader().kill();
        for name in ["volume", "private"] {
            fs::remove_dir_all(self.path(name)).expect("it is there");
            fs::create_dir_all(self.path(name)).expect("a folder");
        }
        self.loader().start_again();
        self.evaluator().start_again();
    }

    /// A client of the admission port.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// A new client of the admission port, with its own connections.
    pub fn new_client(&self) -> Client {
        if self.plain_http { Client::plain(self.admission()) } else { Client::tls(self.admission()) }
    }

    /// Sends a review to a policy at `/validate/<id>`.
    ///
    /// # Panics
    /// When the request fails in transport.
    pub fn ask(&self, id: &str, review: &Review) -> Answer {
        self.client.ask(id, review)
    }

    /// Sends a review to a match group at `/admit/<group>`.
    ///
    /// # Panics
    /// When the request fails in transport.
    pub fn admit(&self, group: &str, review: &Review) -> Answer {
        let answer = self.client.post(&format!("/admit/{group}"), review.bytes());
        answer.unwrap_or_else(|error| panic!("group {group} does not answer: {error}"))
    }

    /// The address of a program's probe port.
    pub fn probe_address(&self, program: Program) -> SocketAddr {
        self.addresses.probes(program)
    }

    /// The address of a program's state port: the evaluator's or the loader's.
    pub fn state_address(&self, program: Program) -> SocketAddr {
        self.addresses.state(program)
    }

    /// Sends `GET path` to a program's probe port.
    ///
    /// # Errors
    /// When the request fails in transport.
    pub fn probe(&self, program: Program, path: &str) -> Result<Answer, String> {
        Client::plain(self.addresses.probes(program)).get(path)
    }

    /// A policy's health at the evaluator.
    ///
    /// # Panics
    /// When the probe port does not answer.
    pub fn health(&self, id: &str) -> Health {
        let answer =
            self.probe(Program::Evaluator, &format!("/healthz/policies/{id}")).expect("the probe port answers");
        let retry_after = answer.headers.get("retry-after").and_then(|text| text.parse().ok());
        Health { code: answer.status, retry_after, body: answer.body }
    }

    /// The text of a program's `/metrics`.
    ///
    /// # Panics
    /// When the probe port does not answer.
    pub fn metrics(&self, program: Program) -> String {
        self.probe(program, "/metrics").expect("the probe port answers").body
    }

    /// The value of one series of the evaluator's metrics, given by its name and all its labels as in the text
    /// (`portcullis_swaps_total`); 0 if it does not exist.
    pub fn metric(&self, series: &str) -> f64 {
        let text = self.metrics(Program::Evaluator);
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.trim().parse().ok());
        value.unwrap_or(0.0)
    }

    /// How many evaluations of a policy failed for this reason.
    pub fn evaluation_errors(&self, id: &str, reason: Reason) -> f64 {
        self.metric(&format!("portcullis_policy_evaluation_errors_total{{policy=\"{id}\",reason=\"{reason}\"}}"))
    }

    /// The evaluator's `/v1/state`; `None` if it does not answer.
    pub fn evaluator_state(&self) -> Option<EvaluatorState> {
        self.state(Program::Evaluator)
    }

    /// The loader's `/v1/state`; `None` if it does not answer.
    pub fn loader_state(&self) -> Option<LoaderState> {
        self.state(Program::Loader)
    }

    fn state<T: serde::de::DeserializeOwned>(&self, program: Program) -> Option<T> {
        let answer = Client::plain(self.addresses.state(program)).get("/v1/state").ok()?;
        Some(serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{program}: {error} in {}", answer.body)))
    }

    /// A policy's file below the status folder, decoded; `None` while there is none.
    pub fn status(&self, id: &str) -> Option<Value> {
        let mut folders = vec![self.root.join("status")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).ok()?.flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if let Some(document) = status_of(&path, id) {
                    return Some(document);
                }
            }
        }
        None
    }

    /// The shared volume.
    pub fn volume(&self) -> Volume {
        Volume::at(&self.volume)
    }

    /// The folder of one of the pod's parts: `private`, `status`, `tls`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}

/// The document of a status file, if it is that of policy `id`.
fn status_of(path: &Path, id: &str) -> Option<Value> {
    let document: Value = portcullis_yaml::read(&fs::read_to_string(path).ok()?).ok()?;
    let metadata = &document["metadata"];
    let name = metadata["name"].as_str()?;
    let found = match metadata["namespace"].as_str() {
        Some(namespace) => format!("namespaced/{namespace}/{name}"),
        None => format!("cluster/{name}"),
    };
    (found == id || name == id).then_some(document)
}
