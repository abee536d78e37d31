//! A volume, an evaluator that follows it, and policies in WebAssembly text.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use portcullis_contract::{
    Artifact, Candidate, CandidateContent, CandidateModule, Digest, EvaluatorState, ExecutionMode, Failure,
    FailurePolicy, MANIFEST_FILE, Manifest, Mode, PolicyEntry, PolicyId, Reason,
};
use portcullis_engine::{Compiler, RunLimits, RunningEngine};
use portcullis_evaluator::{
    EvaluationError, Follow, LaneLimits, Lanes, Loaded, MemoryPlan, Metrics, ServedPolicy, Serving, SharedTable, Table,
    Verdict, numbered,
};
use portcullis_process::{Latch, Liveness, Shutdown, StateFeed, files};
use portcullis_util::lock;
use serde_json::value::RawValue;
use tempfile::TempDir;

/// A time that nothing here should take, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(120);
/// The time limit of policies, so long that no call is late on a machine that stalls for seconds.
pub const LIMIT: Duration = Duration::from_secs(60);
/// How many guests run at the same time.
const INSTANCES: u32 = 16;
/// The limits of the lanes: those of a machine with two cores.
const LANES: LaneLimits = LaneLimits { instances: 16, threads: 2, running: 8 };
/// The time limit of policies that are expected to be late.
const SHORT: Duration = Duration::from_secs(2);

/// An evaluator without its ports.
pub struct Rig {
    pub volume: Arc<TempDir>,
    pub private: Arc<TempDir>,
    pub metrics: Metrics,
    pub ready: Latch,
    table: SharedTable,
    state: StateFeed<EvaluatorState>,
    shutdown: Shutdown,
    drain: Shutdown,
    number: Mutex<u64>,
    policies: Mutex<Vec<PolicyEntry>>,
}

impl Rig {
    /// An evaluator on an empty volume.
    pub fn start() -> Self {
        let (volume, private) = folders();
        Self::on(volume, private)
    }

    /// An evaluator on an empty volume whose policies have little time.
    pub fn hurried() -> Self {
        let (volume, private) = folders();
        Self::limited(volume, private, SHORT, INSTANCES, LANES, MemoryPlan::unlimited())
    }

    /// An evaluator on an empty volume, all of whose long evaluations take turns on one thread.
    pub fn narrow() -> Self {
        let (volume, private) = folders();
        Self::limited(volume, private, LIMIT, INSTANCES, LaneLimits { threads: 1, ..LANES }, MemoryPlan::unlimited())
    }

    /// The same, which loads more policies at the same time than have enough processor time there.
    pub fn crowded() -> Self {
        let (volume, private) = folders();
        let lanes = LaneLimits { instances: 64, threads: 1, ..LANES };
        Self::limited(volume, private, LIMIT, INSTANCES, lanes, MemoryPlan::unlimited())
    }

    /// An evaluator on an empty volume that calls one guest at a time, and so reserves little address space.
    pub fn small() -> Self {
        let (volume, private) = folders();
        Self::limited(volume, private, LIMIT, 1, LANES, MemoryPlan::unlimited())
    }

    /// An evaluator on an empty volume that calls one guest at a time, which may use `memory` bytes.
    pub fn poor(memory: u64) -> Self {
        let (volume, private) = folders();
        Self::limited(volume, private, LIMIT, 1, LANES, MemoryPlan { floor: memory, shared: 0, bodies: 1 << 30 })
    }

    /// An evaluator on an existing volume and folder of private copies.
    pub fn on(volume: Arc<TempDir>, private: Arc<TempDir>) -> Self {
        Self::limited(volume, private, LIMIT, INSTANCES, LANES, MemoryPlan::unlimited())
    }

