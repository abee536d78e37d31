//! One replica cannot load a policy.

use portcullis_e2e::{assert_recovers_on_node, condition};
use serde_json::{Value, json};

use crate::stage::{REPLICAS, Stage, address, assert_denied, own_cluster};

fn is(object: &Value, reason: &str) -> bool {
    condition(object, "Ready").is_some_and(|ready| ready["reason"] == reason)
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r19_a_policy_is_degraded_until_the_pod_that_cannot_load_it_is_deleted() {
    let stage = Stage::new("degraded");
    if own_cluster("fault_r19").is_none() {
        return;
    }
    let (release, shop) = (stage.release(), stage.namespace());
    let canary = release.own_canary();
    let bad = release.pods().remove(0);
    release.source().refuse(address(&bad));
    let policy = release.cluster_policy("degraded").denying("not here");
    release.apply(&policy).expect("the policy");
    let object = policy.wait_until(&release.api(), "Degraded", |object| {
        is(object, "Degraded") && object["status"]["replicaCounts"]["current"] == REPLICAS - 1
    });
    let entry = &object["status"]["replicas"][0];
    assert_eq!(entry["pod"], bad["metadata"]["name"], "{object:#}");

    release.kubectl(["delete", "pod", bad["metadata"]["name"].as_str().unwrap(), "--wait=false"]).expect("a deletion");
    assert_recovers_on_node("a status without the pod that was deleted", || {
        let object = release.api().get(&policy.path())?;
        (condition(&object, "Degraded")?["status"] == "False").then_some(())
    });
    release.wait_for_replicas(REPLICAS);
    policy.wait_until(&release.api(), "Active everywhere", |object| {
        is(object, "Active") && object["status"]["replicaCounts"]["current"] == REPLICAS
    });
    for name in ["one", "two", "three"] {
        assert_denied(&release.create_pod(&shop, name, &json!({})), "not here");
    }
    canary.end();
}
