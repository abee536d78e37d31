//! The reporter as a process, beside a loader and an evaluator that a test plays.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use portcullis_api::{ConditionType, ObservedPolicy};
use portcullis_contract::{
    Current, Digest, EvaluatorState, FailurePolicy, LoaderPolicy, LoaderState, Mode, Phase, PolicyId,
};
use portcullis_process::{ProbeServer, StateFeed, state_route};
use tempfile::TempDir;

const UID: &str = "9b2c41d2-a1f0-5e17-8000-000000000001";

fn id() -> PolicyId {
    "cluster/a".parse().expect("an id")
}

fn loader(generation: i64) -> LoaderState {
    let policy = LoaderPolicy {
        id: id(),
        uid: UID.into(),
        generation,
        mode: Mode::Protect,
        failure_policy: FailurePolicy::Fail,
        suspend: false,
        enforced: true,
        module: "modules/a.wasm".into(),
        digest: None,
        members: BTreeMap::new(),
        phase: Phase::Published,
        activity: None,
        failure: None,
        last_good: None,
        mismatches: Vec::new(),
        context: Vec::new(),
        impact: None,
        created: Timestamp::UNIX_EPOCH,
    };
    LoaderState { complete: true, policies: vec![policy], ..LoaderState::default() }
}

fn evaluator(generation: i64) -> EvaluatorState {
    let current = Current {
        uid: UID.into(),
        generation,
        digest: Digest::of(b"a"),
        members: BTreeMap::new(),
        since: Timestamp::UNIX_EPOCH,
    };
    EvaluatorState { ready: true, current: [(id(), current)].into(), ..EvaluatorState::default() }
}

/// Serves a state that a test can change; gives its feed and its address.
fn served<T>(first: T, number: fn(&mut T, u64)) -> (StateFeed<T>, SocketAddr)
where
    T: PartialEq + serde::Serialize + Send + Sync + 'static,
{
    let feed = StateFeed::new(first, number);
    let mut server = ProbeServer::new();
    let address = server.port(([127, 0, 0, 1], 0).into(), state_route(feed.clone())).expect("binds");
    server.start().expect("starts");
    (feed, address)
}

fn number_loader(state: &mut LoaderState, version: u64) {
    state.version = version;
}

fn number_evaluator(state: &mut EvaluatorState, version: u64) {
    state.version = version;
}

struct Reporter {
    child: Running,
    folder: TempDir,
}

