//! One evaluation, from a request to a verdict or to an error with a text of docs/design/policy-abi.md.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_contract::Reason;

use crate::rig::{LIMIT, Policy, Rig};

const ID: &str = "cluster/a";

async fn rig(guest: &str) -> Rig {
    let rig = Rig::start();
    rig.apply(Policy::guest(ID, guest)).await;
    rig
}

#[tokio::test]
async fn acceptance_and_denial() {
    for guest in ["always_accept", "wasi_accept", "accept_in_full", "wasi_exit_0", "wasi_stderr"] {
        assert!(rig(guest).await.ask(ID, "{}").await.unwrap().accepted, "{guest}");
    }
    let verdict = rig("deny_in_full").await.ask(ID, "{}").await.unwrap();
    assert_eq!((verdict.accepted, verdict.code), (false, Some(418)));
    assert_eq!(verdict.warnings.map(|warnings| warnings.len()), Some(2));
    assert_eq!(verdict.audit_annotations.map(|annotations| annotations.len()), Some(1));
    let verdict = rig("wasi_deny").await.ask(ID, "{}").await.unwrap();
    assert_eq!((verdict.accepted, verdict.code), (false, Some(418)));
    let verdict = rig("deny_silently").await.ask(ID, "{}").await.unwrap();
    assert_eq!((verdict.accepted, verdict.code, verdict.message), (false, None, None));
}

