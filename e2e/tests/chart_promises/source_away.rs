//! Every pod restarts while modules cannot be fetched.

use std::time::{Duration, Instant};

use portcullis_e2e::condition;
use serde_json::json;

use crate::stage::{REPLICAS, Stage, assert_denied};

/// The start gate of the shared release.
const START_GATE: Duration = Duration::from_secs(20);

#[test]
#[ignore = "starts a cluster"]
fn fault_k05_pods_without_a_cache_wait_the_start_gate_and_say_what_is_missing() {
    let stage = Stage::new("source-away");
    let (release, shop) = (stage.release(), stage.namespace());
    let policy = release.cluster_policy("source-away").denying("judged");
    release.apply_ready(std::slice::from_ref(&policy));

    release.source().close();
    let start = Instant::now();
    release
        .kubectl(["delete", "pods", "--selector", "app.kubernetes.io/name=portcullis-policy-server"])
        .expect("deletions");
    release.wait_for_replicas(REPLICAS);
    // No pod was ready before its start gate ended, because the policy had been enforced before.
    assert!(start.elapsed() >= START_GATE, "ready after {:?}", start.elapsed());
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
