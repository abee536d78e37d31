//! `kubectl apply` accepts or refuses each spec of the table that is also used for policies in a folder.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{cluster, policy};

/// The table of `crates/api`.
fn specs() -> Vec<Value> {
    portcullis_yaml::read(include_str!("../../../crates/api/specs.yaml")).unwrap()
}

/// The error of kubectl for each of these specs; `None` for those that are accepted. They are applied together, in a dry run.
fn applied(specs: &[Value]) -> Vec<Option<String>> {
    let objects = specs.iter().enumerate().map(|(number, case)| {
        policy(case["kind"].as_str().unwrap(), &format!("case-{number}"), &case["spec"]).to_string()
    });
    let documents = objects.collect::<Vec<_>>().join("\n---\n");
    let kubeconfig = cluster().kubeconfig();
    let output = cluster().kubectl_as(&kubeconfig, ["apply", "--dry-run=server", "--filename=-"], &documents);
    let taken = output.stdout.lines().filter(|line| line.ends_with("created (server dry run)")).count();
    let mut refused = BTreeMap::new();
    for said in output.stderr.split("\"case-").skip(1) {
        let (number, words) = said.split_once('"').unwrap();
        refused.insert(number.parse::<usize>().unwrap(), words.to_owned());
    }
    assert_eq!(taken + refused.len(), specs.len(), "{}{}", output.stdout, output.stderr);
    (0..specs.len()).map(|number| refused.remove(&number)).collect()
}

fn judged(specs: &[Value]) {
    for (case, said) in specs.iter().zip(applied(specs)) {
        let name = &case["name"];
        match (said, case["refused"].as_str()) {
            (None, None) => {}
            (Some(said), Some(field)) => {
                let words = case["words"].as_str().unwrap_or("");
                assert!(said.contains(field) && said.contains(words), "{name}: {said}");
            }
            (said, expected) => panic!("{name}: expected {expected:?}, kubectl said {said:?}"),
        }
    }
}

#[test]
#[ignore = "starts a cluster"]
fn specs_are_judged_as_in_a_folder() {
    let specs = specs();
    assert!(specs.len() > 50);
    judged(&specs);
}

#[test]
#[ignore = "starts a cluster"]
fn fault_x06_a_policy_that_aims_beyond_its_namespace_is_refused_at_apply() {
    let specs: Vec<_> = specs().into_iter().filter(|case| case["aims"] == "elsewhere").collect();
    assert!(specs.len() > 10);
    assert!(specs.iter().all(|case| case["kind"] == "Policy" && case["refused"].is_string()));
    judged(&specs);

    // A good policy cannot be edited into such a policy either.
    cluster().apply(&policy("Policy", "own", &json!({})).to_string()).expect("a good policy");
    for case in specs.iter().filter(|case| case["spec"].get("module").is_none()) {
        let patch = json!({ "spec": case["spec"] }).to_string();
        let edited = cluster().kubectl(["patch", "policy", "own", "--type=merge", "--patch", &patch]);
        assert!(!edited.is_ok() && edited.stderr.contains(case["words"].as_str().unwrap()), "{edited:?}");
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_w11_an_evaluation_longer_than_the_webhook_waits_is_refused_at_apply() {
    let cluster = cluster();
    let long = policy("ClusterPolicy", "long", &json!({ "timeoutEvalSeconds": 6, "timeoutSeconds": 5 }));
    let said = cluster.apply(&long.to_string());
    assert_eq!(
        said.stderr.trim(),
        "The ClusterPolicy \"long\" is invalid: spec.timeoutEvalSeconds: Invalid value: must not be above timeoutSeconds (10 where \
         absent), as the API server would give up first: lower it, or raise timeoutSeconds",
    );

    let good = policy("ClusterPolicy", "long", &json!({ "timeoutEvalSeconds": 5, "timeoutSeconds": 5 }));
    cluster.apply(&good.to_string()).expect("limits that fit");
    let patch = ["patch", "cpol", "long", "--type=merge", "--patch", r#"{"spec":{"timeoutSeconds":4}}"#];
    let edited = cluster.kubectl(patch);
    assert!(!edited.is_ok() && edited.stderr.contains("must not be above timeoutSeconds"), "{edited:?}");
}

#[test]
#[ignore = "starts a cluster"]
fn the_installation_of_a_policy_cannot_be_changed() {
    let cluster = cluster();
    cluster.apply(&policy("Policy", "faithful", &json!({})).to_string()).expect("a policy");
    let said = cluster.apply(&policy("Policy", "faithful", &json!({ "policyServer": "second" })).to_string());
    assert!(
        said.stderr.contains(
            "spec.policyServer: Invalid value: \"second\": cannot be changed: delete the policy, and create it again for the other \
             installation"
        ),
        "{said:?}"
    );
}

#[test]
#[ignore = "starts a cluster"]
fn a_name_has_at_most_63_characters() {
    let cluster = cluster();
    for kind in ["Policy", "ClusterPolicy"] {
        cluster.apply(&policy(kind, &"a".repeat(63), &json!({})).to_string()).expect("a name of 63 characters");
        let said = cluster.apply(&policy(kind, &"a".repeat(64), &json!({})).to_string());
        assert!(said.stderr.contains("metadata.name: Invalid value"), "{said:?}");
        assert!(said.stderr.contains("has more than 63 characters"), "{said:?}");
        let capital = cluster.apply(&policy(kind, "No", &json!({})).to_string());
        assert!(capital.stderr.contains("metadata.name: Invalid value: \"No\""), "{capital:?}");
    }
}

#[test]
#[ignore = "starts a cluster"]
fn a_misspelt_field_is_named() {
    let said = cluster().apply(&policy("Policy", "typo", &json!({ "setings": {} })).to_string());
    assert!(!said.is_ok() && said.stderr.contains(r#"unknown field "spec.setings""#), "{said:?}");
}
