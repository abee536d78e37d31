//! `helm uninstall`.

use portcullis_e2e::eventually;
use serde_json::json;

use crate::stage::{assert_denied, second_release, shared, turn};

#[test]
#[ignore = "starts a cluster"]
fn fault_k10_uninstalling_leaves_nothing_that_blocks() {
    let _turn = turn();
    let release = second_release("second");
    release.without_canary("it goes; the canary is on the release beside it");
    let canary = shared().own_canary();
    let small = json!({
        "server": { "replicas": 1 }, "controller": { "replicas": 1 }, "crds": { "install": false },
    });
    release.install(&small).expect("a second installation beside the first");
    let shop = release.make_namespace("shop");
    let policy = release.cluster_policy("second").denying("not here");
    // Nobody deletes these two before their namespace.
    let denying = release.policy(&shop, "denying").denying("not here");
    let mutating = release.policy(&shop, "mutating").field("mutating", true);
    release.apply_ready(&[policy.clone(), denying, mutating]);
    assert_denied(&release.create_pod(&shop, "one", &json!({})), "not here");

    release.uninstall().expect("the end of the installation");
    assert!(release.webhooks().is_empty(), "{:#?}", release.webhooks());
    release.create_pod(&shop, "two", &json!({})).expect("a pod that nobody judges");
    // With the Lease, a policy server of another name in this namespace could write no status.
    let lease = ["get", "lease", "portcullis-second-reporter", "--ignore-not-found", "--output=name"];
    assert_eq!(release.kubectl(lease).expect("an answer"), "");
    let said = "--output=jsonpath={.status.conditions[?(@.type==\"Enforced\")].status} \
                {.status.conditions[?(@.type==\"WebhookConfigured\")].reason}";
    let status = release.site().kubectl(["get", &policy.reference(), said]);
    assert_eq!(status.expect("the policy"), "False Uninstalled", "nothing evaluates it");
    // The policy still exists, as the definitions do, and can be deleted without help.
    release.site().kubectl(["delete", &policy.reference(), "--timeout=180s"]).expect("a policy that goes");
    for namespace in [release.namespace(), &shop] {
        release.site().kubectl(["delete", "namespace", namespace, "--timeout=240s"]).expect("a namespace that goes");
    }
    eventually("nothing is left but the rule about Leases, which the next installation needs", || {
        let kinds = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings";
        let label = "policies.portcullis.dev/policy-server=second";
        let left = release.site().kubectl(["get", kinds, "--selector", label, "--output=name"]);
        let group = "admissionregistration.k8s.io/portcullis-second-leader";
        let kept =
            ["validatingadmissionpolicy", "validatingadmissionpolicybinding"].map(|kind| format!("{kind}.{group}"));
        left.expect("a list").lines().eq(kept).then_some(())
    });
    canary.end();
}
