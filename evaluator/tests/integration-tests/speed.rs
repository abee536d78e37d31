//! Figures to look at, not to assert: `cargo test -p portcullis-evaluator speed -- --ignored --nocapture --test-threads 1`.
//! `MODULE=<file> MODE=wasi SETTINGS=<json>` measures another module.

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use portcullis_contract::ExecutionMode;

use crate::rig::{Policy, Rig, file, request};

const ID: &str = "cluster/a";

fn print(name: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: usize| times[times.len() * share / 1000];
    println!("{name}: p50 {:?}, p99 {:?}, p99.9 {:?}, max {:?}", at(500), at(990), at(999), times[times.len() - 1]);
}

fn measured() -> Policy {
    let Ok(module) = env::var("MODULE") else {
        return Policy::module(ID, &file("examples/modules/no-privileged.wasm"), ExecutionMode::KubewardenWapc);
    };
    let mode = if env::var("MODE").is_ok() { ExecutionMode::Wasi } else { ExecutionMode::KubewardenWapc };
    let policy = Policy::module(ID, &std::fs::read(module).unwrap(), mode);
    policy.settings(&env::var("SETTINGS").unwrap_or_else(|_| "{}".to_owned()))
}

async fn calls(rig: &Rig, request: &str, calls: usize) -> Vec<Duration> {
    let mut times = Vec::new();
    for _ in 0..calls {
        let start = Instant::now();
        // On a busy machine an answer may come too late; its time is counted nevertheless.
        let _ = rig.ask(ID, request).await;
        times.push(start.elapsed());
    }
    times
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "figures, not assertions"]
async fn one_call() {
    let rig = Rig::start();
    for guest in ["always_accept", "wasi_accept"] {
        rig.apply(Policy::guest(ID, guest)).await;
        print(guest, calls(&rig, "{}", 2000).await);
    }
    rig.apply(measured()).await;
    print("module", calls(&rig, &request("pod-privileged"), 2000).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "figures, not assertions"]
async fn calls_beside_endless_loops() {
    let rig = Arc::new(Rig::start());
    rig.put(measured());
    rig.put(Policy::guest("cluster/loop", "endless_loop"));
    rig.publish().await;
    let request = request("pod-privileged");
    for callers in [0, 1, 2, 4, 8, 32] {
        let stop = Arc::new(AtomicBool::new(false));
        let loops: Vec<_> = (0..callers)
            .map(|_| {
                let (rig, stop) = (Arc::clone(&rig), Arc::clone(&stop));
                tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let _ = rig.ask("cluster/loop", "{}").await;
                        // A request over a network takes some time, even if it is refused.
                        tokio::time::sleep(Duration::from_micros(500)).await;
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(200)).await;
        let neighbour = {
            let (rig, request) = (Arc::clone(&rig), request.clone());
            tokio::spawn(async move {
                let mut times = Vec::new();
                for _ in 0..1000 {
                    times.extend(calls(&rig, &request, 1).await);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                times
            })
        };
        print(&format!("beside {callers} loops"), neighbour.await.unwrap());
        stop.store(true, Ordering::Relaxed);
        for one in loops {
            one.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "figures, not assertions"]
async fn one_swap() {
    let rig = Rig::start();
    let mut times: Vec<Duration> = Vec::new();
    for generation in 1..=200 {
        let mut policy = Policy::guest(ID, "always_accept").generation(generation);
        policy.last_candidate().generation = generation;
        rig.put(policy.settings(&format!("{{\"of\":{generation}}}")));
        let start = Instant::now();
        rig.publish().await;
        times.push(start.elapsed());
    }
    print("swap of settings", times);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "figures, not assertions"]
async fn a_hundred_artifacts() {
    let rig = Rig::start();
    for i in 0..100 {
        rig.put(measured().renamed(&format!("cluster/p{i}")).with_padding(i));
    }
    let (start, used) = (Instant::now(), processor_time());
    rig.publish().await;
    println!("fresh: {:?}, processor {:?}", start.elapsed(), processor_time() - used);
    let (volume, private) = rig.stop();
    let (start, used) = (Instant::now(), processor_time());
    let rig = Rig::on(volume, private);
    rig.until(|state| state.current.len() == 100).await;
    println!("after a restart: {:?}, processor {:?}", start.elapsed(), processor_time() - used);
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}
