//! Revisions that cannot be read. The API server lets nobody change their data, so a damaged one has been deleted and created again with the
//! same name; one of a newer release was written like that.

use portcullis_e2e::{Policy, Program, condition, eventually};
use serde_json::{Value, json};

use crate::scene::Scene;

/// Tries to create pods while `act` runs; each must be refused, no matter by which webhook. Returns the messages.
fn while_all_are_refused(scene: &Scene, act: impl FnOnce()) -> Vec<String> {
    let refused = |(number, (code, message)): (usize, (u16, String))| {
        assert!(code >= 400, "a pod was admitted, after {number} others: {code} {message}");
        message
    };
    scene.try_pods_during(act).into_iter().enumerate().map(refused).collect()
}

fn revision(scene: &Scene, generation: i64) -> Value {
    eventually(&format!("the revision of generation {generation}"), || {
        scene.installation.revisions().into_iter().find(|revision| revision["revision"] == generation)
    })
}

fn path(scene: &Scene, revision: &Value) -> String {
    let name = revision["metadata"]["name"].as_str().unwrap_or_default();
    format!("/apis/apps/v1/namespaces/{}/controllerrevisions/{name}", scene.installation.namespace())
}

/// Replaces a revision by a changed one, while the controller is stopped and cannot restore it.
fn replace(scene: &Scene, generation: i64, change: impl FnOnce(&mut Value)) {
    let mut object = revision(scene, generation);
    let (path, metadata) = (path(scene, &object), object["metadata"].clone());
    object["metadata"] = json!({
        "name": metadata["name"], "labels": metadata["labels"], "annotations": metadata["annotations"],
    });
    object["apiVersion"] = json!("apps/v1");
    object["kind"] = json!("ControllerRevision");
    change(&mut object);
    let api = scene.installation.api();
    scene.controller.stop(Program::Controller);
    api.delete(&path, None).expect("an answer").expect("the deletion");
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    api.create(folder, &object).expect("an answer").expect("the revision");
    scene.controller.start(Program::Controller);
}

/// Waits until the policy's status says what is wrong with its revision, and that its webhook is kept.
fn wait_told(scene: &Scene, policy: &Policy, words: &[&str]) {
    let says = |object: &Value, kind: &str, reason: &str| {
        condition(object, kind).is_some_and(|found| {
            let message = found["message"].as_str().unwrap_or_default();
            found["reason"] == reason && words.iter().all(|words| message.contains(words))
        })
    };
    scene.installation.wait_for_object(policy, &format!("SpecInvalid with {words:?}"), |object| {
        says(object, "Accepted", "SpecInvalid") && says(object, "WebhookConfigured", "Registered")
    });
}

/// Replaces all replicas by a new pod, which has loaded nothing.
fn renew_replicas(scene: &Scene) {
    let before = scene.installation.replicas();
    scene.installation.add_replica();
    scene.installation.wait_ready();
    before.iter().for_each(|pod| pod.remove());
    scene.installation.wait_ready();
}

