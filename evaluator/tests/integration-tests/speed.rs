//! Figures to look at, not to assert: `cargo test -p portcullis-evaluator speed -- --ignored --nocapture`.

use std::time::{Duration, Instant};

use crate::rig::{Policy, Rig};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "figures, not assertions"]
async fn one_call() {
    for guest in ["always_accept", "wasi_accept"] {
        let rig = Rig::start();
        rig.apply(Policy::guest("cluster/a", guest)).await;
        let mut times: Vec<Duration> = Vec::new();
        for _ in 0..2000 {
            let start = Instant::now();
            assert!(rig.ask("cluster/a", "{}").await.unwrap().accepted);
            times.push(start.elapsed());
        }
        times.sort();
        println!("{guest}: p50 {:?}, p99 {:?}, max {:?}", times[1000], times[1980], times[1999]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "figures, not assertions"]
async fn one_swap() {
    let rig = Rig::start();
    let mut times: Vec<Duration> = Vec::new();
    for generation in 1..=200 {
        let mut policy = Policy::guest("cluster/a", "always_accept").generation(generation);
        policy.last().generation = generation;
        rig.put(policy.settings(&format!("{{\"of\":{generation}}}")));
        let start = Instant::now();
        rig.publish().await;
        times.push(start.elapsed());
    }
    times.sort();
    println!("swap of settings: p50 {:?}, p99 {:?}, max {:?}", times[100], times[198], times[199]);
}
