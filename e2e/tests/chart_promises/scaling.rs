//! The number of replicas changes under load.

use portcullis_e2e::{assert_recovers_on_node, eventually};
use serde_json::Value;

use crate::stage::{Stage, assert_all};

#[test]
#[ignore = "starts a cluster"]
fn fault_k02_k03_replicas_come_and_go_without_a_failed_call_and_the_status_follows() {
    let stage = Stage::new("scaling");
    let (release, shop) = (stage.release(), stage.namespace());
    let policy = release.cluster_policy("scaling").denying("not here");
    release.apply_ready(std::slice::from_ref(&policy));
    release.scale(1);
    release.wait_for_replicas(1);

    let load = release.load(&shop, 10);
    release.scale(5);
    release.wait_for_replicas(5);
    let is = |object: &Value, count: usize| {
        let status = &object["status"];
        status["summary"] == format!("{count}/{count}") && status["replicaCounts"]["current"] == count
    };
    policy.wait_until(&release.api(), "five replicas in the status", |object| is(object, 5));
    release.scale(1);
    // Terminating pods are removed from the endpoints at once, and then from the status.
    eventually("one endpoint", || (release.endpoints() == 1).then_some(()));
    assert_recovers_on_node("one replica in the status", || {
        release.api().get(&policy.path()).filter(|object| is(object, 1))
    });
    release.wait_for_replicas(1);
    assert_all(&load.end(), 403);
}
