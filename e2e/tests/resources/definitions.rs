//! The API server accepts the definitions, also if they are applied again.

use serde_json::json;

use crate::{cluster, install, policy};

#[test]
#[ignore = "starts a cluster"]
fn definitions_are_taken_without_a_warning_and_are_structural() {
    let definitions = cluster().kubectl(["get", "crds", "--output=json"]).json("the definitions");
    let items = definitions["items"].as_array().unwrap();
    let ours: Vec<_> = items.iter().filter(|item| item["spec"]["group"] == "policies.portcullis.dev").collect();
    assert_eq!(ours.len(), 3);
    for definition in ours {
        for condition in definition["status"]["conditions"].as_array().unwrap() {
            let good = match condition["type"].as_str().unwrap() {
                "NonStructuralSchema" => "False",
                _ => "True",
            };
            assert_eq!(condition["status"], good, "{condition}");
        }
    }
}

#[test]
#[ignore = "starts a cluster"]
fn definitions_can_be_applied_again_and_leave_policies_alone() {
    let cluster = cluster();
    cluster.apply(&policy("ClusterPolicy", "stays", &json!({})).to_string()).expect("a policy");
    let get = ["get", "cpol", "stays", "--output=jsonpath={.metadata.uid}/{.metadata.resourceVersion}"];
    let before = cluster.kubectl(get).expect("the policy").to_owned();

    let said = install(cluster);

    assert_eq!(said.matches("unchanged").count(), 3, "{said}");
    assert_eq!(cluster.kubectl(get).expect("the policy"), before);
}
