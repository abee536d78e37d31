//! A policy that denies everything to every user.

use portcullis_e2e::eventually;
use serde_json::json;

use crate::stage::{REPLICAS, Stage, assert_denied, names};

#[test]
#[ignore = "starts a cluster"]
fn fault_w06_a_policy_that_denies_everything_does_not_lock_out_its_own_pods() {
    let stage = Stage::new("locked-out");
    let (release, shop) = (stage.release(), stage.namespace());
    release.without_canary("its policy denies everything everywhere, and all pods are deleted");
    let all = json!([{ "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"] }]);
    let policy = release.cluster_policy("locked-out").denying("nobody may do anything").field("rules", all);
    let policy = policy.with(&json!({ "spec": { "namespaceSelector": null } }));
    release.apply_ready(std::slice::from_ref(&policy));
    assert_denied(&release.create_pod(&shop, "one", &json!({})), "nobody may do anything");

    // All pods of the policy server and the controller are replaced.
    let old = names(&[release.pods(), release.controllers()].concat());
    let delete =
        [&["delete", "pods", "--wait=false"][..], &old.iter().map(String::as_str).collect::<Vec<_>>()].concat();
    release.kubectl(delete).expect("deletions in the installation's own namespace");
    eventually("other pods", || {
        let pods = names(&[release.pods(), release.controllers()].concat());
        (pods.len() == old.len() && pods.iter().all(|name| !old.contains(name))).then_some(())
    });
    release.wait_for_replicas(REPLICAS);
    eventually("a denial", || {
        let denied = release.create_pod(&shop, "two", &json!({}));
        denied.stderr.contains("nobody may do anything").then_some(())
    });

    // Portcullis' own kinds, Leases and reports are not affected either: an edit is stored, loaded by every new pod, and reported in the
    // status.
    release.apply_ready(&[policy.denying("nobody may do anything still")]);
    assert_denied(&release.create_pod(&shop, "three", &json!({})), "nobody may do anything still");
    let definition = "customresourcedefinition/clusterpolicies.policies.portcullis.dev";
    let annotate = ["annotate", "--dry-run=server", definition, "portcullis-test=locked-out"];
    release.site().kubectl(annotate).expect("a definition that may be changed");
    let other = ["create", "--dry-run=server", "namespace", "locked-out"];
    assert_denied(&release.site().kubectl(other), "nobody may do anything still");

    release.delete_policies();
    eventually("nobody is denied", || release.create_pod(&shop, "four", &json!({})).is_ok().then_some(()));
}
