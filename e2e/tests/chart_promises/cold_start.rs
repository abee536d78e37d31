//! The whole cluster loses power.

use portcullis_e2e::{Container, condition, eventually, eventually_within};
use serde_json::json;
use std::time::Duration;

use crate::stage::{REPLICAS, Stage, assert_denied, names, own_cluster};

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
    let before: Vec<_> = release.pods().iter().filter_map(|pod| Container::of(pod, "evaluator")).collect();
    assert_eq!(before.len(), REPLICAS);

    // One of the pods has to be created again, with an empty disk, while no replica answers.
    let old = names(&release.pods());
    cluster.cut_node();
    release.kubectl(["delete", "pod", &old[0], "--wait=false"]).expect("a deletion");
    eventually("a pod in its place", || (names(&release.pods()).len() > REPLICAS).then_some(()));
    cluster.cut_all();
    cluster.start_all();

    eventually_within(Duration::from_secs(240), "containers that were started again", || {
        let now: Vec<_> = release.pods().iter().filter_map(|pod| Container::of(pod, "evaluator")).collect();
        (now.len() == REPLICAS && now.iter().all(|container| !before.contains(container))).then_some(())
    });
    release.wait_for_replicas(REPLICAS);
    policy.wait_until(&release.api(), "Active", |object| {
        condition(object, "Ready").is_some_and(|ready| ready["reason"] == "Active")
            && object["status"]["replicaCounts"]["current"] == REPLICAS
    });
    assert_denied(&release.create_pod(&shop, "one", &json!({})), "strict");
    // The policy would block tests with releases of their own.
    release.delete_policies();
}
