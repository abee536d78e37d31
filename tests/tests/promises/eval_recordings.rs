//! `portcullis eval` with what a policy asks its host for, from a recording or into one.

use std::fs;

use portcullis_tests::{Folder, rego};
use serde_json::{Value, json};

use crate::eval::eval;
use crate::tool::examples;

/// A call of the guest `host-capabilities`, in the form of its settings.
pub(crate) fn raw(capability: &str, payload: &Value) -> Value {
    let (namespace, operation) = capability.split_once('/').expect("a path");
    json!({"raw": {"namespace": namespace, "operation": operation, "payload": payload}})
}

#[test]
fn promise_eval_replays_a_recording_of_kwctl() {
    let folder = Folder::empty();
    // The format of kwctl 1.36.
    let recorded = r#"
- type: Exchange
  request: |
    !KubernetesGetResource
    api_version: v1
    kind: Namespace
    name: team
    namespace: null
    disable_cache: false
  response:
    type: Success
    payload: '{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"team"}}'
"#;
    folder.write("session.yml", recorded);
    let get =
        json!({"api_version": "v1", "kind": "Namespace", "name": "team", "namespace": null, "disable_cache": false});
    let calls = json!({"calls": [raw("kubernetes/get_resource", &get), {"lookupHost": "example.com"}]});
    let module = examples().join("modules/host-capabilities.wasm").display().to_string();
    let request = examples().join("requests/pod-ok.json").display().to_string();
    let (settings, session) = (calls.to_string(), folder.path("session.yml").display().to_string());
    let ask = |more: &[&str]| {
        let base =
            ["--settings-json", &settings, "--replay-host-capabilities-interactions", &session, "--output", "json"];
        eval(&module, &request, &[&base, more].concat())
    };
    // Without a grant, the recording is not used.
    let (code, text) = ask(&[]);
    assert!(code == Some(1) && text.contains("has not been granted access to the 'kubernetes/get_resource'"), "{text}");
    let (code, text) = ask(&["--host-capability", "net/*", "--allow-context-aware"]);
    assert_eq!(code, Some(1), "{text}");
    // The metadata does not declare this kind.
    assert!(text.contains("Policy has not been granted access to Kubernetes v1/Namespace resources"), "{text}");
    let manifest = json!({
        "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "asks"},
        "spec": {
            "module": module, "settings": calls, "hostCapabilities": ["kubernetes/*", "net/*"],
            "contextAwareResources": [{"apiVersion": "v1", "kind": "Namespace"}],
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
        },
    });
    folder.write("asks.json", manifest.to_string());
    let policy = folder.path("asks.json").display().to_string();
    let modules = examples().join("modules").display().to_string();
    let more = ["--module-root", &modules, "--replay-host-capabilities-interactions", &session];
    let (code, text) = eval(&policy, &request, &more);
    assert_eq!(code, Some(1), "{text}");
    for words in [
        r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"team"}}"#,
        "the list of recorded responses is empty",
    ] {
        assert!(text.contains(words), "{words} is not in {text}");
    }
}

#[test]
fn promise_eval_records_what_it_can_replay() {
    let folder = Folder::empty();
    let calls = json!({"calls": [{"lookupHost": "localhost"}]}).to_string();
    let module = examples().join("modules/host-capabilities.wasm").display().to_string();
    let request = examples().join("requests/pod-ok.json").display().to_string();
    let session = folder.path("session.yml").display().to_string();
    let ask = |flag: &str| {
        eval(&module, &request, &["--settings-json", &calls, "--host-capability", "net/*", flag, &session])
    };
    let (code, recorded) = ask("--record-host-capabilities-interactions");
    assert!(code == Some(1) && recorded.contains("127.0.0.1"), "{recorded}");
    let text = fs::read_to_string(&session).expect("it was written");
    assert!(text.contains("!DNSLookupHost") && text.contains("host: localhost"), "{text}");
    let edited = text.replace("127.0.0.1", "192.0.2.1");
    fs::write(&session, edited).expect("writes");
    let (code, replayed) = ask("--replay-host-capabilities-interactions");
    assert!(code == Some(1) && replayed.contains("192.0.2.1"), "{replayed}");
}

#[test]
fn promise_eval_gives_rules_in_rego_the_objects_of_a_recording() {
    let folder = Folder::empty();
    let request = examples().join("requests/pod-ok.json").display().to_string();
    let session = folder.path("session.yml").display().to_string();
    let ask = |module: &str, form: &str, objects: &Value| {
        let kinds = json!([{"apiVersion": "v1", "kind": "LimitRange"}, {"apiVersion": "v1", "kind": "Namespace"}]);
        let call = json!({
            "type": "Exchange",
            "request": format!("!ContextObjects\nform: {form}\nkinds: {kinds}\n"),
            "response": {"type": "Success", "payload": objects.to_string()},
        });
        folder.write("session.yml", json!([call]).to_string());
        folder.write("policy.wasm", rego(module));
        let module = folder.path("policy.wasm").display().to_string();
        eval(&module, &request, &["--allow-context-aware", "--replay-host-capabilities-interactions", &session])
    };
    let namespaces = json!({"default": {"metadata": {"name": "default"}}});
    let objects = json!({"limitranges": {"other": {"a": {}}}, "namespaces": namespaces});
    let (code, text) = ask("limits-required", "opa", &objects);
    assert!(code == Some(1) && text.contains("namespace default has no LimitRange"), "{text}");
    let objects = json!({"limitranges": {"default": {"a": {}}}, "namespaces": namespaces});
    assert_eq!(ask("limits-required", "opa", &objects).0, Some(0));
    let range = |namespace: &str| json!({namespace: {"v1": {"LimitRange": {"shop": {}}}}});
    let inventory = |namespace: &str| json!({"cluster": {"v1": {"Namespace": {}}}, "namespace": range(namespace)});
    let (code, text) = ask("unique-names", "gatekeeper", &inventory("other"));
    assert!(code == Some(1) && text.contains("LimitRange other/shop has this name"), "{text}");
    assert_eq!(ask("unique-names", "gatekeeper", &inventory("default")).0, Some(0));
    // The recorded call of another policy does not count, and without objects the policy does not judge.
    let (code, text) = ask("unique-names", "opa", &inventory("default"));
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains("objects of the cluster are missing: the policy asks for !ContextObjects form: gatekeeper"),
        "{text}"
    );
}
