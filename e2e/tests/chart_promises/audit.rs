//! Existing objects are checked before a policy is stored, and audited afterwards by the leading pod of the release.

use std::collections::BTreeSet;

use portcullis_e2e::{Policy, Release, eventually};
use serde_json::{Value, json};

use crate::stage::{REPLICAS, Stage, names};

/// The number of objects, all of which the policies reject. Writing their reports takes at least six seconds.
const OBJECTS: usize = 120;
/// The label of these objects, because Kubernetes puts a ConfigMap of its own into each namespace.
const COUNTED: &str = "counted";
/// The number of attempts to delete the pod in the middle of a scan.
const ROUNDS: usize = 10;

/// A policy that rejects the objects.
fn labels(release: &Release<'_>, name: &str) -> Policy {
    let policy = release.cluster_policy(name).example("required-labels").on(&["configmaps"]);
    let selector = json!({ "matchLabels": { COUNTED: "yes" } });
    policy.field("settings", json!({ "labels": ["team"] })).field("objectSelector", selector)
}

fn fill(release: &Release<'_>, namespace: &str) {
    for number in 0..OBJECTS {
        let metadata = json!({ "name": format!("object-{number:03}"), "labels": { COUNTED: "yes" } });
        let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata });
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        release.api().create(&path, &object).expect("an API server answers").expect("a ConfigMap");
    }
}

/// The names of the objects that exist.
fn objects(release: &Release<'_>, namespace: &str) -> BTreeSet<String> {
    let path = format!("/api/v1/namespaces/{namespace}/configmaps?labelSelector={COUNTED}%3Dyes");
    names(&release.api().list(&path)).into_iter().collect()
}

/// The names of the objects that a policy rejects, by the reports.
fn reported(release: &Release<'_>, namespace: &str, policy: &Policy) -> BTreeSet<String> {
    let reports = release.api().list(&format!("/apis/openreports.io/v1alpha1/namespaces/{namespace}/reports"));
    let id = format!("cluster/{}", policy.name());
    let is_fail = |result: &Value| result["policy"] == id && result["result"] == "fail";
    let about = reports.iter().filter(|report| report["results"].as_array().is_some_and(|all| all.iter().any(is_fail)));
    about.map(|report| report["scope"]["name"].as_str().unwrap().to_owned()).collect()
}

/// The name of the pod whose reporter leads, if there is one.
fn leader(release: &Release<'_>) -> Option<String> {
    release.lease_holder("reporter").filter(|holder| names(&release.pods()).contains(holder))
}

#[test]
#[ignore = "starts a cluster"]
fn fault_c05_the_pod_that_leads_is_deleted_in_the_middle_of_a_scan_and_the_reports_are_complete() {
    let settings = json!({
        "audit": { "enabled": true },
        "policyChecks": { "mode": "deny", "impact": true },
        "rbac": { "auditReads": [{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"] }] },
        // A debug build, too, must have counted the objects before the check times out.
        "evaluator": { "extraArgs": ["--audit-share=100"] },
    });
    let stage = Stage::with("audit", &settings);
    let (release, shop) = (stage.release(), stage.namespace());
    release.site().install_open_reports();
    fill(release, &shop);
    let canary = release.own_canary();

    // Before the policy is stored, the check counts the objects.
    let words =
        format!("{OBJECTS} of {OBJECTS} configmaps in 1 namespace would be denied, for instance {shop}/object-");
    let manifest = labels(release, "audit-tried").manifest(release.source()).to_string();
    eventually(&format!("the figures {words:?}"), || {
        let tried = release.site().kubectl_with(["apply", "--dry-run=server", "--filename=-"], &manifest);
        (tried.is_ok() && tried.stderr.contains(&words)).then_some(())
    });

    let is_proven = (0..ROUNDS).any(|round| {
        let policy = labels(release, &format!("audit-{round}"));
        let audit = || release.api().find(&policy.path()).expect("the policy")["status"]["audit"].clone();
        let before = eventually("a reporter that leads", || leader(release));
        release.apply_ready(std::slice::from_ref(&policy));
        eventually("the middle of a scan", || (!reported(release, &shop, &policy).is_empty()).then_some(()));
        release.kubectl(["delete", "pod", &before, "--wait=false"]).expect("the deletion of a pod");
        eventually("another reporter that leads", || leader(release).filter(|name| *name != before));
        // On a busy machine, the scan may be over by now.
        let is_proof = audit().is_null();

        let all = objects(release, &shop);
        policy.wait_until(&release.api(), "figures that are right", |object| {
            let audit = &object["status"]["audit"];
            (&audit["checked"], &audit["violations"], &audit["errors"])
                == (&json!(all.len()), &json!(all.len()), &json!(0))
        });
        eventually("reports that are right", || (reported(release, &shop, &policy) == all).then_some(()));
        assert_eq!(all.len(), OBJECTS);
        release.wait_for_replicas(REPLICAS);
        is_proof
    });
    canary.end();
    assert!(is_proven, "in none of {ROUNDS} rounds the pod was deleted in the middle of a scan");
}
