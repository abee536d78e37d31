//! Every pod restarts while modules cannot be fetched.

use std::time::{Duration, SystemTime};

use portcullis_e2e::condition;
use serde_json::{Value, json};

use crate::stage::{REPLICAS, Stage, assert_denied};

/// The start gate of the shared release.
const START_GATE: Duration = Duration::from_secs(20);

/// How much shorter the wait may look in the pod's status: times are whole seconds there, and the runtime notes the start of a container
/// just after its program has begun.
const ROUNDED: Duration = Duration::from_secs(1);

/// How long after the start of its evaluator a pod became ready, by its status.
fn waited(pod: &Value) -> Duration {
    let time = |text: &Value| humantime::parse_rfc3339(text.as_str().expect("a time")).expect("a time");
    let statuses = pod["status"]["containerStatuses"].as_array().expect("containers that were started");
    let evaluator = statuses.iter().find(|status| status["name"] == "evaluator").expect("an evaluator");
    let started: SystemTime = time(&evaluator["state"]["running"]["startedAt"]);
    let ready = time(&condition(pod, "Ready").expect("a pod that is ready")["lastTransitionTime"]);
    ready.duration_since(started).expect("ready after the start")
}

#[test]
#[ignore = "starts a cluster"]
fn fault_k05_pods_without_a_cache_wait_the_start_gate_and_say_what_is_missing() {
    let stage = Stage::new("source-away");
    let (release, shop) = (stage.release(), stage.namespace());
    release.without_canary("all pods are deleted, and none may answer before its start gate ends");
    let policy = release.cluster_policy("source-away").denying("judged");
    release.apply_ready(std::slice::from_ref(&policy));

    release.source().close();
    release
        .kubectl(["delete", "pods", "--selector", "app.kubernetes.io/name=portcullis-policy-server"])
        .expect("deletions");
    release.wait_for_replicas(REPLICAS);
    // No pod was ready before its start gate ended, because the policy had been enforced before.
    for pod in release.pods() {
        let waited = waited(&pod);
        assert!(waited + ROUNDED >= START_GATE, "{} was ready after {waited:?}", pod["metadata"]["name"]);
    }
    let object = policy.wait_until(&release.api(), "the reason", |object| {
        condition(object, "Enforced").is_some_and(|enforced| enforced["status"] == "False")
            && condition(object, "Ready").is_some_and(|ready| ready["reason"] == "Error")
    });
    assert!(object.to_string().contains("RegistryUnreachable"), "{object:#}");
    // The policy cannot judge the pod, and its failurePolicy is Fail.
    let refused = release.create_pod(&shop, "one", &json!({}));
    assert!(!refused.is_ok() && !refused.stderr.contains("judged"), "{refused:?}");

    release.source().open();
    policy.wait_for(&release.api(), "Ready", "True");
    assert_denied(&release.create_pod(&shop, "two", &json!({})), "judged");
}
