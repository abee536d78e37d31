//! The rights of the accounts of the chart.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{everything, find, has, render};

/// Each right as `group/resource verb`, with the names it is limited to.
fn rights(role: &Value) -> BTreeSet<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut rights = BTreeSet::new();
    for rule in list(&role["rules"]) {
        let names: Vec<_> =
            list(&rule["resourceNames"]).iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect();
        let only = if names.is_empty() { String::new() } else { format!(" of {}", names.join(",")) };
        for (group, resource, verb) in list(&rule["apiGroups"]).iter().flat_map(|group| {
            let rule = rule.clone();
            let pairs = list(&rule["resources"]).into_iter();
            let group = group.clone();
            pairs.flat_map(move |resource| {
                let group = group.clone();
                list(&rule["verbs"]).into_iter().map(move |verb| (group.clone(), resource.clone(), verb))
            })
        }) {
            let [group, resource, verb] = [group, resource, verb].map(|part| part.as_str().unwrap().to_owned());
            rights.insert(format!("{group}/{resource} {verb}{only}"));
        }
    }
    rights
}

fn set(rights: &[&str]) -> BTreeSet<String> {
    rights.iter().map(|&right| right.to_owned()).collect()
}

#[test]
fn no_role_has_a_star() {
    for object in render(&everything()) {
        if ["Role", "ClusterRole"].iter().any(|kind| object["kind"] == *kind) {
            assert!(!object["rules"].to_string().contains('*'), "{}", object["metadata"]["name"]);
        }
    }
}

#[test]
fn the_policy_server_reads_no_secret_and_writes_no_spec() {
    let objects = render(&json!({}));
    for kind in ["Role", "ClusterRole"] {
        for role in objects.iter().filter(|object| object["kind"] == kind) {
            let name = role["metadata"]["name"].as_str().unwrap();
            if !["loader", "reporter"].iter().any(|part| name.contains(part)) {
                continue;
            }
            for right in rights(role) {
                assert!(!right.contains("secrets"), "{name}: {right}");
                let writes_spec = right.contains("policies ") && !right.contains("list") && !right.contains("watch");
                assert!(!writes_spec, "{name}: {right}");
            }
        }
    }
    assert_eq!(
        rights(find(&objects, "Role", "portcullis-loader")),
        set(&["apps/controllerrevisions list", "apps/controllerrevisions watch"])
    );
}

#[test]
fn the_controller_sees_the_secrets_it_keeps_and_no_others() {
    let objects = render(&json!({}));
    let secrets: BTreeSet<_> = objects
        .iter()
        .filter(|object| ["Role", "ClusterRole"].iter().any(|kind| object["kind"] == *kind))
        .flat_map(rights)
        .filter(|right| right.starts_with("/secrets"))
        .collect();
    let own = " of portcullis-default-ca,portcullis-default-tls,portcullis-default-paths";
    let expected = ["create".to_owned(), format!("get{own}"), format!("update{own}")];
    assert_eq!(secrets, expected.map(|right| format!("/secrets {right}")).into());
}

