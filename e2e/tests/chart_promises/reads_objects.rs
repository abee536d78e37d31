//! The rights that the chart grants for policies that read objects of the cluster.

use portcullis_e2e::condition;
use serde_json::{Value, json};

use crate::stage::{Stage, assert_denied};

fn call(operation: &str, payload: &Value) -> Value {
    json!({ "raw": { "namespace": "kubernetes", "operation": operation, "payload": payload } })
}

#[test]
#[ignore = "starts a cluster"]
fn rights_of_the_chart_are_enough_to_read_objects() {
    let stage = Stage::new("reads-objects");
    let (release, shop) = (stage.release(), stage.namespace());
    // The policy reads the namespace of the pod, and asks what an administrator may do.
    let list = json!({ "api_version": "v1", "kind": "Namespace", "label_selector": format!("kubernetes.io/metadata.name={shop}"),
        "field_masks": ["metadata.name"] });
    let review = json!({ "subject_access_review": {
        "user": "system:admin", "groups": ["system:masters"], "resource_attributes": { "resource": "secrets", "verb": "get" },
    } });
    let policy = release
        .cluster_policy("reads-objects")
        .example("host-capabilities")
        .field("hostCapabilities", json!(["kubernetes/list_resources_all", "kubernetes/can_i"]))
        .field("contextAwareResources", json!([{ "apiVersion": "v1", "kind": "Namespace" }]))
        .field("timeoutEvalSeconds", 10)
        .field("settings", json!({ "calls": [call("list_resources_all", &list), call("can_i", &review)] }));
    release.apply(&policy).expect("a policy");

    // Without the right, the status says which rule to grant.
    let rule = r#"{apiGroups: [""], resources: [namespaces], verbs: [get, list, watch]}"#;
    policy.wait_until(&release.api(), "a condition that names the rule", |object| {
        condition(object, "ContextSynced").is_some_and(|found| {
            found["status"] == "False" && found["message"].as_str().is_some_and(|message| message.contains(rule))
        })
    });
    release.create_pod(&shop, "nobody-asked", &json!({})).expect("a pod about which nobody is asked");

    // The same rule is in the values of the chart.
    stage.set(&json!({ "rbac": {
        "contextAwareReads": [{ "apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "list", "watch"] }],
        "accessReviews": true,
    } }));
    release.apply_ready(std::slice::from_ref(&policy));
    let denied = release.create_pod(&shop, "asked", &json!({}));
    assert_denied(&denied, &format!(r#""metadata":{{"name":"{shop}","uid":"#));
    assert_denied(&denied, r#""allowed":true"#);
}
