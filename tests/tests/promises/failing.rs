//! If a loaded policy gives no verdict for many of its requests, one event says so, with the reason, while its conditions still say that
//! it is loaded.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use portcullis_tests::{Folder, Pod, Policy, Review, eventually};
use serde_json::Value;

/// How long evaluations must fail before there is an event. It is longer than a busy machine stands still, because a pause of this length
/// between two requests would end the failure.
const WINDOW: Duration = Duration::from_secs(5);

#[test]
fn promise_failing_evaluations_are_told_once() {
    let folder = Folder::with_canary();
    let policy = Policy::cluster("labels").guest("trap_unreachable");
    folder.put(&policy);
    let pod = Pod::on(&folder).evaluator("--error-window", format!("{}s", WINDOW.as_secs())).start();
    pod.wait_current(&policy.id(), 1);

    let events = || -> Vec<Value> {
        let text = fs::read_to_string(pod.path("status").join("events.jsonl")).unwrap_or_default();
        let events = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        events.filter(|event: &Value| event["reason"] == "EvaluationFailing").collect()
    };
    let told = eventually("the event", || {
        assert_eq!(pod.ask(&policy.id(), &Review::pod()).verdict().code, 500);
        events().pop()
    });
    assert_eq!((&told["policy"], &told["type"]), (&policy.id().into(), &"Warning".into()), "{told}");
    let note = told["note"].as_str().unwrap_or_default();
    assert!(note.ends_with("most of them: EvaluationTrapped"), "{note}");

    // The failure continues for longer than the window, and there is no second event.
    let start = Instant::now();
    while start.elapsed() < 2 * WINDOW {
        pod.ask(&policy.id(), &Review::pod());
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(events().len(), 1);
    assert_eq!(events()[0]["count"], 1);
    pod.wait_condition(&policy.id(), "Ready", "True", "Active");
}
