//! I1 in tests of rows of the fault catalogue: a canary on a release, and the reasons of tests that have none.

use serde_json::json;

use super::{Container, Release};
use crate::installation::own_canary::{self, NAME};
use crate::installation::{Canary, IN_TIME, Listener};

impl Release<'_> {
    /// A canary with a namespace and a policy of its own. The policy denies every service account, and is enforced when this returns. Policies of
    /// [`Release::cluster_policy`] do not match in the namespace.
    ///
    /// # Panics
    /// When the policy is not Ready in time.
    pub fn own_canary(&self) -> Canary {
        let namespace = self.make_namespace_with(NAME, &json!({}));
        self.apply_ready(&[own_canary::policy(&namespace, &self.name)]);
        let pods = self.pods();
        // Those that take the place of these later count as other programs, which is unfair to nobody but the test.
        let running = pods.iter().filter_map(|pod| Container::of(pod, "evaluator"));
        let evaluators: Vec<_> = running.map(|container| container.pid()).collect();
        let listener = Listener::new(move || evaluators.clone(), &self.canary_check);
        own_canary::start(listener, IN_TIME, self.api(), &namespace)
    }

    /// Says why a test of a row of the fault catalogue neither has a canary nor calls the evaluators otherwise.
    pub fn without_canary(&self, reason: &str) {
        self.canary_check.left_out(reason);
    }

    /// Call it where a test begins on a release that tests share.
    pub fn begin_test(&self) {
        self.canary_check.begin();
    }

    /// Call it where a test ends on a release that tests share.
    ///
    /// # Panics
    /// When the test is named after a row, and has neither called the evaluators nor said why not.
    pub fn end_test(&self) {
        self.canary_check.assert_done();
    }
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.end_test();
    }
}
