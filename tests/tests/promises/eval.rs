//! `portcullis eval`: a verdict without a pod, and an exit status for scripts.

use portcullis_tests::{Folder, Policy};
use serde_json::{Value, json};

use crate::tool::{examples, run, written};

fn eval(policy: &str, request: &str, more: &[&str]) -> (Option<i32>, String) {
    let output = run([&["eval", policy, request], more].concat());
    (output.status.code(), written(&output))
}

fn example(policy: &str, request: &str, more: &[&str]) -> (Option<i32>, String) {
    let path = |name: &str| examples().join(name).display().to_string();
    eval(&path(&format!("{policy}.yaml")), &path(&format!("requests/{request}.json")), more)
}

#[test]
fn promise_eval_tells_admitted_from_rejected() {
    for (policy, request, status, words) in [
        ("no-privileged", "pod-ok", 0, "admitted"),
        ("no-privileged", "pod-privileged", 1, "privileged containers are not allowed: container metrics"),
        ("no-privileged", "deployment-privileged", 1, "privileged containers are not allowed"),
        ("required-labels", "pod-without-labels", 1, "missing labels: app.kubernetes.io/name, team"),
        ("required-labels", "pod-ok", 0, "admitted"),
        ("default-resources", "pod-without-resources", 0, "patch"),
    ] {
        let (code, text) = example(policy, request, &[]);
        assert_eq!(code, Some(status), "{policy} on {request}: {text}");
        assert!(text.contains(words), "{policy} on {request}: no {words:?} in {text}");
    }
}

#[test]
fn promise_eval_speaks_json() {
    let output = run([
        "eval".to_owned(),
        examples().join("no-privileged.yaml").display().to_string(),
        examples().join("requests/pod-privileged.json").display().to_string(),
        "-o".to_owned(),
        "json".to_owned(),
    ]);
    assert_eq!(output.status.code(), Some(1), "{}", written(&output));
    let verdict: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", written(&output)));
    assert!(verdict.to_string().contains("privileged containers are not allowed"), "{verdict}");
}

#[test]
fn promise_eval_says_when_it_could_not_judge() {
    let folder = Folder::empty();
    folder.put(&Policy::cluster("traps").guest("trap_unreachable"));
    folder.put(&Policy::cluster("refuses").example("required-labels").settings(json!({"labels": []})));
    folder.put(&Policy::cluster("absent").module("modules/absent.wasm"));
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    folder.write("request.json", portcullis_tests::Review::pod().bytes());
    folder.write("broken.json", "{");
    folder.write("broken.yaml", "kind: [");
    let policy = |name: &str| folder.policies().join(format!("cluster-{name}.yaml")).display().to_string();
    let file = |name: &str| folder.path(name).display().to_string();
    for (policy, request, words) in [
        (policy("traps"), file("request.json"), "EvaluationTrapped"),
        (policy("refuses"), file("request.json"), "SettingsInvalid"),
        (policy("absent"), file("request.json"), "NotFound"),
        (policy("unknown"), file("request.json"), "cluster-unknown.yaml"),
        (file("broken.yaml"), file("request.json"), "broken.yaml"),
        (policy("denies"), file("broken.json"), "broken.json"),
        (policy("denies"), file("unknown.json"), "unknown.json"),
    ] {
        let (code, text) = eval(&policy, &request, &[]);
        assert_eq!(code, Some(2), "{policy} on {request}: {text}");
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    assert_eq!(eval(&policy("denies"), &file("request.json"), &[]).0, Some(1));
}
