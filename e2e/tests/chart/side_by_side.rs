//! Several installations in one cluster.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use portcullis_e2e::objects_of;

use crate::{everything, find, helm, render};

/// Kind, namespace and name of the objects outside of the installation's own namespace.
fn shared(objects: &[Value]) -> BTreeSet<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let names = objects.iter().map(|object| {
        let metadata = &object["metadata"];
        (text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"]))
    });
    names.filter(|(_, namespace, _)| namespace != crate::NAMESPACE).collect()
}

#[test]
fn names_that_the_cluster_shares_contain_the_name_of_the_policy_server() {
    let mut values = everything();
    values["certificates"]["mode"] = json!("cert-manager");
    for (kind, namespace, name) in shared(&render(&values)) {
        let is_ours = name.starts_with("portcullis-edge-") || kind == "CustomResourceDefinition";
        assert!(is_ours, "{kind} {name}");
        assert!(namespace.is_empty() || namespace == "default", "{kind} {name} is in {namespace}");
    }
}

#[test]
fn a_second_policy_server_shares_no_name_with_the_first() {
    let first = shared(&render(&json!({})));
    let second = shared(&render(&json!({ "policyServer": "two", "crds": { "install": false } })));
    assert!(!second.is_empty());
    assert_eq!(first.intersection(&second).collect::<Vec<_>>(), Vec::<&_>::new());
}

#[test]
fn a_second_installation_of_one_name_meets_the_first_in_another_namespace() {
    let rendered = helm().template("other", "elsewhere", &json!({ "crds": { "install": false } }));
    let second = objects_of(&rendered.stdout);
    let cluster_roles = |objects: &[Value]| {
        shared(objects).into_iter().filter(|(kind, ..)| kind == "ClusterRole").collect::<BTreeSet<_>>()
    };
    // Helm refuses objects that belong to another release.
    assert_eq!(cluster_roles(&render(&json!({}))), cluster_roles(&second));
}

#[test]
fn rules_of_the_api_server_are_about_the_accounts_of_one_installation() {
    for object in render(&json!({})).iter().filter(|object| object["kind"] == "ValidatingAdmissionPolicy") {
        let condition = object["spec"]["matchConditions"][0]["expression"].as_str().unwrap();
        let accounts =
            ["policy-server", "controller"].map(|name| format!("'system:serviceaccount:gate:portcullis-{name}'"));
        assert!(accounts.iter().any(|account| condition.ends_with(account)), "{condition}");
    }
}

#[test]
fn the_controller_writes_no_webhook_of_a_policy_server_whose_name_is_longer() {
    let objects = render(&json!({ "policyServer": "team" }));
    let fence = find(&objects, "ValidatingAdmissionPolicy", "portcullis-team-webhooks");
    let names = fence["spec"]["validations"][0]["expression"].as_str().unwrap();
    // The same names as in `controller/src/world/webhook.rs`; `portcullis-team-b-check` is that of the policy server `team-b`.
    assert!(names.ends_with(".matches('^portcullis-team-([0-9a-f]{16}|check)$')"), "{names}");
}
