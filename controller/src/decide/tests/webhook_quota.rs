//! Webhook configurations of a namespace.

use super::*;

const TENANTS: Collection = Collection::Policies(Kind::Policy);

/// A Policy of a namespace that is asked about this resource.
fn tenant(name: &str, resource: &str) -> P {
    let mut policy = policy(name).on(resource);
    policy.0["metadata"]["namespace"] = json!("team-a");
    policy
}

impl Stage {
    fn put_tenant(&mut self, policy: &P) {
        self.take(TENANTS, policy.0.clone());
    }

    /// Adds a policy whose newest generation was accepted.
    fn taken(&mut self, policy: &P) {
        let object = serde_json::from_value(policy.0.clone()).expect("an object");
        let content = crate::world::PolicyView::read(Kind::Policy, &object).expect("a policy").content;
        let group = content.map(|content| (content.group, content.part.kind)).expect("a content");
        self.put_tenant(policy);
        self.revision_changed(policy, &[], Some(&group), |object| {
            object["data"]["policy"]["kind"] = json!("Policy");
            object["data"]["policy"]["namespace"] = json!("team-a");
        });
    }

    fn refused(&mut self) -> Vec<String> {
        self.actions().into_iter().filter(|action| action.contains("QuotaExceeded")).collect()
    }

    fn made(&mut self) -> Vec<String> {
        let actions = self.decide();
        let names = actions.iter().filter_map(|action| match action {
            Action::CreateRevision { policy, .. } => Some(policy.name.clone()),
            _ => None,
        });
        names.collect()
    }
}

fn stage(webhooks: usize) -> Stage {
    let mut stage = Stage::new();
    stage.rules.webhooks_per_namespace = webhooks;
    stage
}

#[test]
fn z11_a_policy_that_needs_one_webhook_too_many_is_not_taken() {
    let mut stage = stage(2);
    stage.taken(&tenant("a", "pods"));
    stage.taken(&tenant("b", "services"));
    stage.put_tenant(&tenant("c", "pods"));
    stage.put_tenant(&tenant("d", "secrets").without_finalizer());
    stage.put(policy("everywhere").on("secrets"));
    assert_eq!(
        stage.made(),
        ["c", "everywhere"],
        "who shares a webhook needs none, and ClusterPolicies are not counted"
    );
    assert_eq!(stage.refused(), ["d False QuotaExceeded at 1"]);
    assert!(!stage.actions().contains(&"hold d".to_owned()), "there is nothing to clean up");
}

#[test]
fn z11_of_many_new_policies_the_oldest_are_taken() {
    let mut stage = stage(1);
    for (name, resource, second) in [("a", "pods", 3), ("b", "services", 1), ("c", "secrets", 2)] {
        let mut policy = tenant(name, resource);
        policy.0["metadata"]["creationTimestamp"] = json!(format!("2026-01-01T00:00:{second:02}Z"));
        stage.put_tenant(&policy);
    }
    assert_eq!(stage.made(), ["b"]);
    assert_eq!(stage.made(), ["b"], "until its revision is there");
}

#[test]
fn z11_an_edit_may_move_and_may_not_open_more() {
    let mut stage = stage(2);
    let (a, b) = (tenant("a", "pods"), tenant("b", "pods"));
    stage.taken(&a);
    stage.taken(&b);
    stage.taken(&tenant("c", "services"));
    // Two webhooks are the limit, so there is no room for a third.
    stage.put_tenant(&b.clone().on("secrets").generation(2));
    assert_eq!(stage.made(), [""; 0]);
    assert_eq!(stage.refused(), ["b False QuotaExceeded at 2"]);
    // The policy's old webhook stays, and any other edit is accepted.
    assert!(!stage.actions().iter().any(|action| action.contains("unregister") || action.contains("withdrawn")));
    stage.put_tenant(&b.on("pods").generation(3).spec("mode", json!("monitor")));
    assert_eq!(stage.made(), ["b"]);
    // The only policy of a webhook may move to another one, as its old webhook goes.
    stage.put_tenant(&tenant("c", "secrets").generation(2));
    assert_eq!(stage.made(), ["b", "c"]);
}

#[test]
fn z11_what_is_there_is_kept_when_the_limit_becomes_smaller() {
    let mut stage = stage(1);
    let (a, b) = (tenant("a", "pods"), tenant("b", "services"));
    stage.taken(&a);
    stage.taken(&b);
    stage.put_tenant(&b.generation(2).spec("mode", json!("monitor")));
    assert_eq!(stage.made(), ["b"]);
}

#[test]
fn z11_edits_that_move_on_and_on_wait_for_the_webhooks_that_they_leave() {
    let mut stage = stage(2);
    let at = |generation: i64| tenant("a", &format!("things-{generation}")).generation(generation);
    (1..=4).for_each(|generation| stage.taken(&at(generation)));
    stage.put_tenant(&at(5));
    assert_eq!(stage.made(), [""; 0]);
    assert_eq!(stage.refused(), ["a False QuotaExceeded at 5"]);
}

#[test]
fn fault_z11_match_parts_that_policies_are_leaving_have_a_size_together() {
    let mut stage = stage(40);
    let at = |name: &str, generation: i64, part: i64| {
        let condition = json!([{"name": format!("{name}-{part}"), "expression": "x".repeat(700 << 10)}]);
        tenant(name, "pods").generation(generation).spec("matchConditions", condition)
    };
    let names = ["a", "b", "c", "d", "e", "f"];
    for name in names {
        (1..=4).for_each(|generation| stage.taken(&at(name, generation, generation)));
    }
    // Three parts of each are left by now; 23 of this size fit.
    names.iter().for_each(|name| stage.put_tenant(&at(name, 5, 5)));
    assert_eq!(stage.made(), ["a", "b", "c", "d", "e"]);
    assert_eq!(stage.refused(), ["f False QuotaExceeded at 5"]);
    // An edit that leaves no further one is accepted.
    stage.put_tenant(&at("f", 5, 4));
    assert_eq!(stage.made(), names);
    // So is one that goes back to a part that the policy is leaving.
    stage.put_tenant(&at("f", 5, 1));
    assert_eq!(stage.made(), names);
}
