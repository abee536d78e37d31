//! Policies whose denials admit, with and without a warning.

use portcullis_e2e::{Output, eventually};
use serde_json::{Value, json};

use crate::installation;

#[test]
#[ignore = "starts a cluster"]
fn warn_tells_and_monitor_does_not() {
    let installation = installation("modes", 1);
    let shop = installation.make_namespace("shop");
    let policy = installation.cluster_policy("modes").denying("pods are not welcome");
    installation.apply_ready(&[policy.clone().field("mode", "warn")]);

    let warned = installation.create_pod(&shop, "one", &json!({}));
    warned.expect("a pod in spite of the policy");
    assert!(warned.stderr.contains("Warning: ") && warned.stderr.contains("pods are not welcome"), "{warned:?}");

    installation.apply_ready(&[policy.field("mode", "monitor")]);
    let silent = installation.create_pod(&shop, "two", &json!({}));
    silent.expect("a pod in spite of the policy");
    assert_eq!(silent.stderr, "");
}

#[test]
#[ignore = "starts a cluster"]
fn ignore_with_nothing_usable_admits_with_a_warning() {
    let installation = installation("ignores", 1);
    let shop = installation.make_namespace("shop");
    let policy =
        installation.cluster_policy("ignores").denying("pods are not welcome").field("failurePolicy", "Ignore");
    installation.apply_ready(std::slice::from_ref(&policy));
    eventually("the mark that it was enforced", || {
        let revisions = installation.revisions();
        let marked = |one: &Value| one["metadata"]["annotations"]["policies.portcullis.dev/served"] == "true";
        revisions.iter().any(marked).then_some(())
    });

    // A new pod starts with an empty volume, and the source is unreachable.
    let old = installation.replicas();
    installation.source().close();
    installation.add_replica().wait_ready();
    old.iter().for_each(|pod| pod.remove());
    installation.wait_ready();
    let warned = eventually("a pod in spite of the policy", || {
        Some(installation.create_pod(&shop, "one", &json!({}))).filter(Output::is_ok)
    });
    let words = ["Warning: ", "cluster/ignores", "was not evaluated"];
    assert!(words.iter().all(|word| warned.stderr.contains(word)), "{warned:?}");
}
