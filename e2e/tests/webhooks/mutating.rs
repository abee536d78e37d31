//! Policies of one group that change the same object.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_e2e::{Caller, Policy, eventually};
use serde_json::{Value, json};

use crate::scene::Scene;

/// The prefix of the annotations in which the audit log says which mutating webhooks an API server called for a request, one for each call.
const CALLS: &str = "mutation.webhook.admission.k8s.io/";

/// A mutating policy on these resources that replaces each object with this one.
fn making(scene: &Scene, name: &str, resource: &str, object: &Value) -> Policy {
    let answer = json!({ "accepted": true, "mutated_object": object }).to_string();
    mutating(scene, name, resource).answering("answer", answer)
}

fn mutating(scene: &Scene, name: &str, resource: &str) -> Policy {
    scene.installation.cluster_policy(name).on(&[resource]).field("mutating", true)
}

fn config_map(scene: &Scene, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": { "key": value },
        "metadata": { "name": "shared", "namespace": scene.namespace },
    })
}

fn pod(scene: &Scene, is_privileged: bool) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "shared", "namespace": scene.namespace },
        "spec": { "containers": [{
            "name": "main", "image": "example.invalid/none", "securityContext": { "privileged": is_privileged },
        }] },
    })
}

/// The calls of mutating webhooks for the creation of `shared` that was answered with this code: the name of each webhook configuration, and
/// whether its answer had a patch.
fn calls(scene: &Scene, resource: &str, code: u16) -> Vec<(String, bool)> {
    let is_it = |event: &Value| {
        let object = &event["objectRef"];
        event["verb"] == "create"
            && event["stage"] == "ResponseComplete"
            && event["responseStatus"]["code"] == code
            && (&object["resource"], &object["name"]) == (&json!(resource), &json!("shared"))
            && object["namespace"] == *scene.namespace
    };
    let event = eventually("the creation in the audit log", || {
        scene.installation.cluster().audit_events(&scene.namespace).into_iter().find(is_it)
    });
    let annotations = event["annotations"].as_object().cloned().unwrap_or_default();
    let called = annotations.into_iter().filter(|(key, _)| key.starts_with(CALLS));
    let read = |(_, text): (String, Value)| {
        let call: Value = serde_json::from_str(text.as_str().expect("a text")).expect("JSON");
        let name = call["configuration"].as_str().expect("a name").to_owned();
        (name, call["mutated"].as_bool().expect("yes or no"))
    };
    called.map(read).collect()
}

/// What the only replica answers when this webhook asks it about the creation of an object.
fn answer(scene: &Scene, webhook: &Value, kind: &str, resource: &str, object: &Value) -> Value {
    let replica = scene.installation.replicas().remove(0);
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "00000000-0000-4000-8000-000000000016", "operation": "CREATE", "userInfo": { "username": "alice" },
            "kind": { "group": "", "version": "v1", "kind": kind },
            "resource": { "group": "", "version": "v1", "resource": resource },
            "name": "shared", "namespace": scene.namespace, "object": object,
        },
    });
    let caller = Caller::new(&scene.installation, webhook, &replica);
    let (code, answer) = caller.send(review.to_string().as_bytes()).expect("an answer");
    assert_eq!(code, 200, "{answer}");
    answer["response"].clone()
}

fn patch(response: &Value) -> Value {
    assert_eq!((&response["allowed"], &response["patchType"]), (&json!(true), &json!("JSONPatch")), "{response}");
    let bytes = STANDARD.decode(response["patch"].as_str().expect("a patch")).expect("base64");
    serde_json::from_slice(&bytes).expect("JSON")
}

/// Asserts that an answer is a denial of this policy alone, without any change of the object.
fn assert_stands_alone(response: &Value, message: &str) {
    assert_eq!(response["allowed"], false, "{response}");
    assert_eq!(response["status"]["message"], message, "{response}");
    assert!(response["patch"].is_null() && response["patchType"].is_null(), "{response}");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w16_members_that_change_the_same_field_act_in_the_order_of_their_ids_and_a_denial_stands_alone() {
    let scene = Scene::new("both", 1);
    let canary = scene.installation.own_canary();
    // The order is that of the ids, and not that of age: the second one is older.
    for (name, value) in [("both-b", "b"), ("both-a", "a")] {
        let object = config_map(&scene, value);
        scene.installation.apply_ready(&[making(&scene, name, "configmaps", &object)]);
    }
    let [webhook] = scene.webhooks(1).try_into().expect("one for both");
    let name = webhook["metadata"]["name"].as_str().expect("a name").to_owned();
    assert_eq!(webhook["webhooks"][0]["reinvocationPolicy"], "Never");
    scene.installation.create_config_map(&scene.namespace, "shared").expect("both accept");
    let path = format!("/api/v1/namespaces/{}/configmaps/shared", scene.namespace);
    let api = scene.installation.api();
    assert_eq!(api.find(&path).unwrap_or_default()["data"], json!({ "key": "b" }));
    // The API server calls once and gets one patch, in which only the last value is.
    assert_eq!(calls(&scene, "configmaps", 201), [(name.clone(), true)]);
    let ask = || answer(&scene, &webhook, "ConfigMap", "configmaps", &config_map(&scene, "value"));
    assert_eq!(patch(&ask()), json!([{ "op": "replace", "path": "/data/key", "value": "b" }]));

    let denying = mutating(&scene, "both-b", "configmaps").denying("not like this");
    scene.installation.apply_ready(&[denying]);
    api.delete(&path, None).expect("an answer").expect("the deletion");
    let refused = scene.installation.create_config_map(&scene.namespace, "shared");
    assert!(!refused.is_ok() && refused.stderr.contains("not like this"), "{}", refused.stderr);
    assert!(api.find(&path).is_none());
    assert_eq!(calls(&scene, "configmaps", 403), [(name, false)]);
    assert_stands_alone(&ask(), "policy cluster/both-b: not like this");

    rejects_what_the_first_made(&scene);
    canary.end();
}

/// The second member rejects privileged pods, and the first one makes each pod privileged.
fn rejects_what_the_first_made(scene: &Scene) {
    let before = scene.webhooks(1);
    let rejecting = mutating(scene, "pods-2", "pods").example("no-privileged");
    scene.installation.apply_ready(&[rejecting]);
    scene.create("shared").expect("the request itself is fine");
    let path = format!("/api/v1/namespaces/{}/pods/shared", scene.namespace);
    let api = scene.installation.api();
    api.delete(&path, Some(0)).expect("an answer").expect("the deletion");
    eventually("the end of the pod", || api.find(&path).is_none().then_some(()));

    scene.installation.apply_ready(&[making(scene, "pods-1", "pods", &pod(scene, true))]);
    let webhooks = scene.webhooks(2);
    let [webhook] = &webhooks.iter().filter(|webhook| !before.contains(webhook)).collect::<Vec<_>>()[..] else {
        panic!("want one for both: {webhooks:#?}")
    };
    let refused = scene.create("shared").expect_err("the second rejects what the first made");
    let message = "policy cluster/pods-2: privileged containers are not allowed: container main";
    assert!(refused.contains(message) && !refused.contains("pods-1"), "{refused}");
    assert!(api.find(&path).is_none());
    let name = webhook["metadata"]["name"].as_str().expect("a name").to_owned();
    assert_eq!(calls(scene, "pods", 403), [(name, false)]);
    assert_stands_alone(&answer(scene, webhook, "Pod", "pods", &pod(scene, false)), message);
}
