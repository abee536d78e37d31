//! More policies of a namespace than the installation takes.

use portcullis_e2e::{Program, condition};
use serde_json::Value;

use crate::scene::{Scene, quick};

/// Status, reason and message of a condition.
fn said<'o>(object: &'o Value, kind: &str) -> Option<(&'o str, &'o str, &'o str)> {
    let condition = condition(object, kind)?;
    Some((condition["status"].as_str()?, condition["reason"].as_str()?, condition["message"].as_str()?))
}

#[test]
#[ignore = "starts a cluster"]
fn a_policy_beyond_the_limit_of_its_namespace_says_so_and_is_taken_once_there_is_room() {
    let scene = Scene::with("quota", 1, quick().flag(Program::Controller, "--policies-per-namespace", "1"));
    let installation = &scene.installation;
    let policy = |name: &str| installation.policy(&scene.namespace, name);
    let (first, second) = (policy("first"), policy("second"));
    installation.apply_ready(std::slice::from_ref(&first));
    installation.apply(&second).expect("the policy");
    let object = installation.wait_for_object(&second, "QuotaExceeded in Accepted and Stalled", |object| {
        let says = |kind, status| said(object, kind).is_some_and(|one| (one.0, one.1) == (status, "QuotaExceeded"));
        says("Accepted", "False") && says("Stalled", "True")
    });
    let (_, _, words) = said(&object, "Accepted").expect("it is there");
    let begin = format!("policies of namespace {} that are taken: 1 of at most 1; delete one", scene.namespace);
    assert!(words.starts_with(&begin) && words.contains("controller.policiesPerNamespace"), "{words}");
    let is_of_second =
        |revision: &Value| revision["metadata"]["labels"]["policies.portcullis.dev/policy-name"] == "second";
    assert!(!installation.revisions().iter().any(is_of_second), "nothing is made of it");

    // A policy that was taken can be edited, and ClusterPolicies are not counted.
    installation.apply_ready(&[first.field("mode", "warn"), installation.cluster_policy("quota-everywhere")]);
    let object = installation.object(&second).expect("it is there");
    assert_eq!(said(&object, "Accepted").map(|one| one.1), Some("QuotaExceeded"));

    scene.delete(&policy("first"));
    let object = installation.wait_for(&second, "Ready", "True");
    assert_eq!(said(&object, "Accepted").map(|one| (one.0, one.1)), Some(("True", "Accepted")));
}
