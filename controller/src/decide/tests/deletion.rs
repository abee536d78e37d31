//! Deletions that cannot go on.

use super::policies::{answer, said};
use super::*;
use crate::failed::Cause;

/// What a deleted policy says after each of these actions has failed, which has to be this one.
fn conditions_after(stage: &mut Stage, action: &str, cause: Cause) -> Vec<(String, String)> {
    let actions = stage.decide();
    assert_eq!(actions.iter().map(short).collect::<Vec<_>>(), [action]);
    answer(stage, &actions, cause);
    let actions = stage.decide();
    assert_eq!(short(&actions[0]), action, "it is tried again");
    said(&actions)
}

/// A policy that is being deleted and whose webhook exists.
fn deleted() -> Stage {
    let mut stage = Stage::new();
    stage.put(policy("a").deleting().condition("True", "Registered", 1));
    stage.revision(&policy("a"), &[]);
    stage.webhook(&policy("a"));
    stage
}

#[test]
fn each_step_of_a_deletion_that_the_api_server_refuses_is_told_in_its_words() {
    let mut stage = deleted();
    let check = |conditions: Vec<(String, String)>, reason: &str, what: &str| {
        let [(condition, message)] = &conditions[..] else { panic!("{conditions:?}") };
        assert_eq!(condition, &format!("a False {reason} at 1"));
        assert!(message.starts_with(&format!("the policy is being deleted, and {what}: its words; ")), "{message}");
    };
    let name = stage.world.webhooks.values().next().expect("a webhook").name.clone();
    let what = format!("webhook configuration {name}, which API servers still call, cannot be deleted");
    check(conditions_after(&mut stage, "unregister", Cause::Forbidden), "Forbidden", &what);
    check(conditions_after(&mut deleted(), "unregister", Cause::Refused), "Forbidden", &what);
    let removed = stage.decide().into_iter().next().expect("a removal");
    stage.memory.succeeded(&removed);
    stage.world.webhooks.clear();
    assert_eq!(stage.actions(), NOTHING);

    stage.pass(5);
    let mark = "mark a-1 deleted=true";
    check(conditions_after(&mut stage, mark, Cause::Forbidden), "Forbidden", "revision a-1 cannot be changed");
    stage.revision(&policy("a"), &["deleted"]);
    assert_eq!(stage.actions(), NOTHING, "what is over is not told");
    stage.pass(2);
    check(conditions_after(&mut stage, "remove a-1", Cause::Forbidden), "Forbidden", "revision a-1 cannot be deleted");
    stage.world.revisions.clear();
    let what = "the finalizer of Portcullis cannot be removed";
    check(conditions_after(&mut stage, "release a", Cause::Refused), "SpecInvalid", what);
    stage.world.policies.clear();
    stage.decide();
    assert!(stage.memory.obstacles.is_empty(), "nothing is kept of a policy that is gone");
}

#[test]
fn a_deletion_that_fails_for_a_while_says_so_whatever_the_cause() {
    let mut stage = deleted();
    assert_eq!(conditions_after(&mut stage, "unregister", Cause::Overtaken), []);
    assert_eq!(conditions_after(&mut stage, "unregister", Cause::Other), [], "it may pass by itself");
    stage.pass(29);
    assert_eq!(conditions_after(&mut stage, "unregister", Cause::Other), []);
    stage.pass(1);
    let conditions = said(&stage.decide());
    assert_eq!(conditions.len(), 1);
    assert_eq!(conditions[0].0, "a False Unknown at 1");
}

/// API servers go on calling it, so the policy must stay until it is gone.
#[test]
fn a_webhook_that_a_finalizer_keeps_holds_its_policy() {
    let mut stage = deleted();
    for webhook in stage.world.webhooks.values().cloned().collect::<Vec<_>>() {
        let metadata = json!({
            "name": webhook.name, "uid": webhook.uid, "labels": webhook.labels,
            "finalizers": ["example.com/hold"], "deletionTimestamp": "2026-01-01T00:00:00Z",
        });
        stage.take(Collection::Webhooks(webhook.kind), json!({"metadata": metadata, "webhooks": *webhook.entries}));
    }
    assert_eq!(conditions_after(&mut stage, "unregister", Cause::Other), []);
    for _ in 0..3 {
        stage.pass(60);
        let actions = stage.decide();
        assert_eq!(actions.iter().map(short).collect::<Vec<_>>(), ["unregister", "a False Unknown at 1"]);
        answer(&mut stage, &actions[..1], Cause::Other);
    }
    assert!(stage.memory.groups.values().all(|group| group.deleted.is_none() && group.gone.is_none()));
    unregister(&mut stage);
    assert_eq!(stage.actions(), NOTHING);
    stage.pass(5);
    assert_eq!(stage.actions(), ["mark a-1 deleted=true"]);
}

