//! More and fewer replicas.

use std::time::{Duration, Instant};

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
    let has = |count: usize| {
        policy.wait_until(&release.api(), &format!("{count} replicas in the status"), |object| {
            let status = &object["status"];
            status["summary"] == format!("{count}/{count}") && status["replicaCounts"]["current"] == count
        })
    };
    has(5);
    release.scale(1);
    // Pods that end are out of the endpoints at once, and from then on the status follows within 10 s, on a machine that does not stall.
    portcullis_e2e::eventually("one endpoint", || (release.endpoints() == 1).then_some(()));
    let start = Instant::now();
    has(1);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    release.wait_for_replicas(1);
    assert_all(&load.end(), 403);
}