    fn limited(
        volume: Arc<TempDir>,
        private: Arc<TempDir>,
        policy_timeout: Duration,
        instances: u32,
        lanes: LaneLimits,
        memory: MemoryPlan,
    ) -> Self {
        fs::create_dir_all(volume.path().join("artifacts")).unwrap();
        let metrics = Metrics::new().unwrap();
        let limits = RunLimits { instances, ..RunLimits::default() };
        let rig = Self {
            ready: Latch::default(),
            table: Arc::new(ArcSwap::from_pointee(Table::default())),
            state: StateFeed::new(EvaluatorState::default(), numbered),
            shutdown: Shutdown::default(),
            drain: Shutdown::default(),
            number: Mutex::default(),
            policies: Mutex::default(),
            volume,
            private,
            metrics: metrics.clone(),
        };
        let follow = Follow {
            broker: None,
            namespaced_capabilities: Arc::default(),
            volume: rig.volume.path().to_owned(),
            private_dir: rig.private.path().to_owned(),
            private_size: None,
            poll_interval: Duration::from_secs(5),
            start_gate: Duration::from_secs(60),
            policy_timeout,
            error_window: Duration::from_secs(300),
            path_keys: None,
            drain: rig.drain.clone(),
            engine: RunningEngine::new(limits).unwrap(),
            lanes: Lanes::new(lanes, memory, &metrics).unwrap(),
            metrics,
        };
        let beat = Liveness::default().beat("follow", Duration::from_secs(10));
        let (table, state) = (Arc::clone(&rig.table), rig.state.clone());
        tokio::spawn(follow.run(table, state, rig.ready.clone(), beat, rig.shutdown.clone()));
        rig
    }

    /// Ends the evaluator and leaves its folders.
    pub fn stop(self) -> (Arc<TempDir>, Arc<TempDir>) {
        self.shutdown.begin();
        (Arc::clone(&self.volume), Arc::clone(&self.private))
    }

    /// Asks the evaluator to end; it goes on answering.
    pub fn drain(&self) {
        self.drain.begin();
    }

    /// Puts a policy into the manifest, in place of the one of the same id, and waits until it is applied.
    pub async fn apply(&self, policy: Policy) {
        self.put(policy);
        self.publish().await;
    }

    /// Puts a policy into the manifest without publishing it.
    pub fn put(&self, policy: Policy) {
        let mut policies = lock(&self.policies);
        policies.retain(|entry| entry.id != policy.entry.id);
        let artifacts = self.volume.path().join("artifacts");
        for (file, bytes) in &policy.artifacts {
            fs::write(artifacts.join(file), &**bytes).unwrap();
        }
        policies.push(policy.entry);
    }

    /// Removes a policy from the manifest without publishing it.
    pub fn take_out(&self, id: &str) {
        lock(&self.policies).retain(|entry| entry.id.as_str() != id);
    }

    /// Publishes the manifest and waits until it is applied completely.
    pub async fn publish(&self) {
        let number = self.publish_and_go_on();
        self.until(|state| state.manifest_number == number).await;
    }

    /// Publishes the manifest; gives its number.
    pub fn publish_and_go_on(&self) -> u64 {
        let policies = lock(&self.policies).clone();
        let mut number = lock(&self.number);
        *number += 1;
        let manifest = Manifest { number: *number, policies, groups: Vec::new() };
        files::publish(&self.manifest_path(), &manifest.encode().unwrap()).unwrap();
        *number
    }

    pub fn manifest_path(&self) -> PathBuf {
        self.volume.path().join(MANIFEST_FILE)
    }

    /// Waits for a state for which `is_so` is true, and gives it.
    pub async fn until(&self, is_so: impl Fn(&EvaluatorState) -> bool) -> Arc<EvaluatorState> {
        let end = Instant::now() + PATIENCE;
        let mut state = self.state.latest();
        while !is_so(&state) {
            assert!(Instant::now() < end, "waited in vain; the state is {state:#?}");
            state = self.state.after(state.version, Duration::from_millis(200)).await;
        }
        state
    }

    pub fn served(&self, id: &str) -> Arc<ServedPolicy> {
        Arc::clone(self.table.load().policies.get(id).unwrap_or_else(|| panic!("{id} is not in the table")))
    }

    pub fn is_known(&self, id: &str) -> bool {
        self.table.load().policies.contains_key(id)
    }

    pub fn loaded(&self, id: &str) -> Arc<Loaded> {
        match &self.served(id).serving {
            Serving::Ready(loaded) => Arc::clone(loaded),
            Serving::Unserved(failure) => panic!("{id} does not serve: {failure}"),
        }
    }

