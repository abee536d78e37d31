//! The token of the controller is replaced, as a kubelet does before it ends.

use std::time::Duration;

use portcullis_e2e::{CONTROLLER_ACCOUNT, Program, Proxy, eventually};
use portcullis_testkit::Bound;

use crate::cluster;
use crate::scene::{Scene, quick};

/// How soon a new token must be used.
const MINUTE: Bound = Bound { limit: Duration::from_secs(60), reason: "row R09's own" };

#[test]
#[ignore = "starts a cluster"]
fn fault_r09_a_running_controller_uses_a_new_token_within_a_minute() {
    let proxy = Proxy::start(cluster());
    let scene = Scene::with("rotated", 1, quick().through(Program::Controller, proxy.address()));
    let installation = &scene.installation;
    let canary = installation.own_canary();
    let token = installation.token(CONTROLLER_ACCOUNT, &scene.controller);
    let with_it = || proxy.requests().into_iter().find(|request| request.bearer == token);
    assert_eq!(with_it(), None, "only the test has it");
    let replaced = installation.moment();
    scene.controller.put_token(&token);
    // The renewals of the Lease are calls enough.
    let used = eventually("a call with the new token", || with_it().filter(|call| call.status.is_some()));
    let in_time = MINUTE.check("the new token", &replaced, &installation.moment());
    in_time.unwrap_or_else(|late| panic!("{late}"));
    assert!(matches!(used.status, Some(200..300)), "{used:?}");
    let since = proxy.requests().into_iter().filter(|request| request.at >= replaced.at());
    let refused = since.filter(|request| request.status == Some(401)).count();
    assert_eq!(refused, 0, "both tokens are valid, so no refusal made the controller read the file");

    let policy = installation.cluster_policy("rotated-deny").denying("with the new token");
    installation.apply_ready(std::slice::from_ref(&policy));
    let denied = scene.create("one").expect_err("denied");
    assert!(denied.contains("with the new token"), "{denied}");
    assert_eq!(scene.controller.restarts(Program::Controller), 0, "no restart was needed");
    canary.end();
}
