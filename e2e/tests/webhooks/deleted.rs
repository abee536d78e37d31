//! Policies that are deleted.

use std::time::Duration;

use portcullis_e2e::{Caller, condition, eventually, never};

use crate::scene::Scene;

/// The policies that a replica asked about a request that it allowed, from the annotations of its answer.
fn asked(caller: &Caller, namespace: &str) -> Vec<String> {
    let verdict = caller.ask(namespace).expect("a verdict");
    assert_eq!(verdict["allowed"], true, "{verdict}");
    let annotations = verdict["auditAnnotations"].as_object().cloned().unwrap_or_default();
    annotations.keys().filter_map(|key| key.strip_suffix(".generation").map(str::to_owned)).collect()
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w05_a_deleted_policy_is_asked_no_more_and_denies_nobody() {
    let scene = Scene::new("gone", 1);
    let [one, last] = ["gone-accept", "gone-last"].map(|name| scene.installation.cluster_policy(name));
    scene.installation.apply_ready(&[one.clone(), last.clone()]);
    let [webhook] = scene.webhooks(1).try_into().expect("one for both");
    let replica = scene.installation.replicas().remove(0);
    let caller = Caller::new(&scene.installation, &webhook, &replica);
    let asked = || asked(&caller, &scene.namespace);
    let answers = scene.try_pods_during(|| {
        scene.create("before").expect("nobody is denied");
        assert_eq!(asked(), ["cluster.gone-accept", "cluster.gone-last"]);

        // One of many: the webhook stays as it is, for the other one.
        scene.delete(&one);
        eventually("silence of the deleted policy", || (asked() == ["cluster.gone-last"]).then_some(()));
        let [after] = scene.webhooks(1).try_into().expect("the webhook of the other one");
        assert_eq!(webhook["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"]);
        scene.create("between").expect("nobody is denied");

        // The last one: its webhook goes, and the path goes on to answer those who still call it.
        scene.delete(&last);
        assert!(scene.installation.webhooks().is_empty());
        eventually("nobody to be asked", || asked().is_empty().then_some(()));
        eventually("no revision", || scene.installation.revisions().is_empty().then_some(()));
        scene.create("after").expect("nobody is denied");
        never(Duration::from_secs(2), "a policy that is asked", || Some(asked()).filter(|asked| !asked.is_empty()));
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

#[test]
#[ignore = "starts a cluster"]
fn fault_r31_a_namespace_ends_with_its_policies_while_a_controller_holds_them() {
    let scene = Scene::new("ending", 1);
    let installation = &scene.installation;
    let canary = installation.own_canary();
    let doomed = installation.make_namespace("doomed");
    let denying = installation.policy(&doomed, "denying").denying("not here");
    let mutating = installation.policy(&doomed, "mutating").field("mutating", true);
    installation.apply_ready(&[denying.clone(), mutating.clone()]);
    let missing = installation.policy(&doomed, "missing").at(&installation.source().url("/nobody-has-it.wasm"));
    installation.apply(&missing).expect("the policy");
    installation.wait_for_object(&missing, "its failure", |object| {
        condition(object, "Ready").is_some_and(|ready| ready["reason"] == "Error")
    });
    for policy in [&denying, &mutating, &missing] {
        let finalizers = installation.object(policy).expect("a policy")["metadata"]["finalizers"].clone();
        assert!(finalizers.to_string().contains("policies.portcullis.dev/webhooks"), "{}: {finalizers}", policy.name());
    }
    scene.webhooks(2);

    let path = format!("/api/v1/namespaces/{doomed}");
    let api = installation.api();
    api.delete(&path, None).expect("an answer").expect("the deletion");
    // From now on the API server refuses every new object in the namespace, even events.
    eventually("the end of the namespace", || api.find(&path).is_none().then_some(()));
    scene.webhooks(0);
    eventually("no revision", || installation.revisions().is_empty().then_some(()));
    canary.end();
}
