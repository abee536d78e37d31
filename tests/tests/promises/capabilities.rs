//! Guests that call their host get the answers from a recording in the format of kwctl.

use std::fs;
use std::process::Output;

use portcullis_contract::Digest;
use portcullis_tests::{Authority, Folder, SdkGuest};
use serde_json::{Value, json};

use crate::eval_recordings::raw;
use crate::tool::{examples, run, written};

/// A recorded call and its answer.
fn exchange(kind: &str, request: &Value, payload: &str) -> Value {
    json!({
        "type": "Exchange",
        "request": format!("!{kind}\n{request}\n"),
        "response": {"type": "Success", "payload": payload},
    })
}

/// The answers that a guest gets for these calls from a recording.
fn answers(guest: &SdkGuest, calls: &Value, recording: &Value) -> Vec<String> {
    let folder = Folder::empty();
    let kinds = json!([{"apiVersion": "v1", "kind": "Namespace"}, {"apiVersion": "v1", "kind": "ConfigMap"}]);
    let policy = guest.policy("reads").settings(json!({ "calls": calls })).timeout(30);
    folder.put(&policy.spec("hostCapabilities", json!(["kubernetes/*"])).spec("contextAwareResources", kinds));
    folder.write("session.yml", recording.to_string());
    let manifest = folder.path(&format!("policies/cluster-reads-{}.yaml", guest.sdk)).display().to_string();
    let request = examples().join("requests/pod-ok.json").display().to_string();
    let session = folder.path("session.yml").display().to_string();
    let replay = "--replay-host-capabilities-interactions";
    answers_in(&run(["eval", &manifest, &request, replay, &session, "--output", "json"]))
}

/// The answers in the verdict of a guest that denies with them.
fn answers_in(output: &Output) -> Vec<String> {
    assert_eq!(output.status.code(), Some(1), "{}", written(output));
    let verdict: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", written(output)));
    let annotations = &verdict["response"]["auditAnnotations"];
    let answers = (0..).map_while(|number| annotations[format!("call-{number}")].as_str());
    answers.map(str::to_owned).collect()
}

