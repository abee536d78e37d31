//! The first policy.

use portcullis_e2e::Program;
use serde_json::json;

use crate::{assert_denied, installation};

#[test]
#[ignore = "starts a cluster"]
fn first_apply_denies_in_the_words_of_kubectl() {
    let installation = installation("first-apply", 2);
    let shop = installation.make_namespace("shop");
    let policy = installation.cluster_policy("first-apply").example("no-privileged");
    installation.apply_ready(std::slice::from_ref(&policy));

    let privileged = json!({ "spec": { "containers": [
        { "name": "main", "image": "example.invalid/none", "securityContext": { "privileged": true } },
    ] } });
    let denied = installation.create_pod(&shop, "privileged", &privileged);
    assert_denied(&denied, "policy cluster/first-apply: ");
    assert!(denied.stderr.contains(".policies.portcullis.dev\" denied the request"), "{denied:?}");
    installation.create_pod(&shop, "plain", &json!({})).expect("a pod that the policy allows");

    let wait = ["wait", "--for=condition=Ready", "--timeout=180s", &policy.reference()];
    installation.cluster().kubectl(wait).expect("what kubectl waits for");
    let table = installation.cluster().kubectl(["get", &policy.reference()]);
    let table = table.expect("the table");
    assert!(table.contains("2/2") && table.contains("Active"), "{table}");
}

#[test]
#[ignore = "starts a cluster"]
fn a_mutating_policy_changes_what_is_stored() {
    let installation = installation("mutates", 1);
    let shop = installation.make_namespace("shop");
    let settings = json!({ "cpu": "100m", "memory": "64Mi" });
    let policy = installation.cluster_policy("mutates").example("default-resources");
    installation.apply_ready(&[policy.field("mutating", true).field("settings", settings)]);

    installation.create_pod(&shop, "small", &json!({})).expect("a pod");
    let pod = installation.api().get(&format!("/api/v1/namespaces/{shop}/pods/small")).unwrap();
    let requests = &pod["spec"]["containers"][0]["resources"]["requests"];
    assert_eq!(requests, &json!({ "cpu": "100m", "memory": "64Mi" }));
}

#[test]
#[ignore = "starts a cluster"]
fn fault_x06_a_namespaced_policy_stays_in_its_namespace() {
    let installation = installation("stays", 1);
    installation.without_canary("the evaluator of the only replica is stopped");
    let (here, there) = (installation.make_namespace("here"), installation.make_namespace("there"));
    installation.apply_ready(&[installation.policy(&here, "closed").denying("this namespace is closed")]);

    let denied = installation.create_pod(&here, "one", &json!({}));
    assert_denied(&denied, &format!("policy namespaced/{here}/closed: this namespace is closed"));
    installation.create_pod(&there, "one", &json!({})).expect("a pod of another namespace");

    // An evaluator passes over requests of other namespaces by itself, so only without one it is seen which namespaces have the webhook.
    let [pod] = installation.replicas().try_into().ok().expect("one replica");
    pod.stop(Program::Evaluator);
    let tries = |namespace: &str| [(); 5].map(|()| installation.try_pod(namespace));
    for (code, message) in tries(&here) {
        assert!(code >= 500 && message.contains("failed calling webhook"), "{code} {message}");
    }
    for (code, message) in tries(&there) {
        assert_eq!(code, 201, "{message}");
    }
}
