//! The limits of the status, and its subresource.

use serde_json::{Value, json};

use crate::{cluster, policy};

fn patch_status(name: &str, status: &Value) -> portcullis_e2e::Output {
    let patch = json!({ "status": status }).to_string();
    cluster().kubectl(["patch", "cpol", name, "--subresource=status", "--type=merge", "--patch", &patch])
}

fn condition(name: &str, message: &str) -> Value {
    json!({ "type": name, "status": "True", "reason": "Active", "message": message,
            "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z" })
}

fn impact(examples: usize, example: &str) -> Value {
    json!({ "generation": 1, "checkedAt": "2026-01-01T00:00:00Z", "evaluated": 340, "total": 340, "denied": 12, "changed": 0, "failed": 0,
            "namespaces": 3, "examples": vec![example; examples], "sample": false, "complete": true })
}

fn replica(name: &str) -> Value {
    json!({ "pod": name, "podUID": "u", "state": "Current", "generation": 1 })
}

#[test]
#[ignore = "starts a cluster"]
fn a_status_has_limits() {
    cluster().apply(&policy("ClusterPolicy", "limits", &json!({})).to_string()).expect("a policy");
    let entry = json!({ "generation": 1, "time": "2026-01-01T00:00:00Z", "served": true });
    let full = json!({
        "observedGeneration": 1,
        "conditions": [condition("Ready", &"m".repeat(1024)), condition("OfAnotherProgram", "")],
        "replicas": (0..16).map(|number| replica(&format!("pod-{number}"))).collect::<Vec<_>>(),
        "history": vec![&entry; 10],
        "resolved": { "generation": 1, "digest": format!("sha256:{}", "0".repeat(64)),
                      "members": { "a": format!("sha256:{}", "1".repeat(64)) } },
        "impact": impact(5, &"n".repeat(320)),
    });
    patch_status("limits", &full).expect("a full status");
    let stored = cluster().kubectl(["get", "cpol", "limits", "--output=json"]).json("the policy");
    for (part, expected) in full.as_object().unwrap() {
        assert_eq!(&stored["status"][part], expected);
    }

    let refused = [
        (json!({ "conditions": [condition("Ready", &"m".repeat(1025))] }), "status.conditions[0].message"),
        (json!({ "conditions": [condition("Ready", ""), condition("Ready", "")] }), "Duplicate value"),
        (json!({ "conditions": [condition("", "")] }), "status.conditions[0].type"),
        (json!({ "replicas": (0..17).map(|n| replica(&n.to_string())).collect::<Vec<_>>() }), "status.replicas"),
        (json!({ "replicas": [replica("a"), replica("a")] }), "Duplicate value"),
        (json!({ "history": vec![&entry; 11] }), "status.history"),
        (json!({ "resolved": { "generation": 1, "digest": "sha256:0" } }), "status.resolved.digest"),
        (json!({ "impact": impact(6, "a/b") }), "status.impact.examples"),
        (json!({ "impact": impact(1, &"n".repeat(321)) }), "status.impact.examples[0]"),
        (json!({ "impact": { "evaluated": null } }), "status.impact.evaluated"),
    ];
    for (status, words) in refused {
        let said = patch_status("limits", &status);
        assert!(!said.is_ok() && said.stderr.contains(words), "{words}: {said:?}");
    }
}

#[test]
#[ignore = "starts a cluster"]
fn who_writes_a_policy_writes_no_status() {
    let mut object = policy("ClusterPolicy", "boasts", &json!({}));
    object["status"] = json!({ "summary": "9/9" });
    cluster().apply(&object.to_string()).expect("a policy");
    let stored = cluster().kubectl(["get", "cpol", "boasts", "--output=json"]).json("the policy");
    assert_eq!(stored["status"], json!({ "observedGeneration": -1 }), "nobody has looked at it");
    assert_eq!(stored["metadata"]["generation"], 1);

    patch_status("boasts", &json!({ "summary": "1/1" })).expect("a status");
    let stored = cluster().kubectl(["get", "cpol", "boasts", "--output=json"]).json("the policy");
    assert_eq!(stored["metadata"]["generation"], 1, "a status makes no generation");
}

/// The parts of a status have different writers. Each owns its conditions, and does not remove those of others.
#[test]
#[ignore = "starts a cluster"]
fn two_writers_own_a_condition_each() {
    cluster().apply(&policy("ClusterPolicy", "shared", &json!({})).to_string()).expect("a policy");
    let kubeconfig = cluster().kubeconfig();
    for (manager, name) in [("portcullis-controller", "WebhookConfigured"), ("portcullis-status", "Ready")] {
        let object = json!({
            "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": { "name": "shared" },
            "status": { "conditions": [condition(name, "")] },
        });
        let manager = format!("--field-manager={manager}");
        let args = ["apply", "--server-side", "--subresource=status", &manager, "--filename=-"];
        cluster().kubectl_as(&kubeconfig, args, &object.to_string()).expect("a condition");
    }
    let types = ["get", "cpol", "shared", "--output=jsonpath={.status.conditions[*].type}"];
    assert_eq!(cluster().kubectl(types).expect("the types"), "WebhookConfigured Ready");
}
