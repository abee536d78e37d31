//! What a candidate must pass before it may serve.

use std::fs;
use std::sync::Arc;

use portcullis_contract::{ExecutionMode, Reason};

use crate::rig::{Policy, Rig};

const ID: &str = "cluster/a";

async fn refusal(guest: &str) -> (Reason, String) {
    Rig::start().refusal(Policy::guest(ID, guest)).await
}

#[tokio::test]
async fn modules_that_do_not_fit_are_named() {
    for (guest, part) in [
        ("unknown_import", "portcullis_test::no_such_function"),
        ("unknown_wapc_import", "wapc::"),
        ("wrong_import_signature", "wapc::"),
        ("missing_guest_call", "__guest_call"),
        ("guest_call_is_a_global", "__guest_call"),
        ("wrong_signature", "__guest_call"),
        ("missing_memory", "memory"),
        ("empty", "memory"),
        ("opa_abi", "env::memory"),
        ("wasi_missing_start", "_start"),
    ] {
        let (reason, text) = refusal(guest).await;
        assert_eq!(reason, Reason::ModuleUnsupported, "{guest}: {text}");
        assert!(text.contains(part), "{guest}: {text}");
    }
    let (reason, text) = refusal("long_import").await;
    assert!(reason == Reason::ModuleUnsupported && text.len() < 350, "{text}");
}

#[tokio::test]
async fn a_module_without_the_functions_of_opa_is_no_rego_policy() {
    for mode in [ExecutionMode::Opa, ExecutionMode::Gatekeeper] {
        let mut policy = Policy::guest(ID, "always_accept");
        policy.last().execution_mode = mode;
        let (reason, text) = Rig::start().refusal(policy).await;
        assert!(reason == Reason::ModuleUnsupported && text.contains("wapc::"), "{text}");
        let mut policy = Policy::guest(ID, "opa_abi");
        policy.last().execution_mode = mode;
        let (reason, text) = Rig::start().refusal(policy).await;
        assert!(
            reason == Reason::ModuleUnsupported && text.contains("opa_malloc") && text.contains(mode.as_str()),
            "{text}"
        );
    }
}

#[tokio::test]
async fn modules_that_want_too_much_at_their_start() {
    for (guest, part) in [
        ("huge_first_memory", "4096 MiB of memory"),
        ("huge_first_table", "20000000 elements"),
        ("many_tables", "99 tables"),
    ] {
        let (reason, text) = refusal(guest).await;
        assert_eq!(reason, Reason::MemoryLimit, "{guest}: {text}");
        assert!(text.contains(part), "{guest}: {text}");
    }
    let rig = Rig::start();
    rig.apply(Policy::guest(ID, "memory_just_below_limit")).await;
    assert!(rig.ask(ID, "{}").await.unwrap().accepted);
}

#[tokio::test]
async fn modules_that_do_not_start() {
    let timed_out =
        |function: &str| format!("Initialization failed: {function} init interrupted, execution deadline exceeded");
    let unreachable = "Initialization failed: wasm trap: wasm `unreachable` instruction executed".to_owned();
    for (guest, reason, text) in [
        ("start_trap", Reason::InstantiationFailed, unreachable.clone()),
        ("trap_in_init", Reason::InstantiationFailed, unreachable),
        (
            "exit_1_in_start_export",
            Reason::InstantiationFailed,
            "Initialization failed: the guest exited with code 1".to_owned(),
        ),
    ] {
        assert_eq!(refusal(guest).await, (reason, text), "{guest}");
    }
    for (guest, function) in
        [("start_loop", "start"), ("loop_in_start_export", "_start"), ("loop_in_init", "wapc_init")]
    {
        let refusal = Rig::hurried().late_refusal(Policy::guest(ID, guest)).await;
        assert_eq!(refusal, (Reason::StartTimedOut, timed_out(function)), "{guest}");
    }
}

#[tokio::test]
async fn a_module_that_a_busy_replica_cannot_start_in_time_is_tried_again() {
    let rig = Arc::new(Rig::narrow());
    let busy: Vec<_> = (0..8).map(|n| format!("namespaced/team-{n}/busy")).collect();
    for id in &busy {
        rig.put(Policy::guest(id, "endless_loop"));
    }
    rig.publish().await;
    let asking: Vec<_> = busy
        .iter()
        .map(|id| {
            let (rig, id) = (Arc::clone(&rig), id.clone());
            tokio::spawn(async move { rig.ask(&id, "{}").await })
        })
        .collect();
    while rig.metrics.instances.get() < 8 {
        tokio::task::yield_now().await;
    }
    let id = "namespaced/team-of-its-own/starved";
    let mut starved = Policy::guest(id, "loop_in_init");
    starved.last_candidate().timeout_eval_seconds = Some(2);
    let (reason, text) = rig.refusal(starved).await;
    assert_eq!(reason, Reason::ProcessorUnavailable, "{text}");
    assert!(rig.unserved(id).next_retry_time.is_some());
    asking.iter().for_each(tokio::task::JoinHandle::abort);
    // Now it has the processor to itself, and its module is to blame.
    rig.until(|_| rig.unserved(id).reason == Reason::StartTimedOut).await;
}

