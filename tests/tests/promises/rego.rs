//! Policies in Rego that OPA has compiled, in a pod and with `portcullis eval`.

use std::fs;

use portcullis_contract::Reason;
use portcullis_tests::{Folder, Pod, Policy, Review, rego};
use serde_json::{Value, json};

use crate::tool::{run, written};

/// A review of a pod with this spec.
fn pod_with(spec: &Value) -> Review {
    Review::pod().with("/object/spec", spec.clone())
}

#[test]
fn promise_policies_in_rego_of_both_modes_serve_and_change_live() {
    let folder = Folder::with_canary();
    let probes = Policy::cluster("probes").bytes(rego("required-probes"));
    folder.put(&probes.clone().settings(json!({"probes": ["livenessProbe"]})));
    folder.put(&Policy::cluster("paths").bytes(rego("host-paths")).settings(json!({"allowedPrefixes": ["/var/log"]})));
    let pod = Pod::on(&folder).start();
    pod.assert_recovered("cluster/probes", 1);
    pod.assert_recovered("cluster/paths", 1);

    let review =
        pod_with(&json!({"containers": [{"name": "app"}], "volumes": [{"name": "v", "hostPath": {"path": "/etc"}}]}));
    let verdict = pod.ask("cluster/probes", &review).verdict();
    assert_eq!((verdict.allowed, &*verdict.message), (false, r#"container "app" has no livenessProbe"#));
    let verdict = pod.ask("cluster/paths", &review).verdict();
    assert_eq!(verdict.message, "these volumes mount paths of the node: v");

    folder.put(&probes.settings(json!({"probes": []})));
    pod.wait_current("cluster/probes", 2);
    assert!(pod.ask("cluster/probes", &review).verdict().allowed);
}

#[test]
fn promise_builtins_that_the_host_does_not_have_are_named_in_the_status() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("sends").bytes(rego("rego-missing")));
    let pod = Pod::on(&folder).start();
    let failure = pod.assert_unserved("cluster/sends", Reason::ModuleUnsupported);
    assert_eq!(failure.message, "Missing Rego builtins: http.send; policies have no network");
    // A module without metadata is taken for a waPC guest, which this is not.
    let mut bare = rego("host-paths");
    let section = bare.windows(22).rposition(|window| window == b"io.kubewarden.metadata").expect("it has metadata");
    bare[section] = b'x';
    folder.put(&Policy::cluster("bare").bytes(bare));
    pod.assert_unserved("cluster/bare", Reason::ModuleUnsupported);
}

#[test]
fn promise_rego_is_tried_offline() {
    let folder = Folder::empty();
    fs::write(folder.policies().join("host-paths.wasm"), rego("host-paths")).expect("writes");
    let policy = json!({
        "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": {"name": "paths"},
        "spec": {"module": "host-paths.wasm", "settings": {"allowedPrefixes": []},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]},
    });
    let [policy_file, pod_file] = ["policy.json", "pod.json"].map(|name| folder.policies().join(name));
    fs::write(&policy_file, policy.to_string()).expect("writes");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
        "spec": {"volumes": [{"name": "v", "hostPath": {"path": "/etc"}}]}});
    fs::write(&pod_file, pod.to_string()).expect("writes");
    let output = run(["eval".as_ref(), policy_file.as_os_str(), pod_file.as_os_str()]);
    let text = written(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("these volumes mount paths of the node: v"), "{text}");
}
