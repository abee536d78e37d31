//! The chart is uninstalled, and installed again in the same namespace.

use std::thread;
use std::time::Duration;

use portcullis_e2e::{Cluster, Options, PodSetup};

use crate::fences::wait_until_fenced;
use crate::stage::Stage;
use crate::states::Says;

/// Longer than an API server takes until it no longer watches what no rule needs. It looks once a second.
const FORGOTTEN: Duration = Duration::from_secs(4);

#[test]
#[ignore = "starts a cluster"]
fn after_an_uninstallation_the_reporter_that_leads_writes_and_no_other_one() {
    // The test needs a cluster of its own: in the others, the rules of other installations need Leases all the time.
    let cluster = &Cluster::start(&Options::default()).unwrap();
    let (stage, replicas) = Stage::with(cluster, "again", 1);
    let (policy, object) = stage.policy("labels");
    replicas[0].says(&object, Says::Current);
    stage.word(&policy, "Active");
    replicas[0].pod.remove();
    drop(stage);
    thread::sleep(FORGOTTEN);

    let stage = Stage::new(cluster, "again");
    let replicas = ["later-1", "later-2"].map(|name| stage.replica_with(PodSetup::default().named(name)));
    stage.wait_ready();
    let (policy, object) = stage.policy("later");
    replicas.iter().for_each(|replica| replica.says(&object, Says::Current));
    stage.word(&policy, "Active");
    wait_until_fenced(&stage, &replicas);
}