fn group(webhook: &Value) -> String {
    webhook["webhooks"][0]["name"].as_str().unwrap_or_default().split('.').next().unwrap_or_default().to_owned()
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z18_a_revision_of_a_newer_release_keeps_webhook_and_membership_by_its_labels() {
    let scene = Scene::new("newer", 2);
    let policy = scene.installation.cluster_policy("newer-deny").denying("the policy says no");
    scene.installation.apply_ready(std::slice::from_ref(&policy));
    let [before] = scene.webhooks(1).try_into().expect("one");
    let labels = revision(&scene, 1)["metadata"]["labels"].clone();
    assert_eq!(labels["policies.portcullis.dev/match-group"], group(&before));
    eventually("the mark that it served", || {
        let marks = &revision(&scene, 1)["metadata"]["annotations"];
        (marks["policies.portcullis.dev/served"] == "true").then_some(())
    });
    while_all_are_refused(&scene, || {
        replace(&scene, 1, |revision| {
            revision["data"]["spec"]["mode"] = json!("quarantine");
            revision["data"]["spec"]["failurePolicy"] = json!("Perhaps");
            revision["data"]["spec"]["novelty"] = json!({ "a": 1 });
        });
        let name = revision(&scene, 1)["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        wait_told(&scene, &policy, &[&name, "cannot read", "spec.failurePolicy", "upgrade"]);
        // Once another policy has its webhook, the controller has looked at everything since it was started again.
        let other = scene.installation.cluster_policy("newer-other").on(&["configmaps"]);
        scene.installation.apply_ready(&[other]);
        let kept = scene.webhooks(2).into_iter().find(|now| now["metadata"]["uid"] == before["metadata"]["uid"]);
        assert_eq!(kept.expect("it is kept")["webhooks"], before["webhooks"]);
        // Pods that had loaded it go on with what they have.
        let refused = scene.create("one").expect_err("denied");
        assert!(refused.contains("the policy says no"), "{refused}");
        // A new pod knows only what can be read.
        renew_replicas(&scene);
    });
    // For a moment, an API server may still call a pod that has gone, and get no answer.
    eventually("the fresh pod's answer", || {
        let refused = scene.create("two").expect_err("denied");
        (refused.contains("SpecInvalid") && !refused.contains("the policy says no")).then_some(())
    });
    scene.installation.wait_for_object(&policy, "Ready other than True", |object| {
        condition(object, "Ready").is_some_and(|ready| ready["status"] != "True")
    });
    // Without a newer release at hand, deleting the revision helps.
    while_all_are_refused(&scene, || {
        let path = path(&scene, &revision(&scene, 1));
        scene.installation.api().delete(&path, None).expect("an answer").expect("the deletion");
        scene.installation.wait_for(&policy, "Ready", "True");
    });
    let refused = scene.create("three").expect_err("denied");
    assert!(refused.contains("the policy says no"), "{refused}");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z18_a_field_of_a_newer_release_changes_nothing() {
    let scene = Scene::new("novelty", 1);
    let policy = scene.installation.cluster_policy("novelty-deny").denying("the policy says no");
    scene.installation.apply_ready(std::slice::from_ref(&policy));
    let [before] = scene.webhooks(1).try_into().expect("one");
    let messages = while_all_are_refused(&scene, || {
        replace(&scene, 1, |revision| revision["data"]["spec"]["novelty"] = json!({ "a": 1 }));
        // A new pod has loaded nothing, so it answers with what its loader makes of the revision.
        renew_replicas(&scene);
    });
    assert_eq!(revision(&scene, 1)["data"]["spec"]["novelty"], json!({ "a": 1 }), "the pod has read this revision");
    // For a moment, an API server may still call a pod that has gone, and get no answer.
    let mut others = Vec::new();
    eventually("the fresh pod's answer", || {
        let refused = scene.create("one").expect_err("denied");
        let is_the_policys = refused.contains("the policy says no");
        others.push(refused);
        is_the_policys.then_some(())
    });
    let unreadable: Vec<_> = messages.iter().chain(&others).filter(|said| said.contains("SpecInvalid")).collect();
    assert!(unreadable.is_empty(), "{unreadable:?}");
    // The controller has read the revision too, and goes on: an edit gets everywhere, and the webhook needs no change.
    let edited = policy.denying("the edit says no");
    scene.installation.apply_ready(std::slice::from_ref(&edited));
    let object = scene.installation.object(&edited).expect("the policy");
    assert_eq!(object["metadata"]["generation"], 2);
    let refused = scene.create("two").expect_err("denied");
    assert!(refused.contains("the edit says no"), "{refused}");
    let [now] = scene.webhooks(1).try_into().expect("it is kept");
    assert_eq!((&now["metadata"]["uid"], &now["webhooks"]), (&before["metadata"]["uid"], &before["webhooks"]));
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z18_of_a_damaged_revision_the_older_generation_serves_and_labels_come_back() {
    let scene = Scene::new("damaged", 1);
    let policy = scene.installation.cluster_policy("damaged-deny").denying("the first says no");
    scene.installation.apply_ready(std::slice::from_ref(&policy));
    eventually("the mark that it served", || {
        let marks = &revision(&scene, 1)["metadata"]["annotations"];
        (marks["policies.portcullis.dev/served"] == "true").then_some(())
    });
    let second = policy.clone().denying("the second says no");
    scene.installation.apply_ready(std::slice::from_ref(&second));
    while_all_are_refused(&scene, || {
        replace(&scene, 2, |revision| {
            revision["data"] = json!({ "damage": true });
            for label in ["match-group", "webhook-kind"] {
                let labels = revision["metadata"]["labels"].as_object_mut();
                labels.expect("labels").remove(&format!("policies.portcullis.dev/{label}"));
            }
        });
        wait_told(&scene, &policy, &["is damaged", "delete"]);
    });
    eventually("the labels", || {
        let labels = &revision(&scene, 2)["metadata"]["labels"];
        (labels["policies.portcullis.dev/match-group"] == group(&scene.webhooks(1)[0])).then_some(())
    });
    // A pod that has loaded the second generation goes on with it; a new one answers with the newest generation that can be read.
    let refused = scene.create("one").expect_err("denied");
    assert!(refused.contains("the second says no"), "{refused}");
    while_all_are_refused(&scene, || renew_replicas(&scene));
    eventually("the older generation to deny", || {
        scene.create("two").is_err_and(|refused| refused.contains("the first says no")).then_some(())
    });
}
