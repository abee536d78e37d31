//! Controllers that are killed in the middle, and two of them.

use portcullis_e2e::{Program, eventually};

use crate::scene::{Scene, quick, rules};

/// Each step of making, moving and deleting a policy.
const POINTS: [&str; 7] = [
    "controller.after_revision_create",
    "controller.before_webhook_write",
    "controller.after_webhook_write",
    "controller.after_webhook_delete",
    "controller.after_mark_withdrawn",
    "controller.after_mark_deleted",
    "controller.before_finalizer_removal",
];

#[test]
#[ignore = "starts a cluster"]
fn a_controller_that_is_killed_in_any_step_goes_on_when_it_starts_again() {
    let points = POINTS.map(|point| format!("{point}=1*exit")).join(";");
    // Each start of the program dies at each point once, until the test takes the points away.
    let scene = Scene::with("killed", 1, quick().fail_points(Program::Controller, &points));
    let policy = scene.installation.cluster_policy("killed-deny").denying("no");
    scene.installation.apply(&policy).expect("the policy");
    eventually("a death", || (scene.controller.restarts(Program::Controller) > 0).then_some(()));
    scene.controller.program(Program::Controller).set_env("PORTCULLIS_FAILPOINTS", None);
    scene.controller.kill(Program::Controller);
    scene.installation.wait_for(&policy, "Ready", "True");

    let later = POINTS[3..].iter().map(|point| format!("{point}=1*exit")).collect::<Vec<_>>().join(";");
    scene.controller.program(Program::Controller).set_env("PORTCULLIS_FAILPOINTS", Some(&later));
    scene.controller.kill(Program::Controller);
    let moved = policy.clone().field("rules", rules(&["pods", "secrets"]));
    scene.installation.apply_ready(std::slice::from_ref(&moved));
    scene.create("moved").expect_err("denied");
    scene.delete(&moved);
    assert!(scene.installation.webhooks().is_empty() && scene.installation.revisions().is_empty());
    assert!(scene.controller.restarts(Program::Controller) > 2);
}

#[test]
#[ignore = "starts a cluster"]
fn of_two_controllers_one_writes_and_the_other_takes_over() {
    let scene = Scene::new("two", 1);
    let second = scene.installation.start_controller_with(quick());
    let policy = scene.installation.cluster_policy("two-deny").denying("no");
    scene.installation.apply_ready(std::slice::from_ref(&policy));
    scene.controller.stop(Program::Controller);
    let moved = policy.clone().field("rules", rules(&["pods", "secrets"]));
    scene.installation.apply_ready(std::slice::from_ref(&moved));
    let lease = "/apis/coordination.k8s.io/v1/namespaces/two/leases/portcullis-two-controller";
    let lease = scene.installation.api().get(lease).unwrap_or_default();
    assert_eq!(lease["spec"]["holderIdentity"], second.name());
    scene.create("one").expect_err("denied");
}
