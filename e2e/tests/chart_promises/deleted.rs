//! Policies are deleted under load.

use portcullis_e2e::eventually;
use serde_json::json;

use crate::stage::{Stage, assert_all, assert_denied};

#[test]
#[ignore = "starts a cluster"]
fn fault_e13_a_policy_that_is_deleted_under_load_harms_no_call() {
    let stage = Stage::new("deleted");
    let (release, shop) = (stage.release(), stage.namespace());
    // One of the deleted policies shares a webhook with one that stays; the other has a webhook of its own, which is deleted too.
    let (stays, goes) = (release.cluster_policy("deleted-stays"), release.cluster_policy("deleted-goes"));
    let goes = goes.example("no-privileged");
    let alone = release.cluster_policy("deleted-alone").field("failurePolicy", "Ignore");
    release.apply_ready(&[stays, goes.clone(), alone.clone()]);
    let privileged = json!({ "spec": { "containers": [
        { "name": "main", "image": "example.invalid/none", "securityContext": { "privileged": true } },
    ] } });
    assert_denied(&release.create_pod(&shop, "one", &privileged), "policy cluster/deleted-goes: ");
    let webhooks = release.webhooks().len();
    let before = failed_calls(&stage);

    let load = release.load(&shop, 50);
    for policy in [&goes, &alone] {
        release.site().kubectl(["delete", "--timeout=180s", &policy.reference()]).expect("a deletion");
    }
    eventually("the end of a webhook", || (release.webhooks().len() < webhooks).then_some(()));
    release.create_pod(&shop, "two", &privileged).expect("a pod that nobody minds any more");
    assert_all(&load.end(), 201);
    // With Ignore, failed calls do not show in the answers.
    assert_eq!(failed_calls(&stage), before);
}

/// The metrics of API servers for calls of webhooks that did not get 200, and for calls that failed open.
fn failed_calls(stage: &Stage) -> Vec<String> {
    let metrics = stage.release().site().kubectl(["get", "--raw", "/metrics"]);
    let metrics = metrics.expect("the metrics");
    let counts = "apiserver_admission_webhook_request_total{";
    let passed_over = "apiserver_admission_webhook_fail_open_count{";
    assert!(metrics.contains(counts), "an API server counts calls of webhooks");
    let is_failure =
        |line: &&str| line.starts_with(passed_over) || (line.starts_with(counts) && !line.contains("code=\"200\""));
    // The controller's markers are always denied.
    let is_marker = |line: &&str| line.contains("name=\"marker.");
    metrics.lines().filter(|line| is_failure(line) && !is_marker(line)).map(str::to_owned).collect()
}
