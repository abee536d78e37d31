//! Requests of a real API server for large objects, and for mutating policies that run in turn.

use serde_json::{Value, json};

use crate::installation;

fn config_map(namespace: &str, name: &str, letter: &str, revision: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": namespace },
        "data": { "text": letter.repeat(1_000_000), "revision": revision.to_string() },
    })
}

#[test]
#[ignore = "starts a cluster"]
fn fault_h03_an_update_of_the_largest_objects_passes_and_a_review_beyond_the_limit_meets_the_failure_policy() {
    let installation = installation("large", 1);
    let canary = installation.own_canary();
    let shop = installation.make_namespace("shop");
    let rule = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE", "UPDATE"],
    });
    let policy = installation.cluster_policy("large").field("rules", json!([rule]));
    installation.apply_ready(&[policy]);
    let api = installation.api();
    let collection = format!("/api/v1/namespaces/{shop}/configmaps");

    // A quotation mark takes two bytes in JSON, so the old and the new object have two megabytes each.
    api.create(&collection, &config_map(&shop, "quotes", "\"", 1)).unwrap().expect("a large object");
    let edit = config_map(&shop, "quotes", "\"", 2);
    api.patch(&format!("{collection}/quotes"), &edit).unwrap().expect("an edit of a large object");

    // API servers encode this character with six bytes, so one object fits into a review, but two do not.
    api.create(&collection, &config_map(&shop, "angles", "<", 1)).unwrap().expect("a large object");
    let edit = json!({ "data": { "revision": "2" } });
    let refused = api.patch(&format!("{collection}/angles"), &edit).unwrap();
    let message = refused.body["message"].as_str().unwrap_or_default();
    assert!(!refused.is_ok() && message.contains("failed calling webhook"), "{refused:?}");

    let other = api.create(
        &collection,
        &json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "small", "namespace": shop },
        }),
    );
    other.unwrap().expect("a small object, after the large one");
    canary.end();
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w16_mutating_policies_act_in_the_order_of_their_ids_and_a_denial_stands_alone() {
    let installation = installation("order", 1);
    let canary = installation.own_canary();
    let shop = installation.make_namespace("shop");
    let mutating = |name: &str| installation.cluster_policy(name).example("default-resources").field("mutating", true);
    let settings = |cpu: &str| json!({ "cpu": cpu, "memory": "64Mi" });
    let first = mutating("order-1").field("settings", settings("100m"));
    let second = mutating("order-2").field("settings", settings("200m"));
    installation.apply_ready(&[second, first]);
    assert_eq!(installation.webhooks().len(), 1);

    // The second policy gets the requests that the first one set, and keeps them.
    installation.create_pod(&shop, "one", &json!({})).expect("a pod");
    let pod = installation.api().get(&format!("/api/v1/namespaces/{shop}/pods/one")).unwrap();
    assert_eq!(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"], "100m");

    let third = installation.cluster_policy("order-3").denying("not after all").field("mutating", true);
    installation.apply_ready(&[third]);
    let denied = installation.create_pod(&shop, "two", &json!({}));
    crate::assert_denied(&denied, "policy cluster/order-3: not after all");
    assert_eq!(installation.api().get(&format!("/api/v1/namespaces/{shop}/pods/two")), None);
    canary.end();
}
