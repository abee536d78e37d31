//! What a policy would do to the objects of a cluster, counted before it is applied.

use std::fs;
use std::path::PathBuf;

use portcullis_e2e::{eventually, example};
use serde_json::{Value, json};

use crate::scene::kubeconfig_of;
use crate::{cluster, install, portcullis};

/// Objects in each namespace. All together they are more than a page of a list has.
const OBJECTS: usize = 200;

/// A ClusterPolicy that wants a label of ConfigMaps, in a file.
fn manifest(installation: &str) -> PathBuf {
    let folder = cluster().folder().join(installation);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("labels.wasm"), example("required-labels")).unwrap();
    let policy = json!({
        "apiVersion": "policies.portcullis.dev/v1alpha1", "kind": "ClusterPolicy", "metadata": { "name": "impact" },
        "spec": {
            "module": "labels.wasm",
            "settings": { "labels": ["team"] },
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"] }],
            "objectSelector": { "matchLabels": { "counted": "yes" } },
            "namespaceSelector": { "matchLabels": { "portcullis-test": installation } },
            "mode": "monitor",
        },
    });
    let file = folder.join("policy.yaml");
    fs::write(&file, policy.to_string()).unwrap();
    file
}

#[test]
#[ignore = "starts a cluster"]
fn the_objects_that_a_policy_would_deny_are_counted_exactly() {
    let installation = install("impact");
    let namespaces = ["a", "b", "c"].map(|suffix| installation.make_namespace(suffix));
    for namespace in &namespaces {
        for number in 0..OBJECTS {
            let mut labels = json!({ "counted": "yes", "team": "shop" });
            // One in five lacks the label, and in the third namespace none does.
            if number % 5 == 0 && *namespace != namespaces[2] {
                labels.as_object_mut().unwrap().remove("team");
            }
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": { "name": format!("object-{number:03}"), "labels": labels },
            });
            let path = format!("/api/v1/namespaces/{namespace}/configmaps");
            installation.api().create(&path, &object).expect("an API server answers").expect("a ConfigMap");
        }
    }
    let file = manifest("impact");
    let file = file.to_str().unwrap();
    let admin = cluster().kubeconfig();

    let output = portcullis(&admin, &["impact", file, "-o", "json", "--show", "1000"]);
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    let impact: Value = serde_json::from_str(&output.stdout).unwrap();
    let counts = ["checked", "denied", "changed", "notJudged", "namespaces"].map(|name| impact[name].as_u64().unwrap());
    assert_eq!(counts, [600, 80, 0, 0, 2], "{}", output.stdout);
    let names: Vec<_> = impact["objects"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    let wanted: Vec<_> = (0..OBJECTS).step_by(5).map(|number| format!("object-{number:03}")).collect();
    assert_eq!(names, [&wanted[..], &wanted[..]].concat());
    assert!(impact["objects"][0]["message"].as_str().unwrap().contains("team"), "{}", output.stdout);

    let text = portcullis(&admin, &["impact", file, "-n", &namespaces[0], "--show", "1"]);
    let stdout = text.stdout.as_str();
    let first = "cluster/impact: 40 of 200 objects would be denied, in 1 namespace\n  configmaps  40 of 200\n";
    assert!(stdout.starts_with(first), "{stdout}");
    assert!(stdout.contains("and 39 more; --show 40 shows all"), "{stdout}");
    assert!(stdout.contains("the policy's mode is monitor; the figures are those of protect"), "{stdout}");
    let clean = portcullis(&admin, &["impact", file, "-n", &namespaces[2]]);
    assert_eq!(clean.code, Some(0), "{}{}", clean.stdout, clean.stderr);

    // Nothing was written, and nothing is read that its user may not read.
    // An API server does not answer while other tests apply the definitions.
    let list = eventually("the ClusterPolicies", || {
        installation.api().get("/apis/policies.portcullis.dev/v1alpha1/clusterpolicies")
    });
    assert!(list["items"].as_array().unwrap().iter().all(|item| item["metadata"]["name"] != "impact"), "{list}");
    let rules = json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["list"] }]);
    let user = kubeconfig_of(&namespaces[0], "impact", &rules);
    let refused = portcullis(&user, &["impact", file, "-n", &namespaces[0]]);
    assert_eq!(refused.code, Some(2), "{}{}", refused.stdout, refused.stderr);
    assert!(refused.stderr.contains("this needs the right to list namespaces"), "{}", refused.stderr);
}

#[test]
#[ignore = "starts a cluster"]
fn who_may_not_list_objects_is_told_which_right_is_missing() {
    let installation = install("few-rights");
    let namespace = installation.make_namespace("a");
    let file = manifest("few-rights");
    let mut policy: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    policy["spec"].as_object_mut().unwrap().remove("namespaceSelector");
    fs::write(&file, policy.to_string()).unwrap();
    let user = kubeconfig_of(&namespace, "impact", &json!([]));
    let refused = portcullis(&user, &["impact", file.to_str().unwrap(), "-n", &namespace]);
    assert_eq!(refused.code, Some(2), "{}{}", refused.stdout, refused.stderr);
    let said = "this needs the right to list configmaps in the namespace";
    assert!(refused.stdout.contains("not read: ") && refused.stdout.contains(said), "{}", refused.stdout);
}
