//! Policies that let everything pass, with and without a word.

use serde_json::json;

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
    // A policy that works registers the match group of both.
    let works = installation.cluster_policy("ignores-works").field("failurePolicy", "Ignore");
    installation.apply_ready(&[works]);
    let broken = installation.cluster_policy("ignores-broken").field("failurePolicy", "Ignore");
    let broken = broken.module_of("no module");
    installation.apply(&broken).expect("the policy");
    installation.wait_for(&broken, "Stalled", "True");

    let warned = installation.create_pod(&shop, "one", &json!({}));
    warned.expect("a pod in spite of the broken policy");
    let words = ["Warning: ", "cluster/ignores-broken", "ModuleInvalid"];
    assert!(words.iter().all(|word| warned.stderr.contains(word)), "{warned:?}");
}
