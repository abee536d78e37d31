//! `portcullis migrate kubewarden` prints a policy that judges like the one of Kubewarden.

use std::fs;

use portcullis_tests::Folder;
use serde_json::{Value, json};

use crate::tool::{examples, run, written};

/// Manifests of Kubewarden: a policy with this module, a policy server, and a policy group that cannot be migrated.
fn manifests(module: &str) -> String {
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]);
    let policy = json!({
        "apiVersion": "policies.kubewarden.io/v1", "kind": "ClusterAdmissionPolicy", "metadata": {"name": "owners"},
        "spec": {"module": module, "mutating": false, "rules": rules, "settings": {"labels": ["owner"]}, "backgroundAudit": true},
        "status": {"policyStatus": "active"},
    });
    let server = json!({
        "apiVersion": "policies.kubewarden.io/v1", "kind": "PolicyServer", "metadata": {"name": "default"},
        "spec": {"image": "ghcr.io/kubewarden/policy-server:v1.36.0", "replicas": 2},
    });
    let group = json!({
        "apiVersion": "policies.kubewarden.io/v1", "kind": "ClusterAdmissionPolicyGroup", "metadata": {"name": "both"},
        "spec": {"expression": "a() && b()", "policies": {}},
    });
    format!("{policy}\n---\n{server}\n---\n{group}\n")
}

#[test]
fn promise_a_migrated_policy_judges_as_it_did() {
    let folder = Folder::empty();
    let module = examples().join("modules/required-labels.wasm").canonicalize().expect("is there");
    fs::write(folder.path("theirs.yaml"), manifests(&format!("file://{}", module.display()))).expect("writes");
    let theirs = folder.path("theirs.yaml").display().to_string();

    let output = run(["migrate", "kubewarden", &theirs]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "a group without rules is left out: {}", written(&output));
    for line in [
        "ClusterAdmissionPolicy/owners: spec.settings kept\n",
        "ClusterAdmissionPolicy/owners: spec.backgroundAudit dropped: ",
        "PolicyServer/default: spec.replicas is now server.replicas\n",
        "ClusterAdmissionPolicyGroup/both: left out: the policy would be refused: ",
    ] {
        assert!(told.contains(line), "no {line:?} in {told}");
    }
    fs::write(folder.path("ours.yaml"), &output.stdout).expect("writes");
    let ours = folder.path("ours.yaml").display().to_string();
    let pod = examples().join("requests/pod-ok.json").display().to_string();
    let root = examples().join("modules").display().to_string();
    let judged = run(["eval", &ours, &pod, "--module-root", &root]);
    assert_eq!(judged.status.code(), Some(1), "{}", written(&judged));
    assert!(written(&judged).contains("missing labels: owner"), "{}", written(&judged));

    let values = run(["migrate", "kubewarden", &theirs, "--values"]);
    assert_eq!(String::from_utf8_lossy(&values.stdout), "policyServer: default\nserver:\n  replicas: 2\n");
    let all = run(["migrate", "kubewarden", &theirs, "-o", "json"]);
    let all: Value = serde_json::from_slice(&all.stdout).expect("JSON");
    assert_eq!(all["policies"][0]["metadata"]["name"], "owners");
    assert_eq!(
        all["fields"][0],
        json!({"object": "ClusterAdmissionPolicy/owners", "field": "spec.module", "became": "kept"})
    );
    assert_eq!(all["left"][0]["object"], "ClusterAdmissionPolicyGroup/both");
}

#[test]
fn promise_a_file_that_cannot_be_read_is_not_migrated_in_silence() {
    let folder = Folder::empty();
    folder.write("theirs.yaml", manifests("registry://a.example/b:v1").split("---\n").next().unwrap_or_default());
    let path = folder.path("").display().to_string();
    assert_eq!(run(["migrate", "kubewarden", &path]).status.code(), Some(0));
    // Its bytes cannot be read, whatever rights the user has.
    std::os::unix::fs::symlink("/proc/self/mem", folder.path("odd.yaml")).expect("links");
    let output = run(["migrate", "kubewarden", &path]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{}", written(&output));
    assert!(told.contains("odd.yaml: left out: failed to read "), "{told}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("name: owners"), "{}", written(&output));
    let output = run(["migrate", "kubewarden", &path, "-o", "json"]);
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), all["left"].as_array().map(Vec::len)), (Some(1), Some(1)), "{all}");
}

#[test]
fn promise_what_is_no_manifest_is_not_migrated() {
    let folder = Folder::empty();
    folder.write("broken.yaml", "a: [");
    folder.write("empty.yaml", "");
    folder.write("list.yaml", "apiVersion: v1\nkind: List\nitems: []\n");
    for (name, words) in [
        ("broken.yaml", "broken.yaml"),
        ("absent.yaml", "absent.yaml"),
        ("empty.yaml", "no manifests of Kubewarden in "),
        ("list.yaml", "no manifests of Kubewarden in "),
    ] {
        let output = run(["migrate", "kubewarden", &folder.path(name).display().to_string()]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && told.contains(words), "{name}: {}", written(&output));
        assert!(output.stdout.is_empty(), "{name}: {}", written(&output));
    }
}
