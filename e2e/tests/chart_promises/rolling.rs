//! Every pod is replaced under load.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::stage::{REPLICAS, Stage, assert_all, names};

/// The number of calls per second, as in the fault catalogue. A busy machine handles fewer.
const CALLS: u32 = 200;

/// The number of calls that is enough, however fast they were.
const ENOUGH: usize = 1000;

#[test]
#[ignore = "starts a cluster"]
fn fault_k04_e03_a_rolling_update_under_load_fails_no_call() {
    let stage = Stage::new("rolling");
    let (release, shop) = (stage.release(), stage.namespace());
    release.apply_ready(&[release.cluster_policy("rolling").denying("not here")]);
    let old = names(&release.pods());

    let load = release.load(&shop, CALLS);
    let deployment = "deployment/portcullis-policy-server";
    let is_over = AtomicBool::new(false);
    let (begun, ended, fewest) = thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut fewest = usize::MAX;
            while !is_over.load(Ordering::SeqCst) {
                fewest = fewest.min(release.endpoints());
                thread::sleep(Duration::from_millis(100));
            }
            fewest
        });
        let begun = release.kubectl(["rollout", "restart", deployment]);
        let ended = release.kubectl(["rollout", "status", deployment, "--timeout=240s"]);
        is_over.store(true, Ordering::SeqCst);
        (begun, ended, watch.join().expect("the endpoints can be read"))
    });
    begun.expect("a restart");
    ended.expect("the end of the rollout");
    assert!(fewest >= REPLICAS, "for a while only {fewest} replicas were ready");
    release.wait_for_replicas(REPLICAS);
    assert_all(&load.end_after(ENOUGH), 403);
    assert!(names(&release.pods()).iter().all(|name| !old.contains(name)));
}
