//! What guests ask of their host: capabilities, logs, streams.

use portcullis_contract::Reason;

use crate::rig::{Policy, Rig};

const ID: &str = "cluster/a";

async fn rig(policy: Policy) -> Rig {
    let rig = Rig::start();
    rig.apply(policy).await;
    rig
}

#[tokio::test]
async fn calls_without_a_grant_are_denied_with_the_text_of_the_protocol() {
    for (guest, path) in [
        ("ungranted_capability", "oci/v1/manifest_digest"),
        ("ungranted_kubernetes", "kubernetes/list_resources_all"),
        ("unknown_capability", "weather/v1/forecast"),
    ] {
        let text = format!(
            "Policy has not been granted access to the '{path}' host capability. The violation has been reported."
        );
        assert_eq!(rig(Policy::guest(ID, guest)).await.denial(ID).await, text);
    }
}

#[tokio::test]
async fn granted_and_unknown_calls_say_what_is_missing() {
    for (guest, text) in [
        ("unknown_binding", "unknown binding: gatekeeper"),
        ("unknown_operation", "unknown operation: shout"),
        ("unknown_capability", "unknown namespace: weather"),
        (
            "ungranted_capability",
            "Callback evaluation failure: this evaluator has no connection to a loader; start it with --broker-socket",
        ),
    ] {
        assert_eq!(rig(Policy::guest(ID, guest).grants(&["*"])).await.denial(ID).await, text, "{guest}");
    }
}

#[tokio::test]
async fn a_command_reads_replies_and_errors_from_its_standard_input() {
    for guest in ["wasi_two_host_calls", "wasi_javy_host_calls"] {
        assert!(rig(Policy::guest(ID, guest)).await.ask(ID, "{}").await.unwrap().accepted, "{guest}");
    }
    let text = "Policy has not been granted access to the 'oci/v1/manifest_digest' host capability. \
                The violation has been reported.";
    let denial = rig(Policy::guest(ID, "wasi_two_denied_calls")).await.denial(ID).await;
    assert_eq!(denial, format!("{text}|{text}"));
}

#[tokio::test]
async fn logs_are_no_failure_whatever_they_hold() {
    for guest in ["log_one", "log_not_utf8"] {
        assert!(rig(Policy::guest(ID, guest)).await.ask(ID, "{}").await.unwrap().accepted, "{guest}");
    }
}

#[tokio::test]
async fn a_flood_of_log_lines_is_cut_and_counted() {
    let rig = rig(Policy::guest(ID, "log_flood")).await;
    assert!(rig.ask(ID, "{}").await.unwrap().accepted);
    let dropped = rig.served(ID).metrics.log_lines_dropped.get();
    assert!(dropped > 8000, "{dropped}");
}

#[tokio::test]
async fn a_guest_that_fails_over_a_denial_names_it() {
    let wat = r#"(module
        (import "wapc" "__host_call" (func $call (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
        (import "wapc" "__guest_response" (func $respond (param i32 i32)))
        (memory (export "memory") 1)
        (data (i32.const 0) "{\"valid\":true}") (data (i32.const 32) "kubewarden") (data (i32.const 48) "oci")
        (func (export "__guest_call") (param $op i32) (param i32) (result i32)
          (if (i32.eq (local.get $op) (i32.const 17))
            (then (call $respond (i32.const 0) (i32.const 14)) (return (i32.const 1))))
          (drop (call $call (i32.const 32) (i32.const 10) (i32.const 48) (i32.const 3)
            (i32.const 48) (i32.const 3) (i32.const 0) (i32.const 2)))
          unreachable))"#;
    assert_eq!(rig(Policy::text(ID, wat)).await.failure(ID).await.0, Reason::CapabilityDenied);
}
