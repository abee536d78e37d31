//! The whole cluster loses power.

use portcullis_e2e::{Container, Release, condition, eventually, eventually_within};
use serde_json::{Value, json};
use std::time::Duration;

use crate::stage::{CONTROLLERS, REPLICAS, Stage, assert_denied, is_about, names, own_cluster};

/// The running evaluators and controllers.
fn running(release: &Release<'_>) -> Vec<Container> {
    let of = |pods: Vec<Value>, program| pods.iter().filter_map(|pod| Container::of(pod, program)).collect::<Vec<_>>();
    [of(release.pods(), "evaluator"), of(release.controllers(), "controller")].concat()
}

#[test]
#[ignore = "starts a cluster"]
fn fault_k11_a_cluster_with_strict_policies_starts_from_cold() {
    let stage = Stage::new("cold-start");
    let Some(cluster) = own_cluster("fault_k11") else { return };
    let (release, shop) = (stage.release(), stage.namespace());
    release.without_canary("no API server and no pod has power");
    // The webhook matches all objects in all namespaces, so they are refused while no replica answers.
    let all = json!([{ "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"] }]);
    let policy = release.cluster_policy("cold-start").denying("strict").field("rules", all);
    let policy = policy.with(&json!({ "spec": { "namespaceSelector": null } }));
    release.apply_ready(std::slice::from_ref(&policy));
    let before = running(release);
    assert_eq!(before.len(), REPLICAS + CONTROLLERS);

    // One of the pods has to be created again, with an empty disk, while no replica answers.
    let old = names(&release.pods());
    cluster.power_off_node();
    release.kubectl(["delete", "pod", &old[0], "--wait=false"]).expect("a deletion");
    eventually("a pod in its place", || (names(&release.pods()).len() > REPLICAS).then_some(()));
    cluster.cut_all();
    cluster.start_all();

    eventually_within(Duration::from_secs(240), "containers that were started again", || {
        let now = running(release);
        (now.len() == REPLICAS + CONTROLLERS && now.iter().all(|container| !before.contains(container))).then_some(())
    });
    release.wait_for_replicas(REPLICAS);
    release.wait_for_controllers(CONTROLLERS);
    let pods = release.pods();
    let is_active = |object: &Value, generation: i64| {
        condition(object, "Ready").is_some_and(|ready| {
            (&ready["reason"], &ready["observedGeneration"]) == (&json!("Active"), &json!(generation))
        }) && object["status"]["replicaCounts"]["current"] == REPLICAS
            && is_about(object, &pods)
    };
    policy.wait_until(&release.api(), "Active, on the pods of now", |object| is_active(object, 1));
    assert_denied(&release.create_pod(&shop, "one", &json!({})), "strict");
    // What was stored before the cut shows nothing of the programs that write it.
    let edited = policy.denying("edited");
    release.apply(&edited).expect("the edit");
    edited.wait_until(&release.api(), "Active at generation 2", |object| is_active(object, 2));
    assert_denied(&release.create_pod(&shop, "two", &json!({})), "edited");
    // The policy would block tests with releases of their own.
    release.delete_policies();
}
