//! Many replicas with all programs come and go under load: rows K02 and K03.
//!
//! Each replica consists of the three real programs, as processes of this machine. Threads of the test stand in for their kubelets: they
//! mount, probe, restart and end them. `tests/chart_promises/scaling.rs` tests five pods with a real kubelet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_e2e::{
    Cluster, FLOODED, Installation, InstallationOptions, Options, Pod, PodSetup, Program, eventually,
    eventually_within, guest_with, note,
};
use serde_json::Value;

/// Replicas, each three programs of a test build on cores that they share with other tests.
const REPLICAS: usize = 50;
/// So many start at a time, as they do where a Deployment grows in steps, or nodes have to be found.
const WAVE: usize = 7;
/// Until all of them are ready.
const LONG: Duration = Duration::from_secs(600);
/// During this wave, the source is slow. Not the first one, so that there are several replicas besides.
const SLOW_WAVE: usize = 2;
/// How long the source then takes for an answer: well below the ten seconds for which a loader waits.
const SLOW: Duration = Duration::from_secs(4);
/// The start gate, which is longer than a module takes from a slow source on a busy machine: a replica becomes ready because it serves.
const START_GATE: &str = "10m";

/// Ends the requests, also where the test fails meanwhile.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Adds a replica that is set for few requests, and whose kubelet sends few probes.
fn add(installation: &Installation<'_>) -> Arc<Pod> {
    let setup = PodSetup::default().probed_rarely().flag(Program::Evaluator, "--instances", 8);
    // So that no replica asks the source twice on a busy machine.
    let setup = setup.flag(Program::Loader, "--fetch-header-timeout", "60s");
    installation.add_replica_with(setup.flag(Program::Evaluator, "--start-gate", START_GATE))
}

#[test]
#[ignore = "starts a cluster"]
fn fault_k02_k03_many_whole_replicas_come_and_go_and_every_request_is_judged() {
    Cluster::require_own_network();
    // One of its own: the pods of the other tests leave too few addresses.
    let cluster = &Cluster::start(&Options::default()).unwrap();
    let installation = Installation::start(cluster, InstallationOptions::named("fleet")).with(1);
    let shop = installation.make_namespace("shop");
    let source = installation.source();
    source.put("/judged.wasm", guest_with("deny_text", b"judged"));
    let policy = installation.cluster_policy("fleet").at(&source.url("/judged.wasm"));
    // On a machine that is as busy as this, an evaluation may have to wait.
    let policy = policy.field("timeoutEvalSeconds", 20).field("timeoutSeconds", 25);
    installation.apply_ready(std::slice::from_ref(&policy));

    let (done, listener) = (AtomicBool::new(false), installation.listener());
    let answers = thread::scope(|scope| {
        // All evaluators of the fleet share the cores with the one that answers.
        let asking = scope.spawn(|| listener.hear(FLOODED, &done, || installation.try_pod(&shop)));
        let stop = Stop(&done);
        let start = Instant::now();
        let mut added = Vec::new();
        while added.len() + 1 < REPLICAS {
            let is_slow = added.len() == WAVE * (SLOW_WAVE - 1);
            if is_slow {
                source.slow(SLOW);
            }
            let before = source.requests("/judged.wasm").len();
            let wave: Vec<_> = (added.len() + 1..REPLICAS).take(WAVE).map(|_| add(&installation)).collect();
            if is_slow {
                // None is ready without its policy: the source answers the first request no sooner than this.
                eventually_within(LONG, "the first of a wave", || wave.iter().any(|pod| pod.is_ready()).then_some(()));
                let asked =
                    source.requests("/judged.wasm").get(before).copied().expect("no replica is ready without it");
                assert!(asked.elapsed() >= SLOW, "ready {:?} after the first request", asked.elapsed());
            }
            eventually_within(LONG, "a wave of replicas", || wave.iter().all(|pod| pod.is_ready()).then_some(()));
            source.slow(Duration::ZERO);
            added.extend(wave);
        }
        eventually_within(LONG, "their endpoints", || (installation.endpoints() == REPLICAS).then_some(()));
        let full = eventually_within(LONG, "all of them in the status", || {
            let is_full = |object: &Value| object["status"]["summary"] == format!("{REPLICAS}/{REPLICAS}");
            installation.object(&policy).filter(is_full)
        });
        note(&format!("{REPLICAS} replicas after {:.1?}", start.elapsed()));
        assert_eq!(full["status"]["replicaCounts"]["current"], REPLICAS);
        // The source is asked once by each, or again where the machine stood still.
        let asked = source.requests("/judged.wasm").len();
        assert!((REPLICAS..=REPLICAS + REPLICAS / 10).contains(&asked), "{asked} requests for the module");
        assert!(added.iter().all(|pod| pod.restarts(Program::Evaluator) == 0));

        thread::scope(|leaving| {
            for pod in &added {
                leaving.spawn(move || pod.remove());
            }
        });
        eventually("one endpoint", || (installation.endpoints() == 1).then_some(()));
        installation.assert_recovers("one replica in the status", || {
            let status = installation.object(&policy)?["status"].clone();
            let is_one = status["summary"] == "1/1" && status["replicasOmitted"] == 0;
            (is_one && status["replicas"].as_array()?.len() == 1).then_some(())
        });
        eventually("one report", || (installation.reports().len() == 1).then_some(()));
        drop(stop);
        asking.join().unwrap()
    });
    let answers = answers.in_time();
    // Every replica that got requests had loaded the policy, and none ended before it had answered them.
    let wrong: Vec<_> = answers.iter().filter(|(code, message)| *code != 403 || !message.contains("judged")).collect();
    assert!(wrong.is_empty(), "{} of {} requests: {:?}", wrong.len(), answers.len(), wrong[0]);
    assert!(answers.len() > 100, "{} requests prove nothing", answers.len());
}
