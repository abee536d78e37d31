//! I1 in tests of rows of the fault catalogue: a canary with a policy of its own, and the reasons of tests that have none.

use std::time::Duration;

use serde_json::{Value, json};

use super::canary::try_to_create;
use super::{Canary, IN_TIME, Installation, Listener, Policy, Right};
use crate::api::Api;

/// The name of the canary's policy, and the end of the name of its namespace.
pub(crate) const NAME: &str = "canary";

/// The message of the policy's denials.
const TEXT: &str = "denied all the time";

/// The policy of a canary. It denies every service account, which costs an API server much less than a pod: no defaults, no Pod Security
/// Standards, and a review of a quarter of the size. The account that each namespace gets must be there already. Others are made by nobody, and
/// no reporter may list them, so that the canary is not in reports on objects.
pub(crate) fn policy(namespace: &str, policy_server: &str) -> Policy {
    Policy::namespaced(namespace, NAME, policy_server).on(&["serviceaccounts"]).denying(TEXT)
}

/// Starts a canary in a namespace with [`policy`], with this limit for each answer.
pub(crate) fn start(listener: Listener, limit: Duration, api: Api, namespace: &str) -> Canary {
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "generateName": "tried-", "namespace": namespace },
    });
    let collection = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    Canary::start(listener, limit, Right::Denied(TEXT.to_owned()), move || try_to_create(&api, &collection, &account))
}

impl Installation<'_> {
    /// A canary with a namespace and a policy of its own. The policy denies every service account, and is enforced when this returns. It is
    /// not among what a test counts: policies of [`Installation::cluster_policy`] do not match in the namespace, and
    /// [`Installation::webhooks`] and [`Installation::revisions`] leave it out. A second call starts a second canary with the same policy.
    ///
    /// # Panics
    /// When the policy is not Ready in time.
    pub fn own_canary(&self) -> Canary {
        self.begin_canary(IN_TIME)
    }

    /// [`Installation::own_canary`] with another limit for each answer than the second of I1, for this reason.
    ///
    /// # Panics
    /// When the policy is not Ready in time.
    pub fn own_canary_within(&self, limit: Duration, reason: &str) -> Canary {
        eprintln!("the canary has {limit:?} here: {reason}");
        self.begin_canary(limit)
    }

    fn begin_canary(&self, limit: Duration) -> Canary {
        let namespace = self.make_namespace_with(NAME, &json!({}));
        self.apply_ready(&[policy(&namespace, self.policy_server())]);
        start(self.listener(), limit, self.api(), &namespace)
    }

    /// Says why a test of a row of the fault catalogue has no canary. With neither, it fails at the end of an installation with evaluators.
    pub fn without_canary(&self, reason: &str) {
        self.canary_check.left_out(reason);
    }

    /// Whether a webhook configuration or a revision is that of the policy of [`Installation::own_canary`].
    pub(super) fn is_of_own_canary(&self, object: &Value) -> bool {
        is_of(&format!("{}-{NAME}", self.namespace()), object)
    }
}

/// Whether a webhook configuration or a revision is that of the policies of this namespace.
fn is_of(namespace: &str, object: &Value) -> bool {
    let called = &object["webhooks"][0]["namespaceSelector"]["matchExpressions"][0]["values"];
    let labelled = &object["metadata"]["labels"]["policies.portcullis.dev/policy-namespace"];
    *called == json!([namespace]) || *labelled == namespace
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_the_canary_is_known_by_its_namespace() {
        let webhook = |operator: &str, names: &[&str]| {
            let expression = json!({ "key": "kubernetes.io/metadata.name", "operator": operator, "values": names });
            json!({ "webhooks": [{ "namespaceSelector": { "matchExpressions": [expression] } }] })
        };
        let labels = |namespace: &str| json!({ "policies.portcullis.dev/policy-namespace": namespace });
        let revision = |namespace: &str| json!({ "metadata": { "labels": labels(namespace) } });
        assert!(is_of("one-canary", &webhook("In", &["one-canary"])));
        assert!(is_of("one-canary", &revision("one-canary")));
        for other in [webhook("In", &["one-shop"]), webhook("NotIn", &["kube-system", "one"]), revision("one-shop")] {
            assert!(!is_of("one-canary", &other), "{other}");
        }
        assert!(!is_of("one-canary", &json!({ "webhooks": [], "metadata": {} })));
    }
}