/// Writes the condition that is to be written to this policy, which then has this one only.
fn written(stage: &mut Stage, policy: P) -> P {
    let actions = stage.decide();
    let condition = actions.iter().find_map(|action| match action {
        Action::SetCondition { condition, .. } => Some(json!([condition])),
        _ => None,
    });
    let policy = policy.status("conditions", condition.expect("a condition"));
    stage.put(policy.clone());
    assert_eq!(said(&stage.decide()), [], "once");
    policy
}

/// Records that the webhook was deleted after all.
fn unregister(stage: &mut Stage) {
    let removal = stage.decide().into_iter().next().expect("a removal");
    assert_eq!(short(&removal), "unregister");
    stage.memory.succeeded(&removal);
    assert_eq!(said(&stage.decide()), [], "it is still there");
    stage.world.webhooks.clear();
}

/// The condition of a policy whose deletion nothing holds up any more.
fn over(reason: &str, what: &str) -> [(String, String); 1] {
    [(format!("a False {reason} at 1"), format!("the policy is being deleted; {what}"))]
}

#[test]
fn a_policy_says_once_that_what_held_up_its_deletion_is_over() {
    let mut stage = deleted();
    conditions_after(&mut stage, "unregister", Cause::Forbidden);
    let held_up = written(&mut stage, policy("a").deleting());
    unregister(&mut stage);
    assert_eq!(said(&stage.decide()), over("Forbidden", "what held it up is over"));
    written(&mut stage, held_up);
    assert_eq!(stage.actions(), NOTHING);
    stage.pass(5);
    let [(_, message)] = &conditions_after(&mut stage, "mark a-1 deleted=true", Cause::Forbidden)[..] else {
        panic!("one")
    };
    assert!(message.contains("revision a-1 cannot be changed"), "the next one is shown: {message}");
}

#[test]
fn a_policy_that_was_uninstalled_says_so_too() {
    let mut stage = deleted();
    stage.put(policy("a").deleting().condition("False", "Uninstalled", 1));
    conditions_after(&mut stage, "unregister", Cause::Other);
    stage.pass(30);
    written(&mut stage, policy("a").deleting());
    unregister(&mut stage);
    assert_eq!(said(&stage.decide()), over("Uninstalled", "what held it up is over"));
}

#[test]
fn a_policy_that_only_a_finalizer_of_somebody_else_keeps_does_not_blame_portcullis() {
    let mut stage = Stage::new();
    stage.put(policy("a").deleting());
    conditions_after(&mut stage, "release a", Cause::Refused);
    let mut released = written(&mut stage, policy("a").deleting());
    released.0["metadata"]["finalizers"] = json!(["example.com/other"]);
    stage.put(released.clone());
    assert_eq!(said(&stage.decide()), over("SpecInvalid", "nothing of Portcullis holds that up any more"));
    written(&mut stage, released);
    assert_eq!(stage.actions(), NOTHING);
}

#[test]
fn a_new_leader_tries_each_step_before_it_says_that_nothing_holds_up_a_deletion() {
    let mut stage = deleted();
    unregister(&mut stage);
    stage.decide();
    stage.pass(5);
    conditions_after(&mut stage, "mark a-1 deleted=true", Cause::Forbidden);
    written(&mut stage, policy("a").deleting());
    stage.memory = Memory::new(stage.start + stage.elapsed);
    assert_eq!(stage.actions(), NOTHING, "the pause starts again");
    stage.pass(5);
    assert_eq!(conditions_after(&mut stage, "mark a-1 deleted=true", Cause::Forbidden), [], "it is still right");
}

#[test]
fn a_policy_that_is_not_deleted_says_nothing_of_writes_that_deletions_wait_for() {
    let mut stage = Stage::new();
    stage.put(policy("a").everywhere().condition("True", "Registered", 1));
    stage.revision(&policy("a"), &["deleted"]);
    let actions = stage.decide();
    let mark = actions.iter().find(|action| action.is_removal()).cloned().expect("a mark");
    let before = said(&actions);
    answer(&mut stage, &[mark], Cause::Forbidden);
    assert_eq!(said(&stage.decide()), before);
}
