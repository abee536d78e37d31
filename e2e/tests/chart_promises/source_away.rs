//! Every pod restarts while modules cannot be fetched.

use portcullis_e2e::condition;
use serde_json::json;

use crate::stage::{REPLICAS, Stage, assert_denied};

#[test]
#[ignore = "starts a cluster"]
fn fault_k05_pods_without_a_cache_wait_the_start_gate_and_say_what_is_missing() {
    let stage = Stage::new("source-away");
    let (release, shop) = (stage.release(), stage.namespace());
    let policy = release.cluster_policy("source-away").denying("judged");
    release.apply_ready(std::slice::from_ref(&policy));

    release.source().close();
    release
        .kubectl(["delete", "pods", "--selector", "app.kubernetes.io/name=portcullis-policy-server"])
        .expect("deletions");
    release.wait_for_replicas(REPLICAS);
    let object = policy.wait_until(&release.api(), "the reason", |object| {
        condition(object, "Enforced").is_some_and(|enforced| enforced["status"] == "False")
            && condition(object, "Ready").is_some_and(|ready| ready["reason"] == "Error")
    });
    assert!(object.to_string().contains("RegistryUnreachable"), "{object:#}");
    // It cannot be judged, and its failurePolicy is Fail.
    let refused = release.create_pod(&shop, "one", &json!({}));
    assert!(!refused.is_ok() && !refused.stderr.contains("judged"), "{refused:?}");

    release.source().open();
    policy.wait_for(&release.api(), "Ready", "True");
    assert_denied(&release.create_pod(&shop, "two", &json!({})), "judged");
}
