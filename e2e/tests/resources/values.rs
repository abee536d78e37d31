//! The values that are stored, and the defaults of fields that a user leaves out.

use serde_json::json;

use crate::{cluster, policy};

#[test]
#[ignore = "starts a cluster"]
fn settings_come_back_as_they_were_written() {
    let cluster = cluster();
    let settings = json!({
        "above2to53": 9_007_199_254_740_993_i64, "largest": i64::MAX, "smallest": i64::MIN,
        "deep": { "list": [1, 2.5, "three", null, { "four": [] }], "empty": {} }, "Upper-case": true,
    });
    for server_side in [false, true] {
        let object = policy("ClusterPolicy", "numbers", &json!({ "settings": settings })).to_string();
        let applied = if server_side { cluster.apply_server_side(&object) } else { cluster.apply(&object) };
        applied.expect("a policy with settings");
        let stored = cluster.kubectl(["get", "cpol", "numbers", "--output=json"]).json("the policy");
        assert_eq!(stored["spec"]["settings"], settings);
    }
}

#[test]
#[ignore = "starts a cluster"]
fn what_is_not_written_has_the_documented_defaults() {
    let cluster = cluster();
    cluster.apply(&policy("Policy", "short", &json!({})).to_string()).expect("the shortest policy");
    let stored = cluster.kubectl(["get", "pol", "short", "--output=json"]).json("the policy");
    let mut spec = stored["spec"].clone();
    spec.as_object_mut().unwrap().retain(|field, _| field != "module" && field != "rules");
    assert_eq!(
        spec,
        json!({
            "policyServer": "default", "settings": {}, "mutating": false, "mode": "protect", "failurePolicy": "Fail",
            "matchPolicy": "Equivalent", "sideEffects": "None", "timeoutSeconds": 10, "revisionHistoryLimit": 10,
            "backgroundAudit": true, "suspend": false,
        }),
    );
}

#[test]
#[ignore = "starts a cluster"]
fn both_halves_of_a_selector_are_kept() {
    let cluster = cluster();
    let selector = json!({
        "matchLabels": { "tier": "web" },
        "matchExpressions": [{ "key": "env", "operator": "NotIn", "values": ["test"] }, { "key": "keep", "operator": "Exists" }],
    });
    let spec = json!({ "objectSelector": selector, "namespaceSelector": selector });
    cluster.apply(&policy("ClusterPolicy", "selects", &spec).to_string()).expect("a policy with selectors");
    let stored = cluster.kubectl(["get", "cpol", "selects", "--output=json"]).json("the policy");
    assert_eq!(stored["spec"]["objectSelector"], selector);
    assert_eq!(stored["spec"]["namespaceSelector"], selector);
}

#[test]
#[ignore = "starts a cluster"]
fn policies_of_an_installation_can_be_listed() {
    let cluster = cluster();
    cluster.apply(&policy("Policy", "of-third", &json!({ "policyServer": "third" })).to_string()).expect("a policy");
    let list = cluster.kubectl(["get", "policies", "--field-selector=spec.policyServer=third", "--output=name"]);
    assert_eq!(list.expect("a list"), "policy.policies.portcullis.dev/of-third");
}