#[test]
fn who_uninstalls_may_remove_the_lease_of_its_own_reporters_and_their_right_to_make_another() {
    let objects = render(&json!({ "policyServer": "edge" }));
    let namespaced = [
        "apps/deployments get of portcullis-controller",
        "apps/deployments delete of portcullis-controller",
        "rbac.authorization.k8s.io/rolebindings get of portcullis-reporter-leader",
        "rbac.authorization.k8s.io/rolebindings delete of portcullis-reporter-leader",
        "coordination.k8s.io/leases get of portcullis-edge-reporter",
        "coordination.k8s.io/leases delete of portcullis-edge-reporter",
    ];
    assert_eq!(rights(find(&objects, "Role", "portcullis-uninstall")), set(&namespaced));
    let role = rights(find(&objects, "ClusterRole", "portcullis-edge-uninstall"));
    for right in ["policies/status patch", "clusterpolicies/status patch"] {
        assert!(
            role.contains(&format!("policies.portcullis.dev/{right}")),
            "{right}: they say that nothing evaluates them"
        );
    }
    // This binding is the only one that lets reporters write a Lease, and its Role names the same Lease.
    let writers = objects.iter().filter(|object| ["Role", "ClusterRole"].iter().any(|kind| object["kind"] == *kind));
    let mut writers = writers.filter(|role| rights(role).contains("coordination.k8s.io/leases create"));
    let names: Vec<_> = writers.by_ref().map(|role| role["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["portcullis-controller", "portcullis-reporter-leader"]);
    let leader = find(&objects, "Role", "portcullis-reporter-leader");
    assert!(rights(leader).contains("coordination.k8s.io/leases update of portcullis-edge-reporter"));
    assert_eq!(
        find(&objects, "RoleBinding", "portcullis-reporter-leader")["roleRef"]["name"],
        "portcullis-reporter-leader"
    );
}

#[test]
fn no_default_role_of_kubernetes_gets_the_right_to_write_policies() {
    for values in [json!({}), everything()] {
        for object in render(&values) {
            let labels = object["metadata"]["labels"].as_object().cloned().unwrap_or_default();
            let is_aggregated = labels.keys().any(|label| label.starts_with("rbac.authorization.k8s.io/aggregate-to-"));
            if !is_aggregated {
                continue;
            }
            for right in rights(&object) {
                let verb = right.split_whitespace().nth(1).unwrap();
                assert!(["get", "list", "watch"].contains(&verb), "{}: {right}", object["metadata"]["name"]);
            }
        }
    }
}

#[test]
fn who_may_view_may_read_policies_unless_that_is_switched_off() {
    let label = |values| {
        let objects = render(&values);
        let viewer = find(&objects, "ClusterRole", "portcullis-default-viewer");
        viewer["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"].clone()
    };
    assert_eq!(label(json!({})), "true");
    assert_eq!(label(json!({ "rbac": { "aggregateToView": false } })), Value::Null);
}

#[test]
fn a_role_for_authors_of_policies_is_there_to_be_bound_by_hand() {
    let objects = render(&json!({}));
    let editor = rights(find(&objects, "ClusterRole", "portcullis-default-editor"));
    assert!(editor.contains("policies.portcullis.dev/clusterpolicies create"));
    let bound = objects.iter().filter(|object| object["roleRef"]["name"] == "portcullis-default-editor").count();
    assert_eq!(bound, 0);
}

#[test]
fn what_policies_may_read_is_what_the_operator_lists() {
    assert!(!has(&render(&json!({})), "ClusterRole", "portcullis-default-context-aware"));
    let objects = render(&everything());
    assert_eq!(
        rights(find(&objects, "ClusterRole", "portcullis-edge-context-aware")),
        set(&["/namespaces get", "/namespaces list", "/namespaces watch"])
    );
    let binding = find(&objects, "ClusterRoleBinding", "portcullis-edge-context-aware");
    assert_eq!(binding["subjects"][0]["name"], "portcullis-policy-server");
}

#[test]
fn an_audit_lists_what_the_operator_lists_and_writes_reports_of_one_format() {
    assert!(!has(&render(&json!({})), "ClusterRole", "portcullis-default-audit"));
    let writes = |group: &str, kinds: [&str; 2]| {
        let verbs = ["get", "list", "create", "update", "patch", "delete"];
        let of = |kind: &&str| verbs.map(|verb| format!("{group}/{kind} {verb}"));
        kinds.iter().flat_map(of).chain(["/namespaces list".to_owned()]).collect::<BTreeSet<_>>()
    };
    let objects = render(&json!({ "audit": { "enabled": true } }));
    let role = rights(find(&objects, "ClusterRole", "portcullis-default-audit"));
    assert_eq!(role, writes("openreports.io", ["reports", "clusterreports"]));
    let viewer = rights(find(&objects, "ClusterRole", "portcullis-default-viewer"));
    assert!(viewer.contains("openreports.io/reports list"), "{viewer:?}");

    let objects = render(&everything());
    let mut wanted = writes("wgpolicyk8s.io", ["policyreports", "clusterpolicyreports"]);
    wanted.insert("apps/deployments list".to_owned());
    assert_eq!(rights(find(&objects, "ClusterRole", "portcullis-edge-audit")), wanted);
    let binding = find(&objects, "ClusterRoleBinding", "portcullis-edge-audit");
    assert_eq!(binding["subjects"][0]["name"], "portcullis-policy-server");

    // Checks of applied policies read objects too, but do not write anything.
    let reads = json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["list"] }]);
    let objects = render(&json!({ "rbac": { "auditReads": reads } }));
    assert_eq!(rights(find(&objects, "ClusterRole", "portcullis-default-audit")), set(&["/pods list"]));
    assert!(!has(&objects, "ValidatingAdmissionPolicy", "portcullis-default-audit"));
    // To count objects, they must also find the namespaces of a namespaceSelector.
    let checks = |mode: &str, reads: &Value| {
        let checks = json!({ "mode": mode, "impact": true });
        render(&json!({ "policyChecks": checks, "rbac": { "auditReads": reads } }))
    };
    let objects = checks("warn", &reads);
    let role = rights(find(&objects, "ClusterRole", "portcullis-default-audit"));
    assert_eq!(role, set(&["/namespaces list", "/pods list"]));
    assert!(!has(&objects, "ValidatingAdmissionPolicy", "portcullis-default-audit"));
    let objects = checks("deny", &json!([]));
    assert_eq!(rights(find(&objects, "ClusterRole", "portcullis-default-audit")), set(&["/namespaces list"]));
    assert!(!has(&checks("off", &json!([])), "ClusterRole", "portcullis-default-audit"));
}

#[test]
fn reports_of_others_are_behind_a_fence() {
    for (values, name, group) in [
        (json!({ "audit": { "enabled": true } }), "portcullis-default-audit", "openreports.io"),
        (everything(), "portcullis-edge-audit", "wgpolicyk8s.io"),
    ] {
        let objects = render(&values);
        let fence = find(&objects, "ValidatingAdmissionPolicy", name);
        let rule = &fence["spec"]["matchConstraints"]["resourceRules"][0];
        assert_eq!(rule["apiGroups"], json!([group]));
        assert_eq!(rule["operations"], json!(["CREATE", "UPDATE", "DELETE"]));
        let binding = find(&objects, "ValidatingAdmissionPolicyBinding", name);
        assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
    }
}

#[test]
fn fences_can_be_left_out_and_the_notes_say_what_that_means() {
    let objects = render(&json!({ "fences": { "enabled": false } }));
    assert!(!objects.iter().any(|object| object["kind"].as_str().unwrap().starts_with("ValidatingAdmission")));
    assert_eq!(render(&json!({})).iter().filter(|object| object["kind"] == "ValidatingAdmissionPolicy").count(), 6);
}
