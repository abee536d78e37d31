//! A new version of a policy that cannot be loaded.

use portcullis_e2e::condition;
use serde_json::json;

use crate::stage::{REPLICAS, Stage, assert_denied};

#[test]
#[ignore = "starts a cluster"]
fn a_bad_update_keeps_the_last_good_one_and_describe_says_so() {
    let stage = Stage::new("bad-update");
    let (release, shop) = (stage.release(), stage.namespace());
    let policy = release.cluster_policy("bad-update");
    release.apply_ready(&[policy.clone().denying("the good old answer")]);

    release.apply(&policy.clone().module_of("no module")).expect("the edit");
    let object = policy.wait_until(&release.api(), "ServingPrevious", |object| {
        condition(object, "Ready").is_some_and(|ready| {
            ready["reason"] == "ServingPrevious" && ready["observedGeneration"] == object["metadata"]["generation"]
        }) && object["status"]["replicaCounts"]["previous"] == REPLICAS
    });
    assert_eq!(object["metadata"]["generation"], 2);
    assert_denied(&release.create_pod(&shop, "one", &json!({})), "the good old answer");
    let told = release.kubectl(["describe", &policy.reference()]);
    let told = told.expect("the description");
    assert!(told.contains("ServingPrevious") && told.contains("ModuleInvalid"), "{told}");

    release.apply_ready(&[policy.denying("mended")]);
    assert_denied(&release.create_pod(&shop, "two", &json!({})), "mended");
}