    /// Why a policy does not serve.
    pub fn unserved(&self, id: &str) -> Failure {
        match &self.served(id).serving {
            Serving::Ready(_) => panic!("{id} serves"),
            Serving::Unserved(failure) => failure.clone(),
        }
    }

    /// Applies a policy that is expected to be refused; gives the reason and the message.
    pub async fn refusal(&self, policy: Policy) -> (Reason, String) {
        let id = policy.entry.id.to_string();
        self.apply(policy).await;
        let failure = self.unserved(&id);
        (failure.reason, failure.message)
    }

    /// Applies a policy whose module takes too long at its start; gives the reason and the message. On a machine that is busy with other
    /// programs, it is tried again until it has had enough processor time to be judged.
    pub async fn late_refusal(&self, policy: Policy) -> (Reason, String) {
        let id = policy.entry.id.to_string();
        self.apply(policy).await;
        self.until(|_| self.unserved(&id).reason != Reason::ProcessorUnavailable).await;
        let failure = self.unserved(&id);
        (failure.reason, failure.message)
    }

    /// Asks a policy through its share, as a request does.
    pub async fn ask(&self, id: &str, request: &str) -> Result<Verdict, EvaluationError> {
        self.ask_within(id, request, LIMIT).await
    }

    pub async fn ask_within(&self, id: &str, request: &str, time: Duration) -> Result<Verdict, EvaluationError> {
        let policy = self.served(id);
        let loaded = self.loaded(id);
        let deadline = Instant::now() + time.min(loaded.timeout());
        let request = Bytes::copy_from_slice(request.as_bytes());
        let evaluation = async move { loaded.module().expect("no group").validate(request, deadline).await };
        policy.share.run(deadline, evaluation).await.map_err(EvaluationError::from)?
    }

    /// The text of a denial.
    pub async fn denial(&self, id: &str) -> String {
        let verdict = self.ask(id, "{}").await.unwrap();
        assert!(!verdict.accepted);
        verdict.message.unwrap()
    }

    /// The reason and the text of an evaluation that is expected to fail.
    pub async fn failure(&self, id: &str) -> (Reason, String) {
        let error = self.ask(id, "{}").await.expect_err("an error");
        (error.reason, error.text)
    }
}

/// An empty volume and an empty folder of private copies.
fn folders() -> (Arc<TempDir>, Arc<TempDir>) {
    (Arc::new(tempfile::tempdir().unwrap()), Arc::new(tempfile::tempdir().unwrap()))
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.shutdown.begin();
    }
}

/// A policy for the manifest, as a builder.
#[derive(Clone)]
pub struct Policy {
    pub entry: PolicyEntry,
    artifacts: HashMap<String, Arc<Vec<u8>>>,
}

impl Policy {
    /// Generation 1 of a policy without candidates.
    pub fn new(id: &str) -> Self {
        let entry = PolicyEntry {
            id: id.parse::<PolicyId>().unwrap(),
            uid: format!("uid of {id}"),
            generation: 1,
            mode: Mode::Protect,
            failure_policy: FailurePolicy::Fail,
            suspend: false,
            enforced: true,
            candidates: Vec::new(),
            failures: Vec::new(),
            last_good: None,
            source: None,
        };
        Self { entry, artifacts: HashMap::new() }
    }

    /// A policy with this guest of `guests/wat`; files named `wasi_…` are WASI commands.
    pub fn guest(id: &str, name: &str) -> Self {
        Self::new(id).candidate(name, 1)
    }

    /// A policy with this module.
    pub fn text(id: &str, wat: &str) -> Self {
        Self::module(id, &wat::parse_str(wat).unwrap(), ExecutionMode::KubewardenWapc)
    }

    /// A policy with this compiled module.
    pub fn module(id: &str, wasm: &[u8], mode: ExecutionMode) -> Self {
        let mut policy = Self::new(id);
        policy.add(wasm, mode, 1);
        policy
    }

    pub fn renamed(mut self, id: &str) -> Self {
        self.entry.id = id.parse().unwrap();
        self.entry.uid = format!("uid of {id}");
        self
    }

