//! What each step of an admission request costs, in time and allocations: `cargo bench -p portcullis-evaluator`.
//!
//! The review is that of `cargo xtask bench`, and the policies are those of `examples`. Counting allocations takes some nanoseconds for
//! each, and starting a future as much as 0.1 µs; both are part of the times.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot run fails")]
#![expect(unreachable_pub, reason = "the rig is shared with the tests")]

#[path = "../tests/integration-tests/rig.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod rig;

use std::fmt;
use std::sync::OnceLock;

use bytes::Bytes;
use divan::counter::BytesCount;
use divan::{AllocProfiler, Bencher};
use portcullis_contract::ExecutionMode;
use portcullis_evaluator::steps::{DecidedAnswer, ReadyPolicy, decode};
use portcullis_testkit::pod_review;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Handle};

use rig::{Policy, Rig, file};

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

static CASES: OnceLock<Cases> = OnceLock::new();

/// How large a review is.
#[derive(Clone, Copy)]
enum Size {
    /// The review of a usual pod.
    Pod,
    /// 1 MB, of a pod with hundreds of containers.
    Large,
}

/// What a policy says about a usual pod.
#[derive(Clone, Copy)]
enum Outcome {
    Admit,
    Deny,
    Mutate,
}

/// What is measured for each outcome.
struct Cases {
    runtime: Handle,
    admit: Case,
    deny: Case,
    mutate: Case,
}

/// A review, and how a policy replies to it.
struct Case {
    policy: ReadyPolicy,
    body: Vec<u8>,
    payload: Bytes,
    reply: Vec<u8>,
}

fn main() {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // It removes its folders when it is dropped, so it is not a static.
    let rig = runtime.block_on(started());
    let mut changed: Value = serde_json::from_slice(&pod_review(false)).unwrap();
    // The policy gives resources to containers that request none.
    changed["request"]["object"]["spec"]["containers"][1]["resources"] = json!({});
    let case = |name, body| runtime.block_on(Case::new(&rig, name, body));
    let cases = Cases {
        runtime: runtime.handle().clone(),
        admit: case("no-privileged", pod_review(false)),
        deny: case("no-privileged", pod_review(true)),
        mutate: case("default-resources", changed.to_string().into_bytes()),
    };
    let cases = CASES.get_or_init(|| cases);
    for (outcome, allowed, patched) in
        [(Outcome::Admit, true, false), (Outcome::Deny, false, false), (Outcome::Mutate, true, true)]
    {
        let case = cases.of(outcome);
        let bytes = decode(&case.body).unwrap().encode(&cases.answer(case));
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        let response = &answer["response"];
        assert_eq!((&response["allowed"], response["patch"].is_string()), (&json!(allowed), patched), "{answer}");
    }
    divan::main();
}

#[divan::bench(name = "1 decode", args = [Size::Pod, Size::Large])]
fn decoding(bencher: Bencher, size: Size) {
    let body = size.review();
    bencher.counter(BytesCount::of_slice(&body)).bench_local(|| decode(&body).unwrap());
}

#[divan::bench(name = "2 payload", args = [Size::Pod, Size::Large])]
fn payload(bencher: Bencher, size: Size) {
    let body = size.review();
    let review = decode(&body).unwrap();
    bencher.counter(BytesCount::of_slice(&review.payload())).bench_local(|| review.payload());
}

#[divan::bench(name = "3 instantiate")]
fn instantiating(bencher: Bencher) {
    let cases = Cases::get();
    bencher.bench_local(|| cases.runtime.block_on(cases.admit.policy.instantiate()).unwrap());
}

#[divan::bench(name = "4 call, with 3", args = [Outcome::Admit, Outcome::Deny, Outcome::Mutate])]
fn calling(bencher: Bencher, outcome: Outcome) {
    let cases = Cases::get();
    let Case { policy, payload, .. } = cases.of(outcome);
    bencher.bench_local(|| cases.runtime.block_on(policy.call(payload.clone())).unwrap());
}

#[divan::bench(name = "5 post-process", args = [Outcome::Admit, Outcome::Deny, Outcome::Mutate])]
fn post_processing(bencher: Bencher, outcome: Outcome) {
    let cases = Cases::get();
    let Case { policy, body, payload, reply } = cases.of(outcome);
    let review = decode(body).unwrap();
    bencher.bench_local(|| cases.runtime.block_on(policy.post_process(&review, payload.clone(), reply)).unwrap());
}

#[divan::bench(name = "6 encode", args = [Outcome::Admit, Outcome::Deny, Outcome::Mutate])]
fn encoding(bencher: Bencher, outcome: Outcome) {
    let cases = Cases::get();
    let case = cases.of(outcome);
    let (review, answer) = (decode(&case.body).unwrap(), cases.answer(case));
    bencher.bench_local(|| review.encode(&answer));
}

/// An evaluator that serves the policies.
async fn started() -> Rig {
    let rig = Rig::start();
    let policy = |name: &str| {
        let module = file(&format!("examples/modules/{name}.wasm"));
        Policy::module(&format!("cluster/{name}"), &module, ExecutionMode::KubewardenWapc)
    };
    rig.put(policy("no-privileged"));
    let mut mutating = policy("default-resources").settings(r#"{"cpu":"100m","memory":"64Mi"}"#);
    mutating.last_candidate().mutating = true;
    rig.put(mutating);
    rig.publish().await;
    rig
}

impl Size {
    /// The bytes of a review of this size.
    fn review(self) -> Vec<u8> {
        let usual = pod_review(false);
        match self {
            Self::Pod => usual,
            Self::Large => {
                let mut review: Value = serde_json::from_slice(&usual).unwrap();
                let containers = review["request"]["object"]["spec"]["containers"].as_array_mut().unwrap();
                let times = 1_000_000 / json!(containers).to_string().len() + 1;
                *containers = vec![containers.clone(); times].concat();
                review.to_string().into_bytes()
            }
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pod => "6.4 KB",
            Self::Large => "1 MB",
        })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Admit => "admit",
            Self::Deny => "deny",
            Self::Mutate => "mutate",
        })
    }
}

impl Cases {
    fn get() -> &'static Self {
        CASES.get().expect("they are made before the first benchmark")
    }

    fn of(&self, outcome: Outcome) -> &Case {
        match outcome {
            Outcome::Admit => &self.admit,
            Outcome::Deny => &self.deny,
            Outcome::Mutate => &self.mutate,
        }
    }

    fn answer(&self, case: &Case) -> DecidedAnswer {
        let Case { policy, body, payload, reply } = case;
        let review = decode(body).unwrap();
        self.runtime.block_on(policy.post_process(&review, payload.clone(), reply)).unwrap()
    }
}

impl Case {
    async fn new(rig: &Rig, name: &str, body: Vec<u8>) -> Self {
        let policy = ReadyPolicy::of(rig.served(&format!("cluster/{name}"))).unwrap();
        let payload = decode(&body).unwrap().payload();
        let reply = policy.call(payload.clone()).await.unwrap();
        Self { policy, body, payload, reply }
    }
}