/// A process that ends with its test, however that ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Reporter {
    fn start(loader: SocketAddr, evaluator: SocketAddr) -> Self {
        Self::start_in(tempfile::tempdir().expect("a folder"), loader, evaluator)
    }

    fn start_in(folder: TempDir, loader: SocketAddr, evaluator: SocketAddr) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_portcullis-reporter"))
            .args(["--loader-state", &loader.to_string(), "--evaluator-state", &evaluator.to_string()])
            .args(["--probe-address", "127.0.0.1:0", "--pod-name", "pod", "--status-dir"])
            .arg(folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        Self { child: Running(child), folder }
    }

    fn status(&self) -> Option<ObservedPolicy> {
        let text = fs::read(ObservedPolicy::path(self.folder.path(), &id())).ok()?;
        Some(portcullis_yaml::read(&text).expect("a whole file"))
    }

    /// Waits for a status for which `look` gives a value, and gives that value.
    fn until<T>(&self, what: &str, look: impl Fn(Option<&ObservedPolicy>) -> Option<T>) -> T {
        let limit = Instant::now() + Duration::from_secs(120);
        loop {
            let status = self.status();
            if let Some(found) = look(status.as_ref()) {
                return found;
            }
            assert!(Instant::now() < limit, "waited for {what}; the status is {status:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn word(&self, word: &str) -> ObservedPolicy {
        self.until(word, |status| status.filter(|object| object.status.word() == word).cloned())
    }

    /// Ends the process with SIGTERM; gives its exit code, what it printed, and the folder.
    fn end(mut self) -> (Option<i32>, String, TempDir) {
        let id = rustix::process::Pid::from_child(&self.child.0);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("is there");
        let status = self.child.0.wait().expect("ends");
        let mut printed = String::new();
        self.child.0.stdout.take().expect("is piped").read_to_string(&mut printed).expect("text");
        (status.code(), printed, self.folder)
    }
}

#[test]
fn a_policy_comes_changes_and_goes() {
    let (loader_feed, loader_address) = served(loader(1), number_loader);
    let (evaluator_feed, evaluator_address) = served(EvaluatorState::default(), number_evaluator);
    let reporter = Reporter::start(loader_address, evaluator_address);
    reporter.word("Progressing");
    evaluator_feed.publish(evaluator(1), number_evaluator);
    let active = reporter.word("Active");
    assert_eq!((active.status.summary.as_str(), active.metadata.generation), ("1/1", Some(1)));
    loader_feed.publish(LoaderState { complete: true, ..LoaderState::default() }, number_loader);
    reporter.until("no file", |status| status.is_none().then_some(()));
    let (code, printed, _) = reporter.end();
    assert_eq!(code, Some(0));
    let told: Vec<&str> = printed.lines().map(|line| line.split_once(' ').map_or(line, |(_, rest)| rest)).collect();
    assert_eq!(
        told,
        [
            "policy cluster/a: Progressing generation 1: generation 1 is being loaded (the evaluator is loading it)",
            "policy cluster/a: Active generation 1 (was Progressing): generation 1 answers",
            "policy cluster/a: gone",
        ]
    );
}

#[test]
fn a_restart_keeps_the_times_of_the_last_transitions() {
    let (_loader, loader_address) = served(loader(1), number_loader);
    let (evaluator_feed, evaluator_address) = served(evaluator(1), number_evaluator);
    let first = Reporter::start(loader_address, evaluator_address);
    let before = first.word("Active");
    let (_, _, folder) = first.end();
    std::thread::sleep(Duration::from_millis(1100));
    let second = Reporter::start_in(folder, loader_address, evaluator_address);
    evaluator_feed.publish(EvaluatorState::default(), number_evaluator);
    second.word("Progressing");
    evaluator_feed.publish(evaluator(1), number_evaluator);
    let after = second.word("Active");
    let time = |object: &ObservedPolicy, r#type| {
        object.status.condition(r#type).map(|condition| condition.last_transition_time)
    };
    assert_eq!(time(&before, ConditionType::Accepted), time(&after, ConditionType::Accepted));
    assert!(time(&before, ConditionType::Ready) < time(&after, ConditionType::Ready));
    assert_eq!(before.status.last_served, after.status.last_served);
}

/// The evaluator's health endpoint hangs, lies, or sends without end: the replica is Unknown, and never Ready.
#[test]
fn fault_r28_an_evaluator_that_hangs_lies_or_floods() {
    let (_loader, loader_address) = served(loader(1), number_loader);
    let unknown = |object: &ObservedPolicy| {
        let degraded = object.status.condition(ConditionType::Degraded).map(|condition| condition.reason.clone());
        assert_eq!(degraded.as_deref(), Some("EvaluatorUnreachable"));
        assert_eq!(object.status.replica_counts.unknown, 1);
        assert!(!object.status.is_true(ConditionType::Ready));
    };

    let hangs = TcpListener::bind("127.0.0.1:0").expect("binds");
    let reporter = Reporter::start(loader_address, hangs.local_addr().expect("an address"));
    unknown(&reporter.word("Degraded"));
    reporter.end();

    let (lies, lying_address) = served(evaluator(99), number_evaluator);
    let reporter = Reporter::start(loader_address, lying_address);
    unknown(&reporter.word("Degraded"));
    lies.publish(evaluator(1), number_evaluator);
    reporter.word("Active");
    reporter.end();

    let floods = TcpListener::bind("127.0.0.1:0").expect("binds");
    let flooding_address = floods.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in floods.incoming().flatten() {
            let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[";
            let mut sent = stream.write_all(head);
            while sent.is_ok() {
                sent = stream.write_all(&[b' '; 1 << 16]);
            }
        }
    });
    let reporter = Reporter::start(loader_address, flooding_address);
    unknown(&reporter.word("Degraded"));
    let resident = resident_mebibytes(reporter.child.0.id());
    assert!(resident < 256, "{resident} MiB for an answer without end");
    reporter.end();
}

fn resident_mebibytes(id: u32) -> u64 {
    let status = fs::read_to_string(Path::new("/proc").join(id.to_string()).join("status")).expect("runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("has a line VmHWM");
    peak.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).expect("a number") / 1024
}

#[test]
fn a_reporter_whose_log_nobody_reads_still_ends() {
    let (_loader, loader_address) = served(loader(1), number_loader);
    let (_evaluator, evaluator_address) = served(evaluator(1), number_evaluator);
    let mut reporter = Reporter::start(loader_address, evaluator_address);
    reporter.word("Active");
    drop(reporter.child.0.stderr.take());
    assert_eq!(reporter.end().0, Some(0));
}
