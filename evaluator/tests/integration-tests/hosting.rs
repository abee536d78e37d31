//! What guests ask of their host: capabilities, logs, streams.

use portcullis_contract::{ExecutionMode, Reason};

use crate::rig::{Policy, Rig, text};

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

/// Kubewarden links it too. What `fd_filestat_get` writes has 56 bytes there, and a subscription as well, with an identifier before its clock.
#[tokio::test]
async fn a_guest_may_import_the_predecessor_of_wasi_preview_1() {
    let earlier = |guest| text(guest).replace("wasi_snapshot_preview1", "wasi_unstable");
    let command = earlier("wasi_accept")
        .replace(
            r#"(memory (export "memory") 1)"#,
            r#"(import "wasi_unstable" "fd_filestat_get" (func $stat (param i32 i32) (result i32)))
            (import "wasi_unstable" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 1)
            (func $differs
              (i32.store8 (i32.const 2104) (i32.const 7))
              (if (call $stat (i32.const 1) (i32.const 2048)) (then unreachable))
              (if (i32.ne (i32.load8_u (i32.const 2104)) (i32.const 7)) (then unreachable))
              (i64.store (i32.const 1040) (i64.const -1))
              (i32.store (i32.const 1048) (i32.const 1))
              (i64.store (i32.const 1056) (i64.const 20000000))
              (if (call $poll (i32.const 1024) (i32.const 4096) (i32.const 1) (i32.const 3072)) (then unreachable))
              (if (i32.load16_u (i32.const 4104)) (then unreachable))
              (if (i32.ne (i32.load (i32.const 3072)) (i32.const 1)) (then unreachable)))"#,
        )
        .replace(r#"(func (export "_start")"#, r#"(func (export "_start") (call $differs)"#);
    assert!(command.contains("(call $differs)") && command.contains("(func $differs"));
    let command = wat::parse_str(command).unwrap();
    for policy in [Policy::module(ID, &command, ExecutionMode::Wasi), Policy::text(ID, &earlier("sleep_short"))] {
        assert!(rig(policy).await.ask(ID, "{}").await.unwrap().accepted);
    }
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
