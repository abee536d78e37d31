//! Webhooks that somebody else edits or deletes.

use std::thread;
use std::time::Duration;

use portcullis_e2e::{eventually, eventually_within, never};
use serde_json::{Value, json};

use crate::scene::{PAUSE, REPAIR, Scene};

/// The parts of a webhook configuration that a repair restores.
fn essence(webhook: &Value) -> Value {
    json!([webhook["metadata"]["name"], webhook["metadata"]["labels"], webhook["webhooks"]])
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w02_a_webhook_that_is_edited_emptied_or_deleted_is_repaired() {
    edit_empty_and_delete("edited", false);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w02_a_mutating_webhook_that_is_edited_emptied_or_deleted_is_repaired() {
    edit_empty_and_delete("edited-m", true);
}

fn edit_empty_and_delete(name: &str, is_mutating: bool) {
    let scene = Scene::new(name, 1);
    let canary = scene.installation.own_canary();
    let policy_name = format!("{name}-deny");
    let policy = scene.installation.cluster_policy(&policy_name).field("mutating", is_mutating).denying("no");
    scene.installation.apply_ready(std::slice::from_ref(&policy));
    let [webhook] = scene.webhooks(1).try_into().expect("one");
    let (path, api) = (Scene::path(&webhook), scene.installation.api());
    let entry = |change: Value| {
        let mut entries = webhook["webhooks"].clone();
        portcullis_e2e_merge(&mut entries[0], &change);
        json!({ "webhooks": entries })
    };
    let mut more = webhook["webhooks"][0]["matchConditions"].as_array().cloned().unwrap_or_default();
    more.push(json!({ "name": "off", "expression": "false" }));
    let mut edits = vec![
        json!({ "webhooks": [] }),
        entry(json!({ "failurePolicy": "Ignore" })),
        entry(json!({ "rules": [] })),
        entry(json!({ "matchConditions": more })),
    ];
    if is_mutating {
        edits.push(entry(json!({ "reinvocationPolicy": "IfNeeded" })));
    }
    let events = || -> i64 {
        let events = scene.events("WebhookRepaired").into_iter();
        let ours = events.filter(|event| event["regarding"]["name"] == *policy_name);
        ours.map(|event| event["series"]["count"].as_i64().unwrap_or(1)).sum()
    };
    let mut repairs = 0;
    let mut repaired = |what: &str, has_event: bool| {
        scene.installation.assert_recovers(&format!("a repair of {what}"), || {
            api.get(&path).filter(|now| essence(now) == essence(&webhook))
        });
        repairs += i64::from(has_event);
        eventually(&format!("the event about {what}"), || (events() == repairs).then_some(()));
    };
    for edit in edits {
        api.patch(&path, &edit).expect("an answer").expect("the edit");
        repaired(&edit.to_string(), true);
    }
    api.delete(&path, None).expect("an answer").expect("the deletion");
    repaired("the deletion", true);
    // Labels do not change what API servers call: they are repaired too, but without an event.
    let labels = json!({ "metadata": { "labels": { "policies.portcullis.dev/policy-server": "other" } } });
    api.patch(&path, &labels).expect("an answer").expect("the edit");
    repaired("labels", false);
    never(Duration::from_secs(2), "another event", || Some(events()).filter(|events| *events != repairs));
    eventually("a denial", || scene.create("one").err().filter(|refused| refused.contains("denied the request")));
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w03_a_wrong_ca_bundle_is_repaired() {
    let scene = Scene::new("bundle", 1);
    let canary = scene.installation.own_canary();
    let policy = scene.installation.cluster_policy("bundle-deny").denying("no");
    scene.installation.apply_ready(std::slice::from_ref(&policy));
    let [webhook] = scene.webhooks(1).try_into().expect("one");
    let (path, api) = (Scene::path(&webhook), scene.installation.api());
    let mut entries = webhook["webhooks"].clone();
    entries[0]["clientConfig"]["caBundle"] = json!("");
    entries[1]["clientConfig"]["caBundle"] = json!("");
    api.patch(&path, &json!({ "webhooks": entries })).expect("an answer").expect("the edit");
    eventually_within(REPAIR, "the right bundle", || {
        api.get(&path).filter(|now| now["webhooks"] == webhook["webhooks"])
    });
    scene.installation.wait_for(&policy, "Ready", "True");
    scene.wait_reason(&policy, "Registered");
    eventually("a denial", || scene.create("one").err().filter(|refused| refused.contains("denied the request")));
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w12_a_certificate_authority_that_is_deleted_is_made_again() {
    let scene = Scene::new("authority", 1);
    let policy = scene.installation.cluster_policy("authority-deny").denying("no");
    scene.installation.apply_ready(std::slice::from_ref(&policy));
    let [before] = scene.webhooks(1).try_into().expect("one");
    let bundle = |webhook: &Value| webhook["webhooks"][0]["clientConfig"]["caBundle"].clone();
    let secret = "/api/v1/namespaces/authority/secrets/portcullis-authority-ca";
    // Every request is judged, whichever certificate the replica shows at that moment, until the pauses of authority and certificate are over.
    let canary = scene.denied_canary("policy cluster/authority-deny: no");
    scene.installation.api().delete(secret, None).expect("an answer").expect("the deletion");
    eventually("another bundle", || (bundle(&scene.webhooks(1)[0]) != bundle(&before)).then_some(()));
    thread::sleep(PAUSE * 3);
    canary.end();
    scene.wait_reason(&policy, "Registered");
}

fn portcullis_e2e_merge(target: &mut Value, patch: &Value) {
    for (key, value) in patch.as_object().into_iter().flatten() {
        target[key] = value.clone();
    }
}
