//! The columns of `kubectl get`, and the short names of kinds.

use serde_json::json;

use crate::{cluster, policy};

fn cells(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
#[ignore = "starts a cluster"]
fn policies_have_the_columns_that_one_asks_for_first() {
    let cluster = cluster();
    for (kind, short) in [("Policy", "pol"), ("ClusterPolicy", "cpol")] {
        cluster.apply(&policy(kind, "shown", &json!({ "mode": "warn" })).to_string()).expect("a policy");
        let condition = |name: &str, reason: &str| {
            json!({ "type": name, "status": "True", "reason": reason, "message": "", "observedGeneration": 1,
                    "lastTransitionTime": "2026-01-01T00:00:00Z" })
        };
        let status = json!({ "status": {
            "summary": "2/3",
            "conditions": [condition("Degraded", "RegistryTimeout"), condition("Ready", "Degraded")],
            "lastServed": { "generation": 6, "digest": format!("sha256:{}", "0".repeat(64)) },
        }})
        .to_string();
        let patch = ["patch", short, "shown", "--subresource=status", "--type=merge", "--patch", &status];
        cluster.kubectl(patch).expect("a status");

        let table = cluster.kubectl(["get", short, "shown"]);
        let lines: Vec<_> = table.expect("a table").lines().collect();
        assert_eq!(cells(lines[0]), ["NAME", "READY", "STATUS", "MODE", "AGE"]);
        assert_eq!(cells(lines[1])[..4], ["shown", "2/3", "Degraded", "warn"]);
        let wide = cluster.kubectl(["get", short, "shown", "--output=wide"]);
        let lines: Vec<_> = wide.expect("a wide table").lines().collect();
        assert_eq!(cells(lines[0]), ["NAME", "READY", "STATUS", "MODE", "GENERATION", "REASON", "AGE"]);
        assert_eq!(cells(lines[1])[..6], ["shown", "2/3", "Degraded", "warn", "6", "RegistryTimeout"]);
    }
    let all = cluster.kubectl(["get", "portcullis", "--output=name"]);
    let all = all.expect("everything of Portcullis");
    assert!(all.contains("/shown") && all.contains("clusterpolicy.policies.portcullis.dev/shown"), "{all}");
}

#[test]
#[ignore = "starts a cluster"]
fn reports_have_columns_and_keep_what_a_pod_says() {
    let cluster = cluster();
    let report = json!({
        "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": "ReplicaReport", "metadata": { "name": "pod-a" },
        "spec": {
            "podUID": "u", "node": "node-1", "manifestNumber": 4711, "current": { "9b2c41d2a1f00e17": 7 },
            "digests": { "9b2c41d2a1f00e17": format!("sha256:{}", "0".repeat(64)) },
            "versions": { "loader": "0.1.0", "evaluator": "0.1.0", "reporter": "0.1.0", "engine": "wasmtime 48", "manifestFormat": 1 },
            "deviations": [{ "policyUID": "u2", "generation": 7, "serving": 6, "state": "Previous", "reason": "SettingsInvalid",
                             "retryable": false, "since": "2026-01-01T00:00:00Z", "message": "no" }],
            "deviationsOmitted": 0, "heartbeat": "2026-01-01T00:00:00Z",
        },
    });
    cluster.apply(&report.to_string()).expect("a report");
    let table = cluster.kubectl(["get", "rr"]);
    let lines: Vec<_> = table.expect("a table").lines().collect();
    assert_eq!(cells(lines[0]), ["NAME", "NODE", "MANIFEST", "HEARTBEAT", "AGE"]);
    assert_eq!(cells(lines[1])[..3], ["pod-a", "node-1", "4711"]);
    let stored = cluster.kubectl(["get", "rr", "pod-a", "--output=json"]).json("the report");
    assert_eq!(stored["spec"], report["spec"]);

    let mut many = report.clone();
    many["spec"]["deviations"] = json!(vec![&report["spec"]["deviations"][0]; 501]);
    let said = cluster.apply(&many.to_string());
    assert!(!said.is_ok() && said.stderr.contains("spec.deviations"), "{}", said.stderr);
}
