//! Policies in the installation's namespace, about whose objects no policy is asked.

use super::policies::said;
use super::*;

/// A Policy in the installation's namespace that every replica serves, on this resource.
fn inside(generation: i64, resource: &str) -> P {
    let mut policy = policy("a").generation(generation).on(resource).everywhere();
    policy.0["metadata"]["namespace"] = json!("portcullis");
    policy
}

/// The policy as it is in the world, with the content of its newest revision.
fn put(stage: &mut Stage, policy: &P, marks: &[&str]) -> crate::world::Content {
    let shares = stage.rules.shares_webhooks;
    let object = serde_json::from_value(policy.0.clone()).expect("an object");
    let content = crate::world::PolicyView::read(Kind::Policy, &object).expect("a policy").content;
    let content = content.expect("a content").sharing(shares);
    let group = (content.group.clone(), content.part.kind);
    stage.take(Collection::Policies(Kind::Policy), policy.0.clone());
    stage.revision_changed(policy, marks, Some(&group), |object| {
        object["data"]["policy"]["kind"] = json!("Policy");
        object["data"]["policy"]["namespace"] = json!("portcullis");
        object["data"]["shared"] = json!(shares);
    });
    content
}

#[test]
fn a_policy_in_the_installations_namespace_says_that_nothing_asks_it_and_has_no_webhook() {
    let mut stage = Stage::new();
    stage.take(Collection::Policies(Kind::Policy), inside(1, "pods").0);
    assert_eq!(stage.actions(), ["revision 1"]);
    put(&mut stage, &inside(1, "pods"), &[]);
    let actions = stage.decide();
    assert_eq!(actions.len(), 1, "nothing is tried or registered: {actions:?}");
    let words = "no policy is asked about objects in portcullis, the namespace of the installation: move the policy to another namespace";
    assert_eq!(said(&actions), [("a False SpecInvalid at 1".to_owned(), words.to_owned())]);
}

#[test]
fn a_webhook_of_an_earlier_release_that_asks_nothing_is_removed_and_edits_leave_nothing_in_force() {
    for shares in [false, true] {
        let mut stage = Stage::new();
        stage.rules.shares_webhooks = shares;
        let registered = inside(1, "pods").condition("True", "Registered", 1);
        let content = put(&mut stage, &registered, &["served"]);
        stage.webhook_of(&content, 10);
        assert_eq!(stage.actions(), ["unregister", "a False SpecInvalid at 1"]);
        let edited = inside(2, "services").condition("False", "SpecInvalid", 1);
        put(&mut stage, &edited, &[]);
        let webhook = stage.world.webhooks.values().next().expect("a webhook").name.clone();
        stage.unregistered(&webhook);
        stage.decide();
        stage.pass(5);
        assert_eq!(stage.actions(), ["mark a-1 withdrawn=true", "a False SpecInvalid at 2"], "{shares}");
        put(&mut stage, &edited.deleting(), &[]);
        assert!(stage.actions().contains(&"mark a-2 deleted=true".to_owned()), "it can be deleted");
    }
}
