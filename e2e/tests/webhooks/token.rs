//! The token of the controller is replaced, as a kubelet does before it ends.

use portcullis_e2e::{CONTROLLER_ACCOUNT, Program, Proxy};

use crate::cluster;
use crate::scene::{Scene, quick};

#[test]
#[ignore = "starts a cluster"]
fn fault_r09_a_running_controller_uses_a_new_token_within_a_minute() {
    let proxy = Proxy::start(cluster());
    let scene = Scene::with("rotated", 1, quick().through(Program::Controller, proxy.address()));
    let installation = &scene.installation;
    let canary = installation.own_canary();
    // The renewals of the Lease are calls enough.
    let used = installation.assert_new_token_is_used(CONTROLLER_ACCOUNT, &scene.controller, &proxy, |_| true);
    assert!(matches!(used.status, Some(200..300)), "{used:?}");

    let policy = installation.cluster_policy("rotated-deny").denying("with the new token");
    installation.apply_ready(std::slice::from_ref(&policy));
    let denied = scene.create("one").expect_err("denied");
    assert!(denied.contains("with the new token"), "{denied}");
    assert_eq!(scene.controller.restarts(Program::Controller), 0, "no restart was needed");
    canary.end();
}
