//! Every pod is replaced under load.

use crate::stage::{REPLICAS, Stage, assert_all, names};

/// The number of calls per second, as in the fault catalogue. A busy machine handles fewer.
const CALLS: u32 = 200;

/// The number of calls that is enough, however fast they were.
const ENOUGH: usize = 1000;

#[test]
#[ignore = "starts a cluster"]
fn fault_e03_k04_a_rolling_update_under_load_fails_no_call() {
    let stage = Stage::new("rolling");
    let (release, shop) = (stage.release(), stage.namespace());
    release.apply_ready(&[release.cluster_policy("rolling").denying("not here")]);
    let old = names(&release.pods());

    let load = release.load(&shop, CALLS);
    let deployment = "deployment/portcullis-policy-server";
    release.kubectl(["rollout", "restart", deployment]).expect("a restart");
    release.kubectl(["rollout", "status", deployment, "--timeout=240s"]).expect("the end of the rollout");
    release.wait_for_replicas(REPLICAS);
    assert_all(&load.end_after(ENOUGH), 403);
    assert!(names(&release.pods()).iter().all(|name| !old.contains(name)));
}