    /// Changes the bytes of the last artifact, and so its digest, but not its code: it is an ELF file, and bytes after its end are ignored.
    pub fn with_padding(mut self, n: u32) -> Self {
        let file = self.last().artifact.file.clone();
        let mut bytes = self.artifacts.remove(&file).unwrap().to_vec();
        bytes.extend(n.to_le_bytes());
        let file = format!("{n}-{file}");
        self.last().artifact =
            Artifact { file: file.clone(), sha256: Digest::of(&bytes), size: u64::try_from(bytes.len()).unwrap() };
        self.artifacts.insert(file, Arc::new(bytes));
        self
    }

    pub fn generation(mut self, generation: i64) -> Self {
        self.entry.generation = generation;
        self
    }

    /// Adds a candidate after the existing ones.
    pub fn candidate(mut self, guest: &str, generation: i64) -> Self {
        let mode = if guest.starts_with("wasi_") { ExecutionMode::Wasi } else { ExecutionMode::KubewardenWapc };
        self.add(&wat::parse_str(text(guest)).unwrap(), mode, generation);
        self.entry.generation = self.entry.generation.max(generation);
        self
    }

    /// Sets the settings of the last candidate.
    pub fn settings(mut self, settings: &str) -> Self {
        self.last().settings = RawValue::from_string(settings.to_owned()).unwrap();
        self
    }

    pub fn grants(mut self, patterns: &[&str]) -> Self {
        self.last().host_capabilities = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        self
    }

    /// The last candidate.
    pub fn last_candidate(&mut self) -> &mut Candidate {
        self.entry.candidates.last_mut().unwrap()
    }

    /// The module of the last candidate.
    pub fn last(&mut self) -> &mut CandidateModule {
        match &mut self.last_candidate().content {
            CandidateContent::Module(module) => module,
            CandidateContent::Group(_) => panic!("it is a group"),
        }
    }

    /// Replaces the bytes of the last artifact, so that they are not those that the manifest promises.
    pub fn with_artifact_bytes(mut self, bytes: &[u8]) -> Self {
        let file = self.last().artifact.file.clone();
        self.artifacts.insert(file, Arc::new(bytes.to_vec()));
        self
    }

    fn add(&mut self, wasm: &[u8], execution_mode: ExecutionMode, generation: i64) {
        let (digest, bytes) = compile(wasm);
        let file = format!("{}.cwasm", digest.hex());
        let artifact =
            Artifact { file: file.clone(), sha256: Digest::of(&bytes), size: u64::try_from(bytes.len()).unwrap() };
        self.artifacts.insert(file, bytes);
        self.entry.candidates.push(Candidate {
            generation,
            digest,
            mutating: false,
            message: None,
            timeout_eval_seconds: None,
            content: CandidateContent::Module(CandidateModule {
                artifact,
                execution_mode,
                settings: RawValue::from_string("{}".to_owned()).unwrap(),
                host_capabilities: Vec::new(),
                context_aware_resources: Vec::new(),
            }),
        });
    }
}

/// A file below the repository's root.
pub fn file(path: &str) -> Vec<u8> {
    fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

/// The request of a review in `examples/requests`.
pub fn request(name: &str) -> String {
    let review: serde_json::Value = serde_json::from_slice(&file(&format!("examples/requests/{name}.json"))).unwrap();
    review["request"].to_string()
}

/// The text of a guest of `guests/wat`.
pub fn text(guest: &str) -> String {
    String::from_utf8(file(&format!("guests/wat/{guest}.wat"))).unwrap()
}

/// A guest that denies with a text.
pub fn deny_text(message: &str) -> String {
    text("deny_text").replace("{{MESSAGE}}", message).replace("{{LEN}}", &message.len().to_string())
}

/// The artifact of a module, compiled once however many tests want it.
fn compile(wasm: &[u8]) -> (Digest, Arc<Vec<u8>>) {
    static COMPILER: LazyLock<Compiler> = LazyLock::new(|| Compiler::new().unwrap());
    static DONE: LazyLock<Mutex<HashMap<Digest, Arc<Vec<u8>>>>> = LazyLock::new(Mutex::default);
    let digest = Digest::of(wasm);
    let mut done = lock(&DONE);
    let bytes = done.entry(digest).or_insert_with(|| Arc::new(COMPILER.compile(wasm).unwrap()));
    (digest, Arc::clone(bytes))
}
