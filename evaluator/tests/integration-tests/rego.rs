//! Policies in Rego, compiled by OPA: docs/design/policy-abi.md, section 7.

use std::collections::BTreeMap;
use std::time::Duration;

use portcullis_contract::{ContextAwareResource, ExecutionMode, Reason};
use portcullis_evaluator::Verdict;
use portcullis_testkit::rego_calling;
use serde_json::{Value, json};
use wasmtime::{Engine, ExternType, Linker, Memory, Module, Store};

use crate::rig::{Policy, Rig, file};

const ID: &str = "cluster/a";

fn policy(name: &str, mode: ExecutionMode) -> Policy {
    Policy::module(ID, &file(&format!("guests/modules/{name}.wasm")), mode)
}

async fn serving(policy: Policy) -> Rig {
    let rig = Rig::start();
    rig.apply(policy).await;
    rig
}

async fn ask(rig: &Rig, object: &Value) -> Verdict {
    rig.ask(ID, &json!({"uid": "u", "object": object}).to_string()).await.unwrap()
}

#[tokio::test]
async fn an_opa_policy_judges_by_its_settings() {
    let policy = policy("host-paths", ExecutionMode::Opa);
    let rig = serving(policy.settings(r#"{"allowedPrefixes": ["/var/log"]}"#)).await;
    let pod = |path: &str| json!({"spec": {"volumes": [{"name": "logs", "hostPath": {"path": path}}]}});
    assert!(ask(&rig, &json!({"spec": {}})).await.accepted);
    assert!(ask(&rig, &pod("/var/log/pods")).await.accepted);
    let denied = ask(&rig, &pod("/etc")).await;
    let message = denied.message.unwrap();
    assert_eq!((denied.accepted, &*message), (false, "these volumes mount paths of the node: logs"));
    assert_eq!(denied.code, Some(403));
}

#[tokio::test]
async fn a_gatekeeper_policy_tells_all_violations() {
    let policy = policy("required-probes", ExecutionMode::Gatekeeper);
    let rig = serving(policy.settings(r#"{"probes": ["livenessProbe", "readinessProbe"]}"#)).await;
    let container = |name: &str, probes: Value| {
        let mut container = probes;
        container["name"] = name.into();
        container
    };
    let good = container("good", json!({"livenessProbe": {}, "readinessProbe": {}}));
    assert!(ask(&rig, &json!({"spec": {"containers": [good]}})).await.accepted);
    let denied = ask(&rig, &json!({"spec": {"containers": [container("app", json!({"livenessProbe": {}}))]}})).await;
    assert_eq!(denied.message.as_deref(), Some(r#"container "app" has no readinessProbe"#));
    let both = ask(&rig, &json!({"spec": {"containers": [container("app", json!({}))]}})).await;
    let text = both.message.unwrap();
    assert!(!both.accepted && text.contains("no livenessProbe, ") && text.contains("no readinessProbe"), "{text}");
}

async fn builtin(rig: &Rig, name: &str, arguments: Value) -> Value {
    let verdict = ask(rig, &json!({"builtin": name, "arguments": arguments})).await;
    serde_json::from_str(&verdict.message.unwrap()).unwrap()
}

/// The builtins that the module asks its host for; all others are compiled into it.
fn asked_for(name: &str) -> BTreeMap<String, i32> {
    let engine = Engine::default();
    let module = Module::new(&engine, file(&format!("guests/modules/{name}.wasm"))).unwrap();
    let (mut store, mut linker) = (Store::new(&engine, ()), Linker::new(&engine));
    let memory = module.imports().find_map(|import| match import.ty() {
        ExternType::Memory(memory) => Some(memory),
        _ => None,
    });
    let memory = Memory::new(&mut store, memory.unwrap()).unwrap();
    linker.define(&store, "env", "memory", memory).unwrap();
    linker.define_unknown_imports_as_traps(&module).unwrap();
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let builtins = instance.get_typed_func::<(), i32>(&mut store, "builtins").unwrap().call(&mut store, ()).unwrap();
    let dump = instance.get_typed_func::<i32, i32>(&mut store, "opa_json_dump").unwrap();
    let start = usize::try_from(dump.call(&mut store, builtins).unwrap()).unwrap();
    let json = memory.data(&store)[start..].split(|byte| *byte == 0).next().unwrap();
    serde_json::from_slice(json).unwrap()
}

#[tokio::test]
async fn builtins_of_the_host_answer_the_module() {
    let asked = asked_for("rego-builtins");
    let rig = serving(policy("rego-builtins", ExecutionMode::Opa)).await;
    for (name, arguments, expected) in [
        ("sprintf", json!(["%s has %d of %v", ["a", 2, {"x": [true]}]]), json!(r#"a has 2 of {"x": [true]}"#)),
        ("yaml.unmarshal", json!(["a: [1, x]"]), json!({"a": [1, "x"]})),
        ("time.parse_rfc3339_ns", json!(["1970-01-01T00:00:01Z"]), json!(1_000_000_000)),
        ("time.format", json!([[0, "Europe/Rome", "2006-01-02 15:04 MST"]]), json!("1970-01-01 01:00 CET")),
        ("semver.compare", json!(["1.10.0", "1.9.0"]), json!(1)),
        ("units.parse_bytes", json!(["1.5Gi"]), json!(1_610_612_736)),
        ("regex.split", json!([",\\s*", "a, b,c"]), json!(["a", "b", "c"])),
        ("json.patch", json!([{"a": 1}, [{"op": "add", "path": "/b", "value": 2}]]), json!({"a": 1, "b": 2})),
        ("urlquery.encode", json!(["a b&c"]), json!("a+b%26c")),
        (
            "io.jwt.decode",
            json!(["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.AQI"]),
            json!([{"alg": "HS256"}, {"sub": "a"}, "0102"]),
        ),
        ("opa.runtime", json!([]), json!({})),
    ] {
        assert!(asked.contains_key(name), "the module has its own {name}");
        assert_eq!(builtin(&rig, name, arguments).await, expected, "{name}");
    }
    let random = builtin(&rig, "rand.intn", json!(["a", 1_000_000_007])).await;
    assert_eq!(random[0], random[1], "the same throughout one request");
    assert_ne!(random, builtin(&rig, "rand.intn", json!(["a", 1_000_000_007])).await);
    assert!(builtin(&rig, "time.now_ns", json!([])).await.as_i64().unwrap() > 1_700_000_000_000_000_000);
}

/// While a builtin runs, an instance has two stacks: its own, and the one on which the builtin's arguments and result pass.
#[tokio::test]
async fn as_many_evaluations_as_there_are_instances_may_be_in_a_builtin() {
    let small = Rig::small();
    small.apply(policy("rego-builtins", ExecutionMode::Opa)).await;
    assert_eq!(builtin(&small, "semver.compare", json!(["1.0.0", "1.0.0"])).await, 0);
    let rig = serving(policy("rego-builtins", ExecutionMode::Opa)).await;
    // So large that another thread does the work, and the others come to their builtins meanwhile.
    let text = "x".repeat(100 << 10);
    let all = (0..16).map(|_| builtin(&rig, "crypto.sha256", json!([text])));
    for digest in futures::future::join_all(all).await {
        assert_eq!(digest.as_str().map(str::len), Some(64), "{digest}");
    }
}

#[tokio::test]
async fn a_builtin_that_needs_more_memory_than_there_is_says_so() {
    let rig = Rig::poor(16 << 20);
    rig.apply(policy("rego-builtins", ExecutionMode::Opa)).await;
    assert_eq!(builtin(&rig, "yaml.marshal", json!([{"a": 1}])).await, "a: 1\n");
    let dense = json!([vec![0; 100_000]]);
    let request = json!({"uid": "u", "object": {"builtin": "yaml.marshal", "arguments": dense}}).to_string();
    let error = rig.ask(ID, &request).await.expect_err("an error");
    assert_eq!(error.reason, Reason::Overloaded, "{}", error.text);
}

#[tokio::test]
async fn what_a_builtin_refuses_rejects_the_request_and_names_it() {
    let rig = serving(policy("rego-builtins", ExecutionMode::Opa)).await;
    let request = json!({"uid": "u", "object": {"builtin": "yaml.unmarshal", "arguments": ["a: [1"]}}).to_string();
    let error = rig.ask(ID, &request).await.expect_err("an error");
    assert_eq!(error.reason, Reason::EvaluationTrapped);
    assert!(error.text.starts_with("internal server error: yaml.unmarshal: it is not YAML: "), "{}", error.text);
    // The next call is not affected.
    assert_eq!(builtin(&rig, "semver.compare", json!(["1.0.0", "1.0.0"])).await, 0);
}

#[tokio::test]
async fn a_loop_in_rego_ends_with_its_deadline() {
    let rig = serving(policy("rego-builtins", ExecutionMode::Opa)).await;
    let request = json!({"uid": "u", "object": {"builtin": "loop", "arguments": []}}).to_string();
    // The loop fills its memory too, within a third of a second on a fast machine.
    let error = rig.ask_within(ID, &request, Duration::from_millis(60)).await.expect_err("an error");
    assert_eq!(error.reason, Reason::EvaluationTimedOut, "{}", error.text);
}

#[tokio::test]
async fn what_rules_trace_is_in_the_log_within_its_share() {
    let module = rego_calling("trace", [&json!("hello"), &Value::Null]);
    let rig = serving(Policy::module(ID, &module, ExecutionMode::Opa)).await;
    let error = rig.ask_within(ID, r#"{"uid":"u","object":{}}"#, Duration::from_secs(1)).await.expect_err("an error");
    assert_eq!(error.reason, Reason::EvaluationTimedOut, "{}", error.text);
    assert!(rig.served(ID).metrics.log_lines_dropped.get() > 0, "it traces thousands of lines");
}

#[tokio::test]
async fn values_of_megabytes_are_refused_before_the_host_reads_them() {
    let rig = serving(policy("rego-builtins", ExecutionMode::Opa)).await;
    let large = "x".repeat(3 << 20);
    let request = json!({"uid": "u", "object": {"builtin": "yaml.unmarshal", "arguments": [large]}}).to_string();
    let error = rig.ask(ID, &request).await.expect_err("an error");
    assert!(error.text.contains("yaml.unmarshal: its values are above 2097152 bytes"), "{}", error.text);
}

#[tokio::test]
async fn missing_builtins_are_named_when_the_policy_is_loaded() {
    let (reason, text) = Rig::start().refusal(policy("rego-missing", ExecutionMode::Opa)).await;
    assert_eq!(
        (reason, &*text),
        (Reason::ModuleUnsupported, "Missing Rego builtins: http.send; policies have no network")
    );
}

#[tokio::test]
async fn the_names_of_builtins_have_a_limit() {
    let text = String::from_utf8(file("guests/wat/opa_recursion.wat")).unwrap();
    for (length, part) in [
        (60 << 10, "Missing Rego builtins: xxx"),
        (64 << 10, "builtins: the names that the module gives are above 65536 bytes"),
    ] {
        let names = format!(r#"\"trace\":7,\"{}\":8"#, "x".repeat(length));
        let module = wat::parse_str(text.replace(r#"\"trace\":7"#, &names)).unwrap();
        let (_, error) = Rig::start().refusal(Policy::module(ID, &module, ExecutionMode::Opa)).await;
        assert!(error.contains(part), "no {part:?} in {error:?}");
    }
}

#[tokio::test]
async fn a_result_of_another_mode_rejects() {
    // A set of violations is not a response to an AdmissionReview, and the other way round.
    for (name, mode, part) in [
        ("required-probes", ExecutionMode::Opa, "cannot interpret OPA policy result"),
        ("host-paths", ExecutionMode::Gatekeeper, "cannot interpret Gatekeeper policy result"),
    ] {
        let rig = serving(policy(name, mode)).await;
        let error = rig.ask(ID, r#"{"uid":"u","object":{}}"#).await.expect_err("an error");
        assert_eq!(error.reason, Reason::ResponseInvalid);
        assert!(error.text.starts_with(&format!("internal server error: {part}")), "{}", error.text);
    }
}

#[tokio::test]
async fn a_policy_that_needs_objects_of_the_cluster_does_not_serve_where_nothing_provides_them() {
    let mut policy = policy("host-paths", ExecutionMode::Opa);
    let pods = ContextAwareResource { api_version: "v1".to_owned(), kind: "Pod".to_owned() };
    policy.last().context_aware_resources.push(pods);
    let (reason, text) = Rig::start().refusal(policy).await;
    assert_eq!(reason, Reason::CapabilityUnavailable);
    assert!(text.contains("contextAwareResources") && text.contains("start it with --broker-socket"), "{text}");
}

#[tokio::test]
async fn a_builtin_inside_a_builtin_ends_the_call() {
    let module = wat::parse_str(String::from_utf8(file("guests/wat/opa_recursion.wat")).unwrap()).unwrap();
    let rig = serving(Policy::module(ID, &module, ExecutionMode::Opa)).await;
    let error = rig.ask(ID, r#"{"uid":"u","object":{}}"#).await.expect_err("an error");
    assert_eq!(error.reason, Reason::EvaluationTrapped);
    assert!(error.text.contains("calls a builtin while another one runs"), "{}", error.text);
}
