//! Controllers that are killed between two steps, and two controllers at once.

use portcullis_e2e::{Policy, Program, eventually};
use portcullis_testkit::FAIL_POINT;

use crate::scene::{Scene, quick, rules};

#[test]
#[ignore = "starts a cluster"]
fn a_controller_that_is_killed_in_any_step_goes_on_when_it_starts_again() {
    let scene = Scene::new("killed", 1);
    let policy = scene.installation.cluster_policy("killed-deny").denying("no");
    let moved = policy.clone().field("rules", rules(&["pods", "secrets"]));
    let apply = |policy: &Policy| drop(scene.installation.apply(policy).expect("the policy").to_owned());
    dies_at(&scene, "controller.after_revision_create", || apply(&policy));
    dies_at(&scene, "controller.before_webhook_write", || ());
    runs(&scene);
    scene.installation.wait_for(&policy, "Ready", "True");
    scene.create("first").expect_err("denied");
    dies_at(&scene, "controller.after_webhook_write", || apply(&moved));
    dies_at(&scene, "controller.after_webhook_delete", || ());
    dies_at(&scene, "controller.after_mark_withdrawn", || ());
    runs(&scene);
    scene.installation.wait_for(&moved, "Ready", "True");
    scene.webhooks(1);
    scene.create("moved").expect_err("denied");
    let delete = || drop(scene.installation.api().delete(&moved.path(), None).expect("an answer"));
    dies_at(&scene, "controller.after_webhook_delete", delete);
    dies_at(&scene, "controller.after_mark_deleted", || ());
    dies_at(&scene, "controller.before_finalizer_removal", || ());
    runs(&scene);
    eventually("the end of the policy", || scene.installation.object(&moved).is_none().then_some(()));
    assert!(scene.installation.webhooks().is_empty() && scene.installation.revisions().is_empty());
}

/// Stops the controller, runs `act`, and starts a controller that dies at this step. After that, none runs until [`runs`].
fn dies_at(scene: &Scene, point: &str, act: impl FnOnce()) {
    let process = scene.controller.program(Program::Controller);
    let deaths = || process.lines().iter().filter(|line| line.contains(&format!("exit status: {FAIL_POINT}"))).count();
    let before = deaths();
    scene.controller.stop(Program::Controller);
    process.set_env("PORTCULLIS_FAILPOINTS", Some(&format!("{point}=exit")));
    act();
    // Start it only once: a second one would go past this step before the loop sees the death, and do what a later step is to test.
    scene.controller.start_once(Program::Controller);
    eventually(&format!("a death at {point}"), || {
        let is_alive = process.is_alive();
        let is_dead_there = deaths() > before;
        if !is_alive && !is_dead_there {
            scene.controller.start_once(Program::Controller);
        }
        is_dead_there.then_some(())
    });
}

/// Starts a controller without failpoints.
fn runs(scene: &Scene) {
    scene.controller.program(Program::Controller).set_env("PORTCULLIS_FAILPOINTS", None);
    scene.controller.start(Program::Controller);
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
    assert_eq!(scene.installation.lease_holder("controller").as_deref(), Some(second.name()));
    scene.create("one").expect_err("denied");
}
