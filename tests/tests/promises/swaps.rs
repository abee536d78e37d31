//! 200 swaps while eight clients send requests: no request fails, and every answer is entirely of one generation.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_tests::{FLOODED, Folder, Pod, Policy, Review, StopOnDrop, eventually, heavy};
use serde_json::json;

const SWAPS: i64 = 200;
const CLIENTS: usize = 8;
const SWAPPED: &str = "cluster/swapped";

/// The policy of a generation. Its module and its settings are different from those of the generation before.
fn version(generation: i64) -> Policy {
    if generation % 2 == 0 {
        Policy::cluster("swapped").guest("always_deny").spec("message", format!("generation {generation}"))
    } else {
        Policy::cluster("swapped")
            .example("required-labels")
            .settings(json!({"labels": [format!("generation-{generation}")]}))
    }
}

fn says(generation: i64) -> String {
    if generation % 2 == 0 {
        format!("generation {generation}")
    } else {
        format!("missing labels: generation-{generation}")
    }
}

#[test]
fn promise_200_swaps_under_eight_clients() {
    let _alone = heavy();
    let folder = Folder::with_canary();
    folder.put(&version(1));
    let pod = Pod::on(&folder).canary_within(FLOODED, "eight clients ask without a pause").start();
    pod.assert_recovered(SWAPPED, 1);

    let (done, answers, newest) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicI64::new(1));
    let client = || {
        let client = pod.new_client();
        let mut before = 0;
        while !done.load(Ordering::SeqCst) {
            let review = Review::pod();
            let answer = client.try_ask(SWAPPED, &review);
            let verdict = answer.unwrap_or_else(|error| panic!("a request failed: {error}")).verdict();
            let generation: i64 = verdict.annotations["generation"].parse().expect("a number");
            assert!(!verdict.allowed && verdict.uid == review.uid(), "{verdict:?}");
            assert_eq!(verdict.message, says(generation), "a mixture: {verdict:?}");
            assert!(generation >= before, "generation {generation} after {before}");
            before = generation;
            newest.fetch_max(generation, Ordering::SeqCst);
            answers.fetch_add(1, Ordering::SeqCst);
        }
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let stop = StopOnDrop(&done);
        let start = Instant::now();
        for generation in 2..2 + SWAPS {
            folder.put(&version(generation));
            // Each generation is served, and none is skipped.
            pod.wait_current(SWAPPED, generation);
            // This sets the rate, 200 in 20 s unless the machine is busy; the test does not wait for anything here.
            let due = Duration::from_millis(100) * u32::try_from(generation - 1).expect("it is small");
            thread::sleep(due.saturating_sub(start.elapsed()));
        }
        eventually("an answer of the last generation", || (newest.load(Ordering::SeqCst) == 1 + SWAPS).then_some(()));
        drop(stop);
        for client in clients {
            client.join().expect("every answer is right");
        }
    });
    let swaps = usize::try_from(SWAPS).expect("it is small");
    assert!(answers.load(Ordering::SeqCst) > swaps, "{answers:?} answers in {swaps} swaps");
}
