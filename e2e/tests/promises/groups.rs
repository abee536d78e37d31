//! The policies of a match group share a webhook.

use serde_json::json;

use crate::{assert_denied, installation};

#[test]
#[ignore = "starts a cluster"]
fn five_policies_deny_one_pod_and_kubectl_tells_all_reasons() {
    let installation = installation("five", 1);
    let shop = installation.make_namespace("shop");
    let policies: Vec<_> = (1..=5)
        .map(|number| {
            installation.cluster_policy(&format!("five-{number}")).denying(&format!("reason {number} of five"))
        })
        .collect();
    installation.apply_ready(&policies);
    assert_eq!(installation.webhooks().len(), 1);

    let denied = installation.create_pod(&shop, "one", &json!({}));
    for number in 1..=5 {
        assert_denied(&denied, &format!("policy cluster/five-{number}: reason {number} of five"));
    }
}

#[test]
#[ignore = "starts a cluster"]
fn a_policy_joins_and_leaves_a_group_and_no_webhook_changes() {
    let installation = installation("joins", 1);
    let shop = installation.make_namespace("shop");
    let (first, second) =
        (installation.cluster_policy("joins-1"), installation.cluster_policy("joins-2").denying("the second says no"));
    installation.apply_ready(&[first]);
    let before = installation.webhooks();
    assert_eq!(before.len(), 1);
    installation.create_pod(&shop, "one", &json!({})).expect("a pod");

    installation.apply_ready(std::slice::from_ref(&second));
    assert_denied(&installation.create_pod(&shop, "two", &json!({})), "the second says no");
    installation.cluster().kubectl(["delete", "--timeout=180s", &second.reference()]).expect("a deleted policy");
    installation.create_pod(&shop, "three", &json!({})).expect("a pod again");
    let version = |webhooks: &[serde_json::Value]| webhooks[0]["metadata"]["resourceVersion"].clone();
    assert_eq!(version(&installation.webhooks()), version(&before));
}
