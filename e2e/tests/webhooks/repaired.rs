//! Webhooks that somebody else edits or deletes.

use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_e2e::{Program, Proxy, Rule, eventually, eventually_within, never_lasting};
use serde_json::{Value, json};

use crate::cluster;
use crate::scene::{PAUSE, REPAIR, Scene, quick};

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
    let policy =
        scene.installation.cluster_policy(&format!("{name}-deny")).field("mutating", is_mutating).denying("no");
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
        let events = scene.installation.events(&policy, "WebhookRepaired").into_iter();
        events.map(|event| event["series"]["count"].as_i64().unwrap_or(1)).sum()
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
    never_lasting(Duration::from_secs(2), "another event", || Some(events()).filter(|events| *events != repairs));
    eventually("a denial", || scene.create("one").err().filter(|refused| refused.contains("denied the request")));
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w02_a_webhook_that_is_edited_each_time_is_repaired_less_and_less_often() {
    let scene = Scene::new("fought", 1);
    let canary = scene.installation.own_canary();
    scene.installation.apply_ready(&[scene.installation.cluster_policy("fought-deny").denying("no")]);
    let [webhook] = scene.webhooks(1).try_into().expect("one");
    let (path, api) = (Scene::path(&webhook), scene.installation.api());
    // Labels are no repair that an event tells of, but they are written all the same.
    let labels = json!({ "metadata": { "labels": { "policies.portcullis.dev/policy-server": "other" } } });
    for edit in [json!({ "webhooks": [] }), labels] {
        let (start, mut repairs) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(8) {
            api.patch(&path, &edit).expect("an answer").expect("the edit");
            eventually("a repair", || api.get(&path).filter(|now| essence(now) == essence(&webhook)));
            repairs += 1;
        }
        // From the sixth on, they are at least a second apart.
        let most = 6 + start.elapsed().as_secs();
        assert!(repairs <= most, "{repairs} repairs in {:?}", start.elapsed());
    }
    canary.end();
}

/// Gives every entry of the installation's webhooks this `caBundle`.
fn spoil(scene: &Scene, bundle: &str) {
    for webhook in scene.installation.webhooks() {
        let mut entries = webhook["webhooks"].clone();
        for entry in entries.as_array_mut().expect("entries") {
            entry["clientConfig"]["caBundle"] = STANDARD.encode(bundle).into();
        }
        let patched = scene.installation.api().patch(&Scene::path(&webhook), &json!({ "webhooks": entries }));
        patched.expect("an answer").expect("the edit");
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w03_a_wrong_ca_bundle_is_repaired() {
    let proxy = Proxy::start(cluster());
    let scene = Scene::with("bundle", 1, quick().through(Program::Controller, proxy.address()));
    // Its own webhook is not spoiled.
    let canary = scene.installation.own_canary();
    let [strict, lax] = ["Fail", "Ignore"].map(|failure_policy| {
        let name = format!("bundle-{}", failure_policy.to_lowercase());
        let resource = if failure_policy == "Fail" { "pods" } else { "configmaps" };
        scene.installation.cluster_policy(&name).denying("no").on(&[resource]).field("failurePolicy", failure_policy)
    });
    scene.installation.apply_ready(&[strict.clone(), lax.clone()]);
    let (before, api) = (scene.webhooks(2), scene.installation.api());
    let try_config_map = || -> (u16, String) {
        let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "one" } });
        let path = format!("/api/v1/namespaces/{}/configmaps?dryRun=All", scene.namespace);
        let reply = api.create(&path, &object).expect("an answer");
        (reply.code, reply.body["message"].as_str().unwrap_or_default().to_owned())
    };
    let is_right = || {
        before.iter().all(|webhook| api.get(&Scene::path(webhook)).is_some_and(|now| essence(&now) == essence(webhook)))
    };
    let judged = || {
        for policy in [&strict, &lax] {
            let condition = scene.wait_reason(policy, "Registered");
            assert_eq!(condition["status"], "True", "{condition}");
            scene.installation.wait_for(policy, "Ready", "True");
        }
        eventually("a denial of each policy", || {
            let (pod, config_map) = (scene.try_pod(), try_config_map());
            let denies = |name: &str, (code, message): &(u16, String)| {
                *code == 403 && message.contains(&format!("policy cluster/{name}: no"))
            };
            (denies(strict.name(), &pod) && denies(lax.name(), &config_map)).then_some(())
        });
    };
    judged();

    let other = rcgen::generate_simple_self_signed(vec!["nobody".to_owned()]).expect("a certificate").cert.pem();
    for bundle in [other.as_str(), ""] {
        if bundle.is_empty() {
            // After half a minute in which nobody changes them, the next changes are not taken for reverted writes, which have another reason.
            thread::sleep(Duration::from_secs(35));
        }
        // The controller repairs it at once.
        spoil(&scene, bundle);
        scene.installation.assert_recovers("the right bundle", || is_right().then_some(()));
        judged();

        // Until it can repair it, the status says what is wrong, and calls fail by the `failurePolicy` of each webhook.
        proxy.rule(Rule::on("PATCH", "/validatingwebhookconfigurations/").answer(503, "not yet"));
        spoil(&scene, bundle);
        for policy in [&strict, &lax] {
            let condition = scene.wait_reason(policy, "CABundleInvalid");
            assert_eq!(condition["status"], "False", "{condition}");
            let message = condition["message"].as_str().unwrap_or_default();
            assert!(message.contains("trusts other authorities than those in use"), "{condition}");
        }
        eventually("calls that fail", || {
            (scene.try_pod().1.contains("failed calling webhook") && try_config_map().0 == 201).then_some(())
        });
        for _ in 0..5 {
            let (code, message) = scene.try_pod();
            assert!(code >= 400 && message.contains("failed calling webhook"), "{code} {message}");
            assert!(message.contains("certificate"), "{code} {message}");
            let (code, message) = try_config_map();
            assert_eq!(code, 201, "{message}");
        }
        assert!(!is_right(), "nobody can have repaired it");
        proxy.clear();
        eventually_within(REPAIR, "the right bundle", || is_right().then_some(()));
        judged();
    }
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