#[tokio::test]
async fn endless_modules_that_start_together_are_all_judged_in_the_end() {
    let rig = Rig::crowded();
    let all: Vec<_> = (0..8).map(|n| format!("namespaced/team-a/loops-{n}")).collect();
    for id in &all {
        let mut loops = Policy::guest(id, "loop_in_init");
        loops.last_candidate().timeout_eval_seconds = Some(1);
        rig.put(loops);
    }
    rig.publish().await;
    rig.until(|_| all.iter().all(|id| rig.unserved(id).reason == Reason::StartTimedOut)).await;
}

#[tokio::test]
async fn settings_that_the_guest_refuses() {
    let text = "Policy settings are invalid: the guest refuses these settings".to_owned();
    assert_eq!(refusal("bad_settings").await, (Reason::SettingsInvalid, text.clone()));
    assert_eq!(refusal("wasi_bad_settings").await, (Reason::SettingsInvalid, text));
    let text = "Policy settings are invalid: no message".to_owned();
    assert_eq!(refusal("bad_settings_without_message").await, (Reason::SettingsInvalid, text));
    let settings = r#"{"b":9007199254740993,"a":null,"s":""}"#;
    let (_, text) = Rig::start().refusal(Policy::guest(ID, "settings_echo").settings(settings)).await;
    assert_eq!(text, format!("Policy settings are invalid: {settings}"));
}

#[tokio::test]
async fn settings_checks_that_fail_themselves() {
    for guest in
        ["settings_trap", "settings_garbage", "settings_wrong_shape", "settings_no_reply", "wasi_settings_bad_stdout"]
    {
        let (reason, text) = refusal(guest).await;
        assert_eq!(reason, Reason::SettingsCheckFailed, "{guest}: {text}");
    }
    for guest in ["settings_loop", "wasi_settings_loop"] {
        let (reason, text) = Rig::hurried().late_refusal(Policy::guest(ID, guest)).await;
        assert_eq!(reason, Reason::SettingsCheckFailed, "{guest}: {text}");
    }
    let text = "Policy settings are invalid: Error invoking settings validation callback: \
                Guest call failure: the guest gave up";
    assert_eq!(refusal("settings_guest_error").await, (Reason::SettingsCheckFailed, text.to_owned()));
    let text = "Policy settings are invalid: the guest gave up".to_owned();
    assert_eq!(refusal("wasi_settings_exit_1").await, (Reason::SettingsCheckFailed, text));
}

