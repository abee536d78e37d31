//! Fifty real reporters, with loaders and evaluators whose states the test provides, and with the test as their kubelets.
//! `tests/promises/fleet.rs` tests replicas with all programs.

use std::time::Duration;

use portcullis_e2e::eventually_within;

use crate::alone::CLUSTER;
use crate::stage::{Replica, Stage, status_and_reason};
use crate::states::Says;

/// The time limit for fifty programs that start and end on two cores.
const LONG: Duration = Duration::from_secs(480);

#[test]
#[ignore = "starts a cluster"]
fn fault_k03_fifty_replicas_come_and_go() {
    // In the cluster of most tests, their pods leave too few addresses.
    let cluster = CLUSTER.lock();
    let (stage, first) = Stage::with(&cluster, "fleet", 1);
    let (policy, object) = stage.policy("labels");
    first[0].says(&object, Says::Current);
    let alone = stage.word(&policy, "Active");
    let managers = alone["metadata"]["managedFields"].as_array().unwrap().len();

    let others: Vec<Replica> = (0..49).map(|_| stage.replica()).collect();
    others.iter().for_each(|replica| replica.says(&object, Says::Current));
    let full = eventually_within(LONG, "fifty replicas that serve", || {
        stage.installation.object(&policy).filter(|found| found["status"]["summary"] == "50/50")
    });
    assert_eq!(status_and_reason(&full, "Ready"), "True/Active");
    assert_eq!(full["status"]["replicas"].as_array().unwrap().len(), 16);
    assert_eq!(full["status"]["replicasOmitted"], 34);
    assert_eq!(full["metadata"]["managedFields"].as_array().unwrap().len(), managers);

    // Row R15 is about the end of a leader, so the leader stays here.
    let holder = stage.wait_for_holder();
    let (stays, go): (Vec<_>, Vec<_>) =
        first.iter().chain(&others).partition(|replica: &&Replica| replica.name() == holder);
    assert_eq!((stays.len(), go.len()), (1, 49));
    go.iter().for_each(|replica| replica.pod.delete_object());
    eventually_within(LONG, "one endpoint", || (stage.installation.endpoints() == 1).then_some(()));
    let left = stage.installation.assert_recovers("one replica in the status", || {
        let found = stage.installation.object(&policy)?;
        (found["status"]["summary"] == "1/1" && found["status"]["replicasOmitted"] == 0).then_some(found)
    });
    assert_eq!(status_and_reason(&left, "Ready"), "True/Active");
    assert_eq!(left["metadata"]["managedFields"].as_array().unwrap().len(), managers);
}
