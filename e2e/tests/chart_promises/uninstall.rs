//! `helm uninstall`.

use portcullis_e2e::{Policy, Release, condition, eventually};
use serde_json::{Value, json};

use crate::stage::{assert_denied, second_release, shared, turn};

/// Waits until each policy has a revision that says that it served. Without these marks, the next installation has nothing to take back.
fn wait_for_marks(release: &Release<'_>, policies: &[Policy]) {
    eventually("a revision of each policy that says that it served", || {
        let all = revisions(release);
        let is_of = |one: &Value, policy: &Policy| {
            one["metadata"]["labels"]["policies.portcullis.dev/policy-name"] == policy.name()
        };
        let is_marked = |policy: &Policy| all.iter().any(|one| is_of(one, policy) && is_marked(one));
        policies.iter().all(is_marked).then_some(())
    });
}

fn revisions(release: &Release<'_>) -> Vec<Value> {
    release.api().list(&format!("/apis/apps/v1/namespaces/{}/controllerrevisions", release.namespace()))
}

/// Whether a revision says that it served.
fn is_marked(revision: &Value) -> bool {
    revision["metadata"]["annotations"]["policies.portcullis.dev/served"] == "true"
}

/// Installs it again while modules cannot be fetched: policies that were enforced before count as new ones, and reject nothing until they are loaded.
fn install_again(release: &Release<'_>, values: &Value, shop: &str, policies: &[Policy]) {
    release.source().close();
    release.install(values).expect("the next installation");
    for policy in policies {
        policy.wait_until(&release.api(), "a module that cannot be fetched", |object| {
            condition(object, "Ready").is_some_and(|ready| ready["reason"] == "Error")
        });
    }
    eventually("no revision that says that it served", || {
        let all = revisions(release);
        (!all.is_empty() && !all.iter().any(is_marked)).then_some(())
    });
    assert!(release.webhooks().is_empty(), "{:#?}", release.webhooks());
    release.create_pod(shop, "three", &json!({})).expect("a pod that nobody judges yet");

    release.source().open();
    for policy in policies {
        policy.wait_for(&release.api(), "Ready", "True");
    }
    assert_denied(&release.create_pod(shop, "four", &json!({})), "not here");
}

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
    let policies = [policy.clone(), denying, mutating];
    release.apply_ready(&policies);
    assert_denied(&release.create_pod(&shop, "one", &json!({})), "not here");
    wait_for_marks(&release, &policies);

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

    install_again(&release, &small, &shop, &policies);
    release.uninstall().expect("the end of the next installation");
    assert!(release.webhooks().is_empty(), "{:#?}", release.webhooks());
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
