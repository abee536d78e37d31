//! Revisions that cannot be read. Their data never change at the API server, so who damages one has removed it and made another of the
//! same name; a newer release has simply written its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use portcullis_e2e::{Policy, Program, condition, eventually};
use serde_json::{Value, json};

use crate::scene::Scene;

/// Does something while pods are created without a pause. Each must be refused, whoever refuses it.
fn while_all_are_refused<T>(scene: &Scene, act: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut count = 0;
            while !is_over.load(Ordering::SeqCst) {
                count += 1;
                let created = scene.create(&format!("load-{}", unique()));
                assert!(created.is_err(), "a pod was admitted, the {count}th");
            }
        });
        // The scope waits for the thread also where this panics.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        is_over.store(true, Ordering::SeqCst);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// So that names of pods are told apart.
fn unique() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()
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

/// Puts another object in a revision's place, while the controller is not there to make it again.
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

/// Waits until the policy says by its webhook what is wrong with its revision.
fn wait_told(scene: &Scene, policy: &Policy, words: &[&str]) {
    // Replicas that loaded the generation before go on with it, and do not tell of the revision yet.
    scene.installation.wait_for_object(policy, &format!("Registered with {words:?}"), |object| {
        condition(object, "WebhookConfigured").is_some_and(|found| {
            let message = found["message"].as_str().unwrap_or_default();
            found["reason"] == "Registered" && words.iter().all(|words| message.contains(words))
        })
    });
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
        wait_told(&scene, &policy, &[&name, "cannot read", "spec.failurePolicy"]);
        thread::sleep(Duration::from_secs(3));
        let [now] = scene.webhooks(1).try_into().expect("it is kept");
        assert_eq!((&now["metadata"]["uid"], &now["webhooks"]), (&before["metadata"]["uid"], &before["webhooks"]));
    });
}

#[test]
#[ignore = "starts a cluster"]
fn fault_z18_a_field_of_a_newer_release_changes_nothing() {
    let scene = Scene::new("novelty", 1);
    let policy = scene.installation.cluster_policy("novelty-deny").denying("no");
    scene.installation.apply_ready(std::slice::from_ref(&policy));
    let before = scene.webhooks(1);
    while_all_are_refused(&scene, || {
        replace(&scene, 1, |revision| revision["data"]["spec"]["novelty"] = json!({ "a": 1 }));
        thread::sleep(Duration::from_secs(3));
        scene.installation.wait_for(&policy, "Ready", "True");
    });
    assert_eq!(scene.webhooks(1)[0]["metadata"]["uid"], before[0]["metadata"]["uid"]);
}
