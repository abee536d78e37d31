//! Policy groups with a real API server: their verdicts, the digests of their members, a second replica, and a broken expression.

use portcullis_e2e::{eventually, example, guest};
use serde_json::{Value, json};

use crate::installation;

#[test]
#[ignore = "starts a cluster"]
fn a_policy_group_is_pinned_by_member_and_judges_the_same_on_every_replica() {
    let installation = installation("members", 1);
    let shop = installation.make_namespace("shop");
    let source = installation.source();
    source.put("/labels.wasm", example("required-labels"));
    source.put("/accept.wasm", guest("always_accept"));
    let labels = |label: &str| json!({"module": source.url("/labels.wasm"), "settings": {"labels": [label]}, "timeoutEvalSeconds": 9});
    let members = json!({"owned": labels("owner"), "exempt": labels("exempt"), "yes": {"module": source.url("/accept.wasm"), "timeoutEvalSeconds": 9}});
    let group = |expression: &str| {
        installation.cluster_policy("members").at("").on(&["configmaps"]).with(&json!({"spec": {
            "module": null, "policies": members, "expression": expression, "message": "neither owned nor exempt",
        }}))
    };
    let policy = group("yes() && (owned() || exempt())");
    installation.apply_ready(std::slice::from_ref(&policy));
    let create = |labels: Value| {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": shop, "labels": labels}});
        let path = format!("/api/v1/namespaces/{shop}/configmaps?dryRun=All");
        let answer = installation.api().create(&path, &object).unwrap();
        (answer.code, answer.body)
    };
    assert_eq!(create(json!({"exempt": "yes"})).0, 201);
    let (code, denied) = create(json!({}));
    assert!(code == 403 && denied.to_string().contains("policy cluster/members: neither owned nor exempt"), "{denied}");
    assert!(denied.to_string().contains("spec.policies.owned"), "{denied}");

    // The digests of the members are resolved and recorded, and a new replica serves the same modules.
    let status = installation.object(&policy).expect("it is there")["status"]["resolved"].take();
    let resolved = status["members"].clone();
    assert_eq!(resolved.as_object().map(serde_json::Map::len), Some(3), "{status}");
    assert_eq!(resolved["owned"], resolved["exempt"]);
    eventually("the members to be recorded", || {
        let pins = installation.revisions().into_iter().filter_map(|revision| {
            revision["metadata"]["annotations"]["policies.portcullis.dev/pinned-digest"].as_str().map(str::to_owned)
        });
        pins.filter_map(|pin| serde_json::from_str::<Value>(&pin).ok()).find(|pin| *pin == resolved)
    });
    installation.add_replica().wait_ready();
    policy.wait_until(&installation.api(), "two replicas that serve it", |object| object["status"]["summary"] == "2/2");
    assert_eq!(create(json!({"owner": "me"})).0, 201);

    // The status reports a mistake in the expression, and the group goes on serving unchanged.
    let slip = group("yes() && ownd()");
    installation.apply(&slip).expect("the schema cannot tell");
    let object = slip.wait_for(&installation.api(), "Accepted", "False");
    assert!(object["status"].to_string().contains("it calls `ownd()`"), "{}", object["status"]);
    assert_eq!((create(json!({"exempt": "yes"})).0, create(json!({})).0), (201, 403));
}
