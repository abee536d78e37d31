//! What a policy would do to the objects of a cluster, counted before it is applied.

use std::fs;
use std::path::PathBuf;

use portcullis_e2e::{Installation, Proxy, Rule, eventually, example};
use serde_json::{Value, json};

use crate::scene::kubeconfig_of;
use crate::{cluster, install, portcullis};

/// The number of objects in each namespace. All together they do not fit on one page of a list.
const OBJECTS: usize = 200;

/// Creates ConfigMaps that the policy matches, without the label that it wants.
fn fill(installation: &Installation<'_>, namespace: &str, objects: usize) {
    for number in 0..objects {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": format!("object-{number:03}"), "labels": { "counted": "yes" } },
        });
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        installation.api().create(&path, &object).expect("an API server answers").expect("a ConfigMap");
    }
}

/// Writes a ClusterPolicy that wants a label on ConfigMaps to a file, and returns its path.
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
            // One in five lacks the label, except in the third namespace, where all have it.
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
    let counts =
        ["checked", "denied", "changed", "notEvaluated", "namespaces"].map(|name| impact[name].as_u64().unwrap());
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

    // It writes nothing, and it reads only what the user may read.
    // The list is tried again, as it fails while other tests apply the definitions.
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

#[test]
#[ignore = "starts a cluster"]
fn match_conditions_decide_which_objects_are_counted() {
    let installation = install("conditions");
    fill(&installation, &installation.make_namespace("a"), 10);
    let file = manifest("conditions");
    let policy: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let admin = cluster().kubeconfig();
    for (expression, [checked, denied, left_out, undecided], code) in [
        ("object.metadata.name != 'object-000'", [9, 9, 1, 0], 1),
        ("request.operation == 'UPDATE'", [10, 10, 0, 0], 1),
        ("request.operation == 'DELETE'", [0, 0, 10, 0], 0),
        ("request.userInfo.username != 'system:admin'", [0, 0, 0, 10], 2),
        ("object.metadata.name == 'object-001' || request.userInfo.username == 'me'", [1, 1, 0, 9], 1),
        ("object.metadata.annotations['none'] == ''", [0, 0, 0, 10], 2),
    ] {
        let mut policy = policy.clone();
        policy["spec"]["rules"][0]["operations"] = json!(["CREATE", "UPDATE"]);
        policy["spec"]["matchConditions"] = json!([{ "name": "wanted", "expression": expression }]);
        fs::write(&file, policy.to_string()).unwrap();
        let output = portcullis(&admin, &["impact", file.to_str().unwrap(), "-o", "json"]);
        assert_eq!(output.code, Some(code), "{expression}: {}{}", output.stdout, output.stderr);
        let impact: Value = serde_json::from_str(&output.stdout).unwrap();
        let counts = ["checked", "denied", "leftOut", "undecided"].map(|name| impact[name].as_u64().unwrap());
        assert_eq!(counts, [checked, denied, left_out, undecided], "{expression}: {}", output.stdout);
        let is_said = impact["notes"].to_string().contains("only an API server can decide the match condition wanted");
        assert_eq!(is_said, undecided > 0, "{expression}: {}", output.stdout);
    }
}

#[test]
#[ignore = "starts a cluster"]
fn a_list_that_expires_is_begun_again_and_no_object_counts_twice() {
    let installation = install("expired");
    let namespace = installation.make_namespace("a");
    // More than one page.
    fill(&installation, &namespace, 3 * OBJECTS);
    let file = manifest("expired");
    let mut policy: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    policy["spec"].as_object_mut().unwrap().remove("namespaceSelector");
    fs::write(&file, policy.to_string()).unwrap();
    let rules = json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"] }]);
    let user = kubeconfig_of(&namespace, "impact", &rules);
    eventually("the rights to count", || {
        cluster().kubectl_as(&user, ["get", "configmaps", "--namespace", &namespace], "").is_ok().then_some(())
    });
    let proxy = Proxy::start(cluster());
    let text = fs::read_to_string(&user).unwrap();
    let through = text.replace(&cluster().api_servers()[0].to_string(), &proxy.address().to_string());
    assert_ne!(text, through, "the user goes through the proxy");
    fs::write(&user, through).unwrap();

    let expired = "The provided continue parameter is too old to display a consistent list result.";
    let arguments = ["impact", file.to_str().unwrap(), "-n", namespace.as_str(), "-o", "json"];
    proxy.rule(Rule::on("GET", "continue=").times(1).answer(410, expired));
    let output = portcullis(&user, &arguments);
    assert_eq!(output.code, Some(1), "{}{}", output.stdout, output.stderr);
    let impact: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((&impact["checked"], &impact["denied"], &impact["hidden"]), (&json!(600), &json!(600), &json!([])));
    let pages = proxy.requests_of("GET", "/configmaps?");
    assert_eq!(pages.len(), 4, "each page came twice: {pages:?}");

    // The tool gives up on a list that always expires, and what it has read counts once.
    proxy.rule(Rule::on("GET", "continue=").answer(410, expired));
    let output = portcullis(&user, &arguments);
    let impact: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(impact["checked"], 500, "{}", output.stdout);
    assert!(impact["hidden"].to_string().contains("(410): "), "{}", output.stdout);
    assert_eq!(proxy.requests_of("GET", "/configmaps?").len(), 4 + 8, "three times more");
}
