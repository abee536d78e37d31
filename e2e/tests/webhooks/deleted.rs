//! Policies that are deleted.

use std::time::Duration;

use portcullis_e2e::{eventually, never};

use crate::scene::Scene;

#[test]
#[ignore = "starts a cluster"]
fn fault_w05_a_deleted_policy_is_asked_no_more_and_denies_nobody() {
    let scene = Scene::new("gone", 1);
    let policy = scene.installation.cluster_policy("gone-accept");
    scene.installation.apply_ready(std::slice::from_ref(&policy));
    let answers = scene.try_pods_during(|| {
        scene.create("before").expect("nobody is denied");
        scene.delete(&policy);
        assert!(scene.installation.webhooks().is_empty());
        eventually("no revision", || scene.installation.revisions().is_empty().then_some(()));
        scene.create("after").expect("nobody is denied");
    });
    assert!(!answers.is_empty());
    for (code, message) in answers {
        assert_eq!(code, 201, "{message}");
    }
}

#[test]
#[ignore = "starts a cluster"]
fn a_policy_that_is_deleted_and_made_again_is_another_one() {
    let scene = Scene::new("again", 1);
    let policy = scene.installation.cluster_policy("again-deny").denying("once");
    scene.installation.apply_ready(std::slice::from_ref(&policy));
    let delete = ["delete", "--wait=false", &policy.reference()];
    scene.installation.cluster().kubectl(delete).expect("the deletion");
    let again = scene.installation.cluster_policy("again-deny").denying("twice");
    eventually("the end of the first", || scene.installation.object(&policy).is_none().then_some(()));
    scene.installation.apply_ready(std::slice::from_ref(&again));
    let refused = scene.create("one").expect_err("denied");
    assert!(refused.contains("twice"), "{refused}");
    assert_eq!(scene.installation.revisions().len(), 1);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_k09_a_policy_that_is_deleted_while_it_loads_leaves_nothing() {
    let scene = Scene::new("loading", 1);
    let canary = scene.installation.own_canary();
    let policy = scene.installation.cluster_policy("loading-deny").denying("never");
    scene.installation.source().close();
    scene.installation.apply(&policy).expect("the policy");
    eventually("its revision", || (scene.installation.revisions().len() == 1).then_some(()));
    scene.delete(&policy);
    assert!(scene.installation.revisions().is_empty());
    scene.installation.source().open();
    never(Duration::from_secs(2), "a webhook", || (!scene.installation.webhooks().is_empty()).then_some(()));
    scene.create("one").expect("nobody is asked");
    canary.end();
}
