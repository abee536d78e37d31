//! Policies of one group that change the same object.

use portcullis_e2e::Policy;
use serde_json::json;

use crate::scene::Scene;

#[test]
#[ignore = "starts a cluster"]
fn fault_w16_members_that_change_the_same_field_act_in_the_order_of_their_ids_and_a_denial_stands_alone() {
    let scene = Scene::new("both", 1);
    let canary = scene.installation.own_canary();
    let writing = |name: &str, value: &str| -> Policy {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": { "key": value },
            "metadata": { "name": "shared", "namespace": scene.namespace },
        });
        let answer = json!({ "accepted": true, "mutated_object": object }).to_string();
        scene.installation.cluster_policy(name).answering("answer", answer).on(&["configmaps"]).field("mutating", true)
    };
    scene.installation.apply_ready(&[writing("both-a", "a"), writing("both-b", "b")]);
    let [webhook] = scene.webhooks(1).try_into().expect("one for both");
    assert_eq!(webhook["webhooks"][0]["reinvocationPolicy"], "Never");
    scene.installation.create_config_map(&scene.namespace, "shared").expect("both accept");
    let path = format!("/api/v1/namespaces/{}/configmaps/shared", scene.namespace);
    let api = scene.installation.api();
    assert_eq!(api.find(&path).unwrap_or_default()["data"], json!({ "key": "b" }));

    let denying = scene.installation.cluster_policy("both-b").denying("not like this").on(&["configmaps"]);
    scene.installation.apply_ready(&[denying.field("mutating", true)]);
    api.delete(&path, None).expect("an answer").expect("the deletion");
    let refused = scene.installation.create_config_map(&scene.namespace, "shared");
    assert!(!refused.is_ok() && refused.stderr.contains("not like this"), "{}", refused.stderr);
    assert!(api.find(&path).is_none());
    canary.end();
}
