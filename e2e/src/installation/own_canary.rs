//! I1 in tests of rows of the fault catalogue: a canary with a policy of its own, and the reasons of tests that have none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use portcullis_testkit::Bound;
use serde_json::{Value, json};

use super::{Canary, IN_TIME, Installation, Right};

/// The name of the canary's policy, and the end of the name of its namespace.
const NAME: &str = "canary";

/// The message of the policy's denials.
const TEXT: &str = "denied all the time";

/// Whether somebody listened to the evaluators of an installation, or the test has said why not. Copies are about the same installation.
#[derive(Debug, Clone, Default)]
pub(super) struct Duty {
    is_done: Arc<AtomicBool>,
}

impl Installation<'_> {
    /// A canary with a namespace and a policy of its own. The policy denies every pod, and is enforced when this returns. It is not among
    /// what a test counts: policies of [`Installation::cluster_policy`] do not match in the namespace, and [`Installation::webhooks`] and
    /// [`Installation::revisions`] leave it out. A second call starts a second canary with the same policy.
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
        self.apply_ready(&[self.policy(&namespace, NAME).denying(TEXT)]);
        self.canary_within(limit, &namespace, Right::Denied(TEXT.to_owned()))
    }

    /// Says why a test of a row of the fault catalogue has no canary. With neither, it fails at the end of an installation with evaluators.
    pub fn without_canary(&self, reason: &str) {
        eprintln!("no canary here: {reason}");
        self.duty.done();
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

impl Duty {
    /// Notes that somebody listens, or that the test has said why not.
    pub(super) fn done(&self) {
        self.is_done.store(true, Ordering::SeqCst);
    }

    /// # Panics
    /// When the running test is named after a row, and nobody has listened.
    pub(super) fn assert_done(&self) {
        let thread = thread::current();
        let test = thread.name().unwrap_or_default();
        assert!(
            self.is_done.load(Ordering::SeqCst) || Bound::of_this_test().is_none(),
            "{test} is a test of a row and has no canary (I1): start one with `installation.own_canary()` and call its \
             `end`, or say why there is none with `installation.without_canary(\"…\")`"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the end of an installation says in a test of this name.
    fn told(test: &str, duty: Duty) -> Option<String> {
        let ending = thread::Builder::new().name(test.to_owned()).spawn(move || duty.assert_done()).unwrap();
        ending.join().err().map(|panic| *panic.downcast::<String>().unwrap())
    }

    #[test]
    fn a_test_of_a_row_without_a_canary_is_told_what_to_add() {
        let told = told("newcomers::fault_w04_no_webhook", Duty::default()).unwrap();
        for words in ["newcomers::fault_w04_no_webhook is a test of a row", "own_canary()", "without_canary("] {
            assert!(told.contains(words), "{words}: {told}");
        }
    }

    #[test]
    fn other_tests_and_those_that_have_one_or_a_reason_are_not() {
        assert_eq!(told("newcomers::promise_of_w04", Duty::default()), None);
        let duty = Duty::default();
        duty.clone().done();
        assert_eq!(told("newcomers::fault_w04_no_webhook", duty), None);
    }

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
