//! From `helm install` to a denial.

use serde_json::json;

use crate::stage::{REPLICAS, Stage, assert_denied};

#[test]
#[ignore = "starts a cluster"]
fn what_helm_installs_denies_in_the_words_of_kubectl() {
    let stage = Stage::new("first-denial");
    let (release, shop) = (stage.release(), stage.namespace());
    let policy = release.cluster_policy("first-denial").example("no-privileged");
    release.apply_ready(std::slice::from_ref(&policy));

    let privileged = json!({ "spec": { "containers": [
        { "name": "main", "image": "example.invalid/none", "securityContext": { "privileged": true } },
    ] } });
    let denied = release.create_pod(&shop, "privileged", &privileged);
    assert_denied(&denied, "policy cluster/first-denial: ");
    assert!(denied.stderr.contains(".policies.portcullis.dev\" denied the request"), "{denied:?}");
    release.create_pod(&shop, "plain", &json!({})).expect("a pod that the policy allows");

    let table = release.kubectl(["get", &policy.reference()]);
    let table = table.expect("the table");
    assert!(table.contains(&format!("{REPLICAS}/{REPLICAS}")) && table.contains("Active"), "{table}");
    let told = release.kubectl(["describe", &policy.reference()]);
    let told = told.expect("the description");
    for words in ["Reason:                Active", &format!("Current:   {REPLICAS}"), "Type:                  Ready"] {
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(squeezed(told).contains(&squeezed(words)), "no `{words}` in\n{told}");
    }
}

#[test]
#[ignore = "starts a cluster"]
fn every_container_of_the_chart_runs_without_a_restart() {
    let stage = Stage::new("no-restart");
    let release = stage.release();
    let pods = [release.pods(), release.controllers()].concat();
    assert_eq!(pods.len(), REPLICAS + 2);
    let notes = release.site().helm(["get", "notes", release.namespace(), "--namespace", release.namespace()], "");
    assert!(notes.expect("the notes").contains("rollout status deployment/portcullis-policy-server"), "{notes:?}");
    for pod in pods {
        let statuses = pod["status"]["containerStatuses"].as_array().unwrap().clone();
        let ready = statuses.iter().filter(|status| status["ready"] == true).count();
        assert_eq!(ready, statuses.len(), "{pod:#}");
    }
}
