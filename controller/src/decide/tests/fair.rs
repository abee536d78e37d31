//! Which of many actions start first.

use super::*;
use crate::slots::Slots;

impl Stage {
    /// A Policy of a namespace, which was never accepted and is held by our finalizer.
    fn put_in(&mut self, namespace: &str, name: &str) {
        let mut policy = policy(name).0;
        policy["metadata"]["namespace"] = json!(namespace);
        self.take(Collection::Policies(Kind::Policy), policy);
    }

    /// The actions that start first.
    fn started(&mut self) -> Vec<Action> {
        let clock = "2026-01-02T00:00:00Z".parse().expect("a time");
        let now = Now { instant: self.start + self.elapsed, wall: clock };
        let decision = decide(&self.world, &mut self.memory, &self.rules, now);
        Slots::new(16).start(decision.actions, decision.refusals)
    }
}

fn is_revision_of(action: &Action, name: &str) -> bool {
    matches!(action, Action::CreateRevision { policy, .. } if policy.name == name)
}

#[test]
fn many_refused_policies_do_not_hold_up_one_that_is_accepted() {
    let mut stage = Stage::new();
    stage.rules.policies_per_namespace = 1;
    (0..101).for_each(|number| stage.put_in("greedy", &format!("a{number:03}")));
    stage.put_in("modest", "z");
    let started = stage.started();
    assert!(started.iter().any(|action| is_revision_of(action, "z")), "{started:?}");
    let conditions = started.iter().filter(|action| matches!(action, Action::SetCondition { .. })).count();
    assert_eq!(conditions, 4, "{started:?}");
}

#[test]
fn many_accepted_policies_of_a_namespace_do_not_hold_up_those_of_another() {
    let mut stage = Stage::new();
    (0..100).for_each(|number| stage.put_in("greedy", &format!("a{number:03}")));
    stage.put_in("modest", "z");
    let started = stage.started();
    assert!(started.iter().any(|action| is_revision_of(action, "z")), "{started:?}");
    assert_eq!(started.len(), 16);
}