#[test]
fn promise_guests_read_objects_of_the_cluster_by_each_sdk() {
    let get = json!({"api_version": "v1", "kind": "Namespace", "name": "team", "disable_cache": true});
    let selected = json!({
        "api_version": "v1", "kind": "Namespace", "label_selector": "team=a", "field_masks": ["metadata.name"],
    });
    let of_one = json!({"api_version": "v1", "kind": "ConfigMap", "namespace": "team", "field_selector": null});
    let review = json!({
        "subject_access_review": {
            "user": "alice", "groups": ["team"],
            "resource_attributes": {"namespace": "team", "resource": "secrets", "verb": "get"},
        },
        "disable_cache": false,
    });
    // The operation, its kind in a recording, the request, and the answer.
    let cases = [
        ("get_resource", "KubernetesGetResource", &get, r#"{"kind":"Namespace","metadata":{"name":"team"}}"#),
        ("list_resources_all", "KubernetesListResourceAll", &selected, r#"{"kind":"NamespaceList","items":[]}"#),
        (
            "list_resources_by_namespace",
            "KubernetesListResourceNamespace",
            &of_one,
            r#"{"kind":"ConfigMapList","items":[{"metadata":{"name":"a"}}]}"#,
        ),
        ("can_i", "KubernetesCanI", &review, r#"{"allowed":true,"reason":"of the team"}"#),
    ];
    let mut calls: Vec<_> =
        cases.iter().map(|(operation, _, asked, _)| raw(&format!("kubernetes/{operation}"), asked)).collect();
    let recorded = cases.iter().map(|(_, kind, asked, answer)| match *kind {
        "KubernetesCanI" => exchange(kind, &json!({"request": asked["subject_access_review"]}), answer),
        _ => exchange(kind, asked, answer),
    });
    let recording: Value = recorded.collect();
    // This call was not recorded.
    calls.push(raw("kubernetes/get_resource", &get));
    let calls = Value::from(calls);
    for guest in SdkGuest::all() {
        let mut answers = answers(&guest, &calls, &recording);
        let refused = answers.pop().expect("as many answers as calls");
        assert_eq!(answers, cases.map(|(_, _, _, answer)| answer), "{}", guest.sdk);
        assert!(refused.starts_with("error: "), "{}: {refused}", guest.sdk);
        assert!(refused.contains("the list of recorded responses is empty"), "{}: {refused}", guest.sdk);
    }
}

/// A guest that is a WASI command reads answers from its standard input, which gets longer with each call, into a buffer that has to grow.
#[test]
fn promise_a_guest_in_go_reads_answers_larger_than_its_buffer_whole() {
    let Some(guest) = SdkGuest::go() else { return };
    let get =
        json!({"api_version": "v1", "kind": "ConfigMap", "name": "large", "namespace": "team", "disable_cache": false});
    let all = json!({"api_version": "v1", "kind": "Namespace", "label_selector": "team=a"});
    let of_one = json!({"api_version": "v1", "kind": "ConfigMap", "namespace": "team"});
    let large = json!({"kind": "ConfigMap", "data": {"text": "x".repeat(1 << 20)}}).to_string();
    let small = r#"{"kind":"NamespaceList","items":[]}"#;
    let calls = json!([{"getResource": get}, {"listAll": all}, {"getResource": get}, {"listByNamespace": of_one}]);
    let recording = json!([
        exchange("KubernetesGetResource", &get, &large),
        exchange("KubernetesListResourceAll", &all, small),
        exchange("KubernetesGetResource", &get, &large),
        exchange("KubernetesListResourceNamespace", &of_one, small),
    ]);
    let shown = format!("{} bytes, {}", large.len(), Digest::of(large.as_bytes()));
    assert_eq!(answers(&guest, &calls, &recording), [shown.as_str(), small, shown.as_str(), small]);
}

/// The evaluator answers these calls itself, unless there is a recording.
#[test]
fn promise_eval_replays_and_records_questions_about_certificates() {
    let folder = Folder::empty();
    let (module, request) =
        (examples().join("modules/host-capabilities.wasm"), examples().join("requests/pod-ok.json"));
    let (module, request) = (module.display().to_string(), request.display().to_string());
    let session = folder.path("session.yml").display().to_string();
    let ask = |calls: &Value, flag: &str| {
        let settings = json!({ "calls": calls }).to_string();
        let granted = ["--host-capability", "net/*", "--host-capability", "crypto/*"];
        let base = ["eval", &module, &request, "--settings-json", &settings, flag, &session, "--output", "json"];
        answers_in(&run([&base[..], &granted].concat()))
    };
    let (record, replay) = ("--record-host-capabilities-interactions", "--replay-host-capabilities-interactions");

    // The format of kwctl 1.36. These are not valid certificates, so the answer must come from the recording.
    let recorded = r#"
- type: Exchange
  request: |
    !DNSLookupHost
    host: web.example
  response:
    type: Success
    payload: '{"ips":["192.0.2.7"]}'
- type: Exchange
  request: |
    !CryptoIsCertificateTrusted
    request:
      cert:
        encoding: Pem
        data:
        - 45
        - 45
      cert_chain:
      - encoding: Der
        data:
        - 48
      not_after: null
  response:
    type: Success
    payload: '{"trusted":true,"reason":""}'
"#;
    folder.write("session.yml", recorded);
    let chain = json!([{"encoding": "Der", "data": [48]}]);
    let question = json!({"cert": {"encoding": "Pem", "data": [45, 45]}, "cert_chain": chain, "not_after": null});
    let (look_up, question) =
        (json!({"lookupHost": "web.example"}), raw("crypto/v1/is_certificate_trusted", &question));
    let answers = ask(&json!([look_up, question]), replay);
    assert_eq!(answers, [r#"{"ips":["192.0.2.7"]}"#, r#"{"trusted":true,"reason":""}"#]);
    // Recorded calls must come in the recorded order.
    let answers = ask(&json!([question]), replay);
    assert!(answers[0].starts_with("error: ") && answers[0].contains("!DNSLookupHost"), "{answers:?}");

    let authority = Authority::shared();
    let certificate = authority.identity(&["web.example"]).certificate;
    let calls = json!([{"verifyCertificate": {"certificate": certificate, "chain": [authority.pem]}}]);
    assert_eq!(ask(&calls, record), [r#""True""#]);
    let text = fs::read_to_string(&session).expect("it was written");
    assert!(text.contains("!CryptoIsCertificateTrusted"), "{text}");
    assert_eq!(ask(&calls, replay), [r#""True""#]);
    fs::write(&session, text.replace(":true,", ":false,")).expect("writes");
    assert_eq!(ask(&calls, replay), [r#"{"False":"Certificate not trusted: "}"#]);
}