#[tokio::test]
async fn a_guest_sees_request_and_settings_byte_for_byte() {
    for guest in ["echo_settings", "wasi_echo"] {
        let rig = Rig::start();
        rig.apply(Policy::guest(ID, guest).settings(r#"{"z":9007199254740993,"a":"","n":null}"#)).await;
        let verdict = rig.ask(ID, r#"{"uid":"1","b":1,"a":-0.0}"#).await.unwrap();
        let expected = r#"{"request":{"uid":"1","b":1,"a":-0.0},"settings":{"z":9007199254740993,"a":"","n":null}}"#;
        assert_eq!(verdict.message.as_deref(), Some(expected), "{guest}");
    }
}

#[tokio::test]
async fn each_call_has_an_instance_of_its_own() {
    let rig = rig("counter").await;
    for _ in 0..20 {
        assert_eq!(rig.denial(ID).await, "call 1 by global, call 1 by memory");
    }
}

#[tokio::test]
async fn initialisation_functions_run_in_order() {
    assert_eq!(rig("init_order").await.denial(ID).await, "initialised: 12");
    assert!(rig("exit_0_in_start_export").await.ask(ID, "{}").await.unwrap().accepted);
}

#[tokio::test]
async fn traps_and_exits() {
    let trap = "internal server error: Guest call failure: wasm trap: ";
    for (guest, text) in [
        ("trap_unreachable", format!("{trap}wasm `unreachable` instruction executed")),
        ("trap_div_zero", format!("{trap}integer divide by zero")),
        ("trap_out_of_bounds", format!("{trap}out of bounds memory access")),
        ("recursion", format!("{trap}call stack exhausted")),
        ("exit", "internal server error: Guest call failure: the guest exited with code 1".to_owned()),
        ("exit_0", "internal server error: Guest call failure: the guest exited with code 0".to_owned()),
        ("wasi_exit_1", "the guest gave up".to_owned()),
    ] {
        assert_eq!(rig(guest).await.failure(ID).await, (Reason::EvaluationTrapped, text), "{guest}");
    }
    for guest in ["memory_growth", "memory_growth_ignored", "table_growth", "wasi_trap", "wasi_exit_1_silent"] {
        let (reason, text) = rig(guest).await.failure(ID).await;
        assert_eq!(reason, Reason::EvaluationTrapped, "{guest}: {text}");
        assert!(!text.is_empty(), "{guest}");
    }
}

#[tokio::test]
async fn the_call_after_a_trap_is_right() {
    let rig = rig("trap_on_demand").await;
    for _ in 0..10 {
        assert_eq!(rig.ask(ID, r#""trap-me""#).await.expect_err("a trap").reason, Reason::EvaluationTrapped);
        assert!(rig.ask(ID, r#""fine""#).await.unwrap().accepted);
    }
}

#[tokio::test]
async fn failed_calls_have_the_texts_of_the_protocol() {
    let failure = "internal server error: Guest call failure: ";
    for (guest, reason, text) in [
        ("guest_error", Reason::EvaluationTrapped, "the guest gave up"),
        ("guest_error_without_text", Reason::EvaluationTrapped, "No error message set for call failure"),
        ("no_reply", Reason::ResponseInvalid, "No error message OR response set for call success"),
        ("no_reply_with_error", Reason::ResponseInvalid, "the guest gave up"),
    ] {
        assert_eq!(rig(guest).await.failure(ID).await, (reason, format!("{failure}{text}")), "{guest}");
    }
}

#[tokio::test]
async fn nonsense_is_no_answer() {
    for guest in
        ["not_json", "empty_answer", "wrong_shape", "missing_accepted", "bad_code", "not_utf8", "answer_nested"]
    {
        let (reason, text) = rig(guest).await.failure(ID).await;
        assert_eq!(reason, Reason::ResponseInvalid, "{guest}: {text}");
        assert!(text.starts_with("internal server error: invalid response from policy: "), "{guest}: {text}");
    }
    for guest in ["pointer_outside_memory", "length_outside_memory", "negative_length"] {
        assert_eq!(rig(guest).await.failure(ID).await.0, Reason::ResponseInvalid, "{guest}");
    }
    for guest in ["wasi_bad_stdout", "wasi_no_stdout"] {
        let (reason, text) = rig(guest).await.failure(ID).await;
        assert_eq!(reason, Reason::ResponseInvalid, "{guest}: {text}");
        let start = "internal server error: Cannot deserialize policy validation response: ";
        assert!(text.starts_with(start), "{guest}: {text}");
    }
    for guest in ["request_outside_memory", "host_call_outside_memory"] {
        assert_eq!(rig(guest).await.failure(ID).await.0, Reason::EvaluationTrapped, "{guest}");
    }
}

#[tokio::test]
async fn large_answers() {
    for guest in ["answer_10mib", "wasi_stdout_flood"] {
        assert_eq!(rig(guest).await.failure(ID).await.0, Reason::ResponseTooLarge, "{guest}");
    }
    let message = rig("denial_1mib").await.denial(ID).await;
    assert!(message.len() <= 1024 && !message.contains(char::is_control), "{message:?}");
}

#[tokio::test]
async fn a_reply_takes_memory_of_its_instance() {
    // Enough for the guests themselves, and for their replies about settings.
    for (guest, enough) in [("denial_1mib", 5 << 20), ("wasi_stdout_flood", 9 << 20)] {
        let rig = Rig::poor(3 << 20);
        rig.apply(Policy::guest(ID, guest)).await;
        let (reason, text) = rig.failure(ID).await;
        assert_eq!(reason, Reason::Overloaded, "{guest}: {text}");
        assert!(text.contains("no memory left"), "{guest}: {text}");
        let rig = Rig::poor(enough);
        rig.apply(Policy::guest(ID, guest)).await;
        let reason = rig.ask(ID, "{}").await.err().map(|error| error.reason);
        assert!(!matches!(reason, Some(Reason::Overloaded)), "{guest}: {reason:?}");
    }
}

#[tokio::test]
async fn what_runs_away_is_stopped_in_time() {
    let text = "Policy execution interrupted because it exceeded the allowed execution time";
    for guest in [
        "endless_loop",
        "clock_sleep",
        "bulk_copy_loop",
        "wasi_loop",
        "wasi_stderr_flood",
        "refused_calls",
        "wasi_refused_calls_read",
    ] {
        let rig = rig(guest).await;
        let start = Instant::now();
        let error = rig.ask_within(ID, "{}", Duration::from_millis(500)).await.expect_err("too late");
        assert_eq!((error.reason, &*error.text), (Reason::EvaluationTimedOut, text), "{guest}");
        let time = start.elapsed();
        assert!(time >= Duration::from_millis(490) && time < LIMIT / 2, "{guest}: {time:?}");
    }
    let rig = Rig::hurried();
    rig.apply(Policy::guest(ID, "endless_loop")).await;
    let start = Instant::now();
    assert_eq!(rig.failure(ID).await, (Reason::EvaluationTimedOut, text.to_owned()), "the policy's own limit");
    assert!(start.elapsed() < LIMIT / 2, "{:?}", start.elapsed());
}

#[tokio::test]
async fn replies_that_nobody_reads_have_a_limit() {
    let text = "internal server error: Guest call failure: replies of host calls that the guest did not read grew beyond \
                their limit of 65536 bytes";
    assert_eq!(rig("wasi_refused_calls").await.failure(ID).await, (Reason::EvaluationTrapped, text.to_owned()));
}

#[tokio::test]
async fn the_smaller_limit_counts() {
    let rig = rig("endless_loop").await;
    let start = Instant::now();
    let error = rig.ask_within(ID, "{}", Duration::from_millis(100)).await.expect_err("too late");
    assert_eq!(error.reason, Reason::EvaluationTimedOut);
    assert!(start.elapsed() < LIMIT / 2, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_short_sleep_is_slept() {
    let rig = rig("sleep_short").await;
    let start = Instant::now();
    assert!(rig.ask(ID, "{}").await.unwrap().accepted);
    assert!(start.elapsed() >= Duration::from_millis(20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_endless_loops_is_refused_and_neighbours_go_on() {
    let rig = Arc::new(Rig::start());
    let mut endless = Policy::guest(ID, "endless_loop");
    endless.last_candidate().timeout_eval_seconds = Some(5);
    rig.put(endless);
    rig.put(Policy::guest("cluster/neighbour", "always_accept"));
    rig.publish().await;
    let crowd: Vec<_> = (0..100)
        .map(|_| {
            let rig = Arc::clone(&rig);
            tokio::spawn(async move { rig.failure(ID).await.0 })
        })
        .collect();
    for _ in 0..50 {
        assert!(rig.ask("cluster/neighbour", "{}").await.unwrap().accepted);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(crowd.iter().any(|one| !one.is_finished()), "the neighbour waited for the crowd");
    let mut refused = 0;
    for one in crowd {
        match one.await.unwrap() {
            Reason::Overloaded => refused += 1,
            reason => assert_eq!(reason, Reason::EvaluationTimedOut),
        }
    }
    assert!(refused > 0);
    assert!(rig.ask("cluster/neighbour", "{}").await.unwrap().accepted);
}

#[tokio::test]
async fn who_hangs_up_leaves_nothing_running() {
    let rig = rig("endless_loop").await;
    for _ in 0..50 {
        let call = rig.ask(ID, "{}");
        assert!(tokio::time::timeout(Duration::from_millis(15), call).await.is_err());
    }
    let end = Instant::now() + LIMIT / 2;
    while rig.metrics.instances.get() > 0 {
        assert!(Instant::now() < end, "{} instances are left", rig.metrics.instances.get());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