/// A guest that asks its host for the addresses of a name, first when it is called. `init` is what its `wapc_init` does, `then` what it does
/// after the call.
fn asks_its_host(init: &str, then: &str) -> Policy {
    let wat = r#"(module
        (import "wapc" "__host_call" (func $call (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
        (import "wapc" "__guest_response" (func $respond (param i32 i32)))
        (import "wapc" "__guest_error" (func $error (param i32 i32)))
        (memory (export "memory") 1)
        (data (i32.const 0) "{\"valid\":false,\"message\":\"no host\"}")
        (data (i32.const 64) "kubewarden") (data (i32.const 80) "net") (data (i32.const 96) "v1/dns_lookup_host")
        (data (i32.const 128) "\"web.example\"")
        (func $ask
          (drop (call $call (i32.const 64) (i32.const 10) (i32.const 80) (i32.const 3)
            (i32.const 96) (i32.const 18) (i32.const 128) (i32.const 13))))
        (func (export "wapc_init") {{INIT}})
        (func (export "__guest_call") (param i32 i32) (result i32) (call $ask) {{THEN}}))"#;
    Policy::text(ID, &wat.replace("{{INIT}}", init).replace("{{THEN}}", then))
}

/// A command that asks its host for the addresses of a name, and then exits with this code and without a reply.
fn command_that_asks_its_host(code: i32) -> Policy {
    let wat = r#"(module
        (import "host" "call" (func $call (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
        (memory (export "memory") 1)
        (data (i32.const 64) "kubewarden") (data (i32.const 80) "net") (data (i32.const 96) "v1/dns_lookup_host")
        (data (i32.const 128) "\"web.example\"")
        (func (export "_start")
          (drop (call $call (i32.const 64) (i32.const 10) (i32.const 80) (i32.const 3)
            (i32.const 96) (i32.const 18) (i32.const 128) (i32.const 13)))
          (call $exit (i32.const {{CODE}}))))"#;
    let wat = wat.replace("{{CODE}}", &code.to_string());
    Policy::module(ID, &wat::parse_str(wat).unwrap(), ExecutionMode::Wasi)
}

#[tokio::test]
async fn a_policy_that_does_not_load_without_its_host_is_tried_again_unless_it_was_denied() {
    let says_invalid = "(call $respond (i32.const 0) (i32.const 35)) (i32.const 1)";
    let fails = "(call $error (i32.const 64) (i32.const 10)) (i32.const 0)";
    for (policy, words, denied) in [
        (asks_its_host("", says_invalid), "no host", Reason::SettingsInvalid),
        (asks_its_host("", fails), "kubewarden", Reason::SettingsCheckFailed),
        (asks_its_host("", "unreachable"), "unreachable", Reason::SettingsCheckFailed),
        (asks_its_host("(call $ask) unreachable", fails), "Initialization failed", Reason::InstantiationFailed),
        (command_that_asks_its_host(1), "exited with code 1", Reason::SettingsCheckFailed),
        (command_that_asks_its_host(0), "Cannot deserialize", Reason::SettingsCheckFailed),
    ] {
        let rig = Rig::start();
        let (reason, text) = rig.refusal(policy.clone().grants(&["net/*"])).await;
        assert_eq!(reason, Reason::CapabilityUnavailable, "{text}");
        assert!(text.contains("net/v1/dns_lookup_host: this evaluator has no connection to a loader"), "{text}");
        assert!(text.contains(words), "{text}");
        assert!(rig.unserved(ID).next_retry_time.is_some());
        rig.until(|_| rig.unserved(ID).attempts > 1).await;

        let rig = Rig::start();
        let (reason, text) = rig.refusal(policy).await;
        assert_eq!(reason, denied, "{text}");
        assert_eq!(rig.unserved(ID).next_retry_time, None);
    }
}

#[tokio::test]
async fn settings_beyond_size_or_depth() {
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(1 << 20));
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(1000), "]".repeat(1000));
    for settings in [large, deep] {
        let rig = Rig::start();
        let (reason, text) = rig.refusal(Policy::guest(ID, "always_accept").settings(&settings)).await;
        assert_eq!(reason, Reason::SettingsInvalid, "{text}");
    }
}

#[tokio::test]
async fn artifacts_that_are_not_what_the_manifest_says() {
    let policy = Policy::guest(ID, "always_accept");
    let rig = Rig::start();
    let (reason, _) = rig.refusal(policy.clone().with_artifact_bytes(b"something else")).await;
    assert_eq!(reason, Reason::ArtifactCorrupt);
    let refused = &rig.until(|state| !state.deviations.is_empty()).await.deviations[0].refused;
    assert_eq!(refused[0].failure.reason, Reason::ArtifactCorrupt);
    assert!(refused[0].failure.next_retry_time.is_some());
    // It serves as soon as the right bytes are there, even without another manifest.
    rig.put(policy.clone());
    rig.until(|state| !state.current.is_empty()).await;
    assert!(rig.ask(ID, "{}").await.unwrap().accepted);

    let rig = Rig::start();
    let mut other = policy.clone();
    other.last().artifact.file = "not-there.cwasm".into();
    assert_eq!(rig.refusal(other).await.0, Reason::ArtifactMissing);
    rig.apply(policy).await;
    assert!(rig.ask(ID, "{}").await.unwrap().accepted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_artifact_that_changes_after_loading_has_no_effect() {
    let rig = Arc::new(Rig::start());
    rig.apply(Policy::guest(ID, "always_accept")).await;
    let asking = {
        let rig = Arc::clone(&rig);
        tokio::spawn(async move {
            for _ in 0..300 {
                assert!(rig.ask(ID, "{}").await.unwrap().accepted);
            }
        })
    };
    for entry in fs::read_dir(rig.volume.path().join("artifacts")).unwrap() {
        let path = entry.unwrap().path();
        fs::write(&path, vec![0xcc; 100_000]).unwrap();
        fs::File::create(&path).unwrap();
        fs::remove_file(&path).unwrap();
    }
    asking.await.unwrap();
}
