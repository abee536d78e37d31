//! Policies that match everything.

use portcullis_e2e::{Program, eventually};
use serde_json::json;

use crate::scene::Scene;

#[test]
#[ignore = "starts a cluster"]
fn fault_w06_a_policy_that_denies_everything_does_not_lock_out_the_installation() {
    let scene = Scene::new("everything", 1);
    scene.installation.without_canary("the test removes every replica, and until there is another one nobody answers");
    let all = json!([{ "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"] }]);
    // The match condition spares the other tests of the cluster: it holds only in namespaces of this test and, for cluster-scoped objects, for
    // names that contain the name of this test.
    let policy = scene.installation.cluster_policy("everything-deny").denying("no").field("rules", all);
    let policy = policy.field(
        "matchConditions",
        json!([
            { "name": "not-others", "expression": "!(request.resource.group in ['admissionregistration.k8s.io']) \
              && (has(request.namespace) ? request.namespace.startsWith('everything') \
                  : (has(request.name) && request.name.contains('everything')))" },
        ]),
    );
    scene.installation.apply_ready(std::slice::from_ref(&policy));
    scene.create("one").expect_err("denied");

    // The policy server starts from nothing: all its pods are removed, and a new one is added.
    for replica in scene.installation.replicas() {
        replica.remove();
    }
    scene.controller.kill(Program::Controller);
    scene.installation.add_replica();
    scene.installation.wait_ready();
    eventually("a denial", || scene.create("two").err().filter(|refused| refused.contains("denied the request")));
    // Objects of Portcullis's own kinds can still be changed and deleted.
    let suspended = policy.clone().field("suspend", true);
    scene.installation.apply(&suspended).expect("the own kinds are excluded");
    scene.delete(&policy);
    eventually("nobody is denied", || scene.create("three").ok());
}
