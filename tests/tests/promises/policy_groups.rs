//! Policy groups: an expression combines the verdicts of their members.

use std::fs;

use portcullis_tests::{Folder, Pod, Policy, Review, guest, guest_with};
use serde_json::{Value, json};

const ID: &str = "cluster/group";

/// A folder with the modules of the groups in these tests.
fn folder() -> Folder {
    let folder = Folder::empty();
    for name in ["always_accept", "mutates_label", "endless_loop"] {
        folder.write(&format!("policies/modules/{name}.wasm"), guest(name));
    }
    folder.write("policies/modules/deny.wasm", guest_with("deny_text", b"no, says the member"));
    for name in ["required-labels", "no-privileged"] {
        folder.write(&format!("policies/modules/{name}.wasm"), portcullis_testkit::example(name));
    }
    folder
}

fn member(module: &str) -> Value {
    json!({"module": format!("modules/{module}.wasm")})
}

fn group(members: &Value, expression: &str) -> Policy {
    Policy::cluster("group").group_of(members, expression)
}

#[test]
fn promise_a_policy_group_judges_by_its_expression() {
    let folder = folder();
    let labels = |label: &str| json!({"module": "modules/required-labels.wasm", "settings": {"labels": [label]}});
    let members =
        json!({"owned": labels("owner"), "exempt": labels("exempt"), "unprivileged": member("no-privileged")});
    folder.put(&group(&members, "unprivileged() && (owned() || exempt())"));
    let pod = Pod::on(&folder).start();
    let current = pod.wait_current(ID, 1);
    assert_eq!(current.members.keys().collect::<Vec<_>>(), ["exempt", "owned", "unprivileged"]);
    assert_eq!(current.members["exempt"], current.members["owned"], "one module, with two settings");

    let ask = |review: &Review| pod.ask(ID, review).verdict();
    assert!(ask(&Review::pod().label("owner", "me")).allowed);
    assert!(ask(&Review::pod().label("exempt", "yes")).allowed);
    let denied = ask(&Review::pod());
    assert_eq!((denied.allowed, denied.message.as_str()), (false, "the group denies"));
    assert_eq!(
        denied.details["causes"],
        json!([
            {"message": "missing labels: owner", "field": "spec.policies.owned"},
            {"message": "missing labels: exempt", "field": "spec.policies.exempt"},
        ])
    );
    // If the first member decides, the others are not asked.
    let denied = ask(&Review::pod().privileged());
    let causes = denied.details["causes"].as_array().expect("causes");
    assert_eq!((causes.len(), &causes[0]["field"]), (1, &json!("spec.policies.unprivileged")));

    // In a match group, the policy group is one policy.
    let denied = pod.admit(&group(&members, "").group(), &Review::pod()).verdict();
    assert!(denied.message.contains("policy cluster/group: the group denies"), "{}", denied.message);
    assert!(denied.details["causes"].to_string().contains("cluster/group: spec.policies.owned"), "{}", denied.details);

    // After an edit, all members are of the new generation, and the status has the digest of each.
    folder.put(&group(&json!({"owned": labels("squad"), "exempt": member("always_accept")}), "owned() == exempt()"));
    pod.assert_recovered(ID, 2);
    assert!(ask(&Review::pod().label("squad", "a")).allowed);
    assert!(!ask(&Review::pod()).allowed);
    let resolved = |status: Value| status["status"]["resolved"]["members"].as_object().map(serde_json::Map::len);
    assert_eq!(pod.status(ID).and_then(resolved), Some(2), "{:?}", pod.status(ID));

    // The whole group comes back after a restart of the programs, even if none of its modules can be fetched.
    fs::remove_dir_all(folder.path("policies/modules")).expect("it is there");
    pod.loader().kill();
    pod.evaluator().kill();
    pod.loader().start_again();
    pod.evaluator().start_again();
    pod.wait_ready();
    pod.wait_serving(ID, 2);
    assert!(ask(&Review::pod().label("squad", "a")).allowed);
}

#[test]
fn promise_members_of_a_policy_group_that_do_not_matter_are_not_asked_and_none_may_mutate() {
    let folder = folder();
    let loops = json!({"yes": member("always_accept"), "no": member("deny"), "loops": member("endless_loop")});
    folder.put(&group(&loops, "yes() || (no() && loops())"));
    let mutates = json!({"changes": member("mutates_label"), "yes": member("always_accept")});
    folder.put(&group(&mutates, "yes() && changes()").renamed("mutates"));
    folder.put(&group(&mutates, "changes() || yes()").renamed("watches").mode("monitor"));
    let pod = Pod::on(&folder).start();
    for id in [ID, "cluster/mutates", "cluster/watches"] {
        pod.wait_current(id, 1);
    }
    assert!(pod.ask(ID, &Review::pod()).verdict().allowed);
    folder.put(&group(&loops, "!yes() || (no() && loops())"));
    pod.assert_recovered(ID, 2);
    assert!(!pod.ask(ID, &Review::pod()).verdict().allowed, "no() is false, so loops() does not matter");

    let denied = pod.ask("cluster/mutates", &Review::pod()).verdict();
    assert_eq!(
        denied.details["causes"],
        json!([{"message": "mutation is not allowed inside of policy group", "field": "spec.policies.changes"}])
    );
    let watched = pod.ask("cluster/watches", &Review::pod()).verdict();
    assert!(watched.allowed && watched.raw.get("patch").is_none(), "{watched:?}");
}

#[test]
fn promise_groups_of_a_policies_yml_run_under_their_ids() {
    let folder = folder();
    let file = json!({
        "clusterwide-group": {
            "policies": {
                "yes": {"module": folder.path("policies/modules/always_accept.wasm")},
                "no": {"module": folder.path("policies/modules/deny.wasm")},
            },
            "expression": "yes() && no()", "message": "two are better than one",
        },
    });
    folder.write("kubewarden/policies.yml", portcullis_yaml::write(&file).expect("it is YAML"));
    let path = folder.path("kubewarden/policies.yml").display().to_string();
    let modules = folder.path("policies/modules").display().to_string();
    let pod = Pod::on(&folder).loader("--policies", path).loader("--module-root", modules).start();
    pod.wait_current("clusterwide-group", 1);
    let denied = pod.ask("clusterwide-group", &Review::pod()).verdict();
    assert_eq!(denied.message, "two are better than one");
    assert_eq!(denied.details["causes"], json!([{"message": "no, says the member", "field": "spec.policies.no"}]));
}
