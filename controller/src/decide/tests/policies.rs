//! The life of one policy.

use super::*;

#[test]
fn a_new_policy_is_held_then_it_has_a_revision() {
    let mut stage = Stage::new();
    stage.put(policy("a").without_finalizer());
    assert_eq!(stage.actions(), ["try", "hold a"]);
    stage.put(policy("a"));
    assert_eq!(stage.actions(), ["try", "revision 1"]);
}

#[test]
fn nothing_is_made_of_a_policy_beyond_the_limit_of_its_namespace_until_there_is_room() {
    let namespaced = Collection::Policies(Kind::Policy);
    let of_tenant = |name: &str, second: u8| {
        let mut object = policy(name).without_finalizer().0;
        object["metadata"]["namespace"] = json!("team-a");
        object["metadata"]["creationTimestamp"] = json!(format!("2026-01-01T00:00:{second:02}Z"));
        object
    };
    let mut stage = Stage::new();
    stage.rules.policies_per_namespace = 1;
    stage.take(namespaced, of_tenant("old", 1));
    stage.take(namespaced, of_tenant("new", 2));
    assert_eq!(stage.actions(), ["try", "hold old", "new False QuotaExceeded at 1"]);
    let old = serde_json::from_value(of_tenant("old", 1)).expect("an object");
    stage.world.take(Change::Deleted(namespaced, Box::new(old)));
    assert_eq!(stage.actions(), ["try", "hold new"]);
}

#[test]
fn no_webhook_is_registered_before_every_replica_serves() {
    let mut stage = Stage::new();
    stage.put(policy("a"));
    stage.revision(&policy("a"), &[]);
    assert_eq!(stage.actions(), ["try"], "mostly it is over before anybody reads of it");
    stage.put(policy("a").status("observedGeneration", json!(1)));
    assert_eq!(stage.actions(), ["try", "a False WaitingForReplicas at 1"]);
    stage.tried(&policy("a"));
    stage.put(policy("a").condition("False", "WaitingForReplicas", 1));
    assert_eq!(stage.actions(), ["a False WaitingForReplicas at 1"], "the message is another");
    stage.put(policy("a").everywhere());
    assert_eq!(stage.actions(), ["register"]);
}

#[test]
fn that_a_policy_waits_is_said_after_a_while_also_where_no_replica_is() {
    let mut stage = Stage::new();
    stage.put(policy("a"));
    stage.revision(&policy("a"), &[]);
    stage.tried(&policy("a"));
    assert_eq!(stage.actions(), [""; 0]);
    stage.pass(5);
    assert_eq!(stage.actions(), ["a False WaitingForReplicas at 1"]);
}

#[test]
fn a_registered_policy_says_so_only_after_the_proof() {
    let mut stage = Stage::new();
    stage.put(policy("a").everywhere());
    stage.revision(&policy("a"), &[]);
    stage.webhook(&policy("a"));
    assert_eq!(stage.actions(), ["prove with a-1"]);
    stage.proven(&policy("a"));
    assert_eq!(stage.actions(), ["a True Registered at 1"]);
    let value = ConditionValue { status: Truth::Unknown, reason: "Unknown", message: "not called".into() };
    let group = stage.group(&policy("a"));
    stage.memory.groups.entry(group).or_default().unproven = Some(FailedProof { value, keeps_earlier: false });
    assert_eq!(stage.actions(), ["prove with a-1", "a Unknown Unknown at 1"]);
}

/// What a new leader sees of a policy with this condition, whose webhook is as it should be, where an API server said nothing about it or, if
/// `passed`, let the marker pass.
fn seen_by_a_new_leader(policy: P, passed: bool) -> Stage {
    let mut stage = Stage::new();
    stage.put(policy.clone());
    stage.revision(&policy, &["served"]);
    stage.webhook(&policy);
    let message = "1 of 2 API servers call the webhook; 10.0.0.2:6443: it failed".to_owned();
    let (status, reason) = (Truth::Unknown, "Unknown");
    let value = ConditionValue { status, reason, message };
    let group = stage.group(&policy);
    stage.memory.groups.entry(group).or_default().unproven = Some(FailedProof { value, keeps_earlier: !passed });
    stage
}

#[test]
fn a_policy_that_was_proven_before_stays_registered_while_an_api_server_cannot_be_asked() {
    let registered = policy("a").generation(2).everywhere().condition("True", "Registered", 2);
    let mut stage = seen_by_a_new_leader(registered.clone(), false);
    assert_eq!(stage.actions(), ["prove with a-2", "a True Registered at 2"]);
    let written = stage.decide().into_iter().find_map(|action| match action {
        Action::SetCondition { condition, .. } => Some(condition),
        _ => None,
    });
    let message = written.expect("a condition").message;
    assert!(message.ends_with("; not proven again: 1 of 2 API servers call the webhook; 10.0.0.2:6443: it failed"));

    let mut stage = seen_by_a_new_leader(registered, true);
    assert_eq!(stage.actions(), ["prove with a-2", "a Unknown Unknown at 2"], "that API server does not call it");
    let edited = policy("a").generation(2).everywhere().condition("True", "Registered", 1);
    let mut stage = seen_by_a_new_leader(edited, false);
    assert_eq!(stage.actions(), ["prove with a-2", "a Unknown Unknown at 2"], "it was never proven");
}

#[test]
fn a_webhook_that_this_leader_has_written_or_proven_is_not_said_to_be_called_before_it_is_proven_again() {
    let registered = policy("a").generation(2).everywhere().condition("True", "Registered", 2);
    let mut stage = seen_by_a_new_leader(registered.clone(), false);
    let group = stage.group(&registered);
    let remembered = stage.memory.groups.get_mut(&group).expect("a group");
    remembered.proven = Some(("of-another".to_owned(), Arc::new(json!([]))));
    assert_eq!(stage.actions(), ["prove with a-2", "a Unknown Unknown at 2"], "it proved another one");

    let mut stage = seen_by_a_new_leader(registered, false);
    stage.world.webhooks.values_mut().for_each(|webhook| webhook.entries = Arc::new(json!([])));
    assert_eq!(stage.write_webhooks(), 1);
    let remembered = stage.memory.groups.get(&group).expect("a group");
    assert!(remembered.proven.is_none() && remembered.unproven.is_some());
    assert_eq!(stage.actions(), ["prove with a-2", "a Unknown Unknown at 2"], "it wrote this one");
}

#[test]
fn what_waits_for_long_is_told_again_and_again() {
    let mut stage = Stage::new();
    stage.put(policy("a"));
    stage.revision(&policy("a"), &[]);
    stage.tried(&policy("a"));
    stage.decide();
    stage.pass(299);
    let event = |stage: &mut Stage| {
        let actions = stage.decide();
        actions.into_iter().find(|action| short(action) == "tell a WaitingForReplicas")
    };
    assert_eq!(event(&mut stage), None);
    for is_given_up in [false, true, false] {
        stage.pass(300);
        event(&mut stage);
        match event(&mut stage).expect("it is not written yet") {
            Action::Warn(warning) if is_given_up => stage.memory.gave_up(&warning),
            written => stage.memory.succeeded(&written),
        }
        assert_eq!(event(&mut stage), None);
    }
}

#[test]
fn a_match_expression_that_is_refused_is_told_in_the_api_servers_words() {
    let mut stage = Stage::new();
    stage.put(policy("a").everywhere());
    stage.revision(&policy("a"), &[]);
    let (group, at) = (stage.group(&policy("a")), stage.start + stage.elapsed);
    let refusal = crate::memory::WebhookRejection { message: "compilation failed".into(), at };
    stage.memory.groups.entry(group).or_default().tried = Some(Err(refusal));
    assert_eq!(stage.actions(), ["a False SpecInvalid at 1"]);
    stage.pass(600);
    assert_eq!(stage.actions(), ["try", "a False SpecInvalid at 1"]);
}

#[test]
fn a_suspended_policy_registers_nothing_and_removes_nothing() {
    let mut stage = Stage::new();
    let suspended = policy("a").spec("suspend", json!(true)).everywhere();
    stage.put(suspended.clone());
    stage.revision(&suspended, &[]);
    stage.tried(&suspended);
    assert_eq!(stage.actions(), ["a False Suspended at 1"]);
    stage.proven(&suspended);
    assert_eq!(stage.actions(), ["a True Registered at 1"]);
}

#[test]
fn a_spec_that_cannot_be_read_has_a_revision_and_says_so() {
    let mut stage = Stage::new();
    let odd = policy("a").spec("mode", json!("quarantine"));
    stage.put(odd.clone());
    assert_eq!(stage.actions(), ["try", "revision 1"], "its match part can be read");
    stage.revision(&odd, &[]);
    assert_eq!(stage.actions(), ["try", "a False SpecInvalid at 1"]);
}

#[test]
fn a_deleted_policy_goes_in_steps() {
    let mut stage = Stage::new();
    stage.put(policy("a").deleting());
    stage.revision(&policy("a"), &[]);
    let name = stage.webhook(&policy("a"));
    assert_eq!(stage.actions(), ["unregister"]);
    stage.world.webhooks.retain(|(_, found), _| *found != name);
    assert_eq!(stage.actions(), NOTHING, "API servers may call it still");
    stage.pass(5);
    assert_eq!(stage.actions(), ["mark a-1 deleted=true"]);
    stage.revision(&policy("a"), &["deleted"]);
    assert_eq!(stage.actions(), NOTHING, "replicas forget it");
    stage.pass(2);
    assert_eq!(stage.actions(), ["remove a-1"]);
    stage.world.revisions.clear();
    assert_eq!(stage.actions(), ["release a"]);
}

#[test]
fn a_deleted_policy_leaves_its_webhook_to_the_others() {
    let mut stage = Stage::new();
    stage.put(policy("a").deleting());
    stage.revision(&policy("a"), &[]);
    stage.put(policy("b").everywhere().condition("True", "Registered", 1));
    stage.revision(&policy("b"), &[]);
    stage.proven(&policy("b"));
    assert_eq!(stage.actions(), ["b True Registered at 1", "mark a-1 deleted=true"]);
}

#[test]
fn the_webhook_of_a_policy_that_is_not_reported_yet_stays_as_long_as_its_revisions() {
    let mut stage = Stage::new();
    let patient = policy("a").spec("timeoutSeconds", json!(25));
    stage.revision(&patient, &["served"]);
    stage.webhook(&patient);
    assert_eq!(stage.actions(), NOTHING, "a watch may lag");
    stage.pass(29);
    assert_eq!(stage.actions(), NOTHING);
    stage.pass(1);
    assert_eq!(stage.actions(), ["find a"], "it may be the watch that lags");
    stage.gone(&patient);
    assert_eq!(stage.actions(), ["unregister"], "the policy does not exist");
    stage.world.webhooks.clear();
    assert_eq!(stage.actions(), NOTHING, "API servers may call it still");
    stage.pass(5);
    assert_eq!(stage.actions(), ["mark a-1 deleted=true"]);
}

#[test]
fn a_policy_that_is_reported_late_has_never_lost_its_webhook() {
    let mut stage = Stage::new();
    stage.revision(&policy("a"), &["served"]);
    stage.webhook(&policy("a"));
    assert_eq!(stage.actions(), NOTHING);
    stage.pass(29);
    stage.put(policy("a").everywhere().condition("True", "Registered", 1));
    assert_eq!(stage.actions(), ["prove with a-1"]);
    stage.pass(60);
    assert_eq!(stage.actions(), ["prove with a-1"]);
}

#[test]
fn a_webhook_that_is_gone_is_not_made_for_a_policy_that_is_not_known() {
    let mut stage = Stage::new();
    stage.revision(&policy("a"), &["served"]);
    assert_eq!(stage.actions(), NOTHING);
}

#[test]
fn a_webhook_that_lost_its_labels_does_not_hold_up_the_deletion_of_its_policy() {
    let mut stage = Stage::new();
    stage.put(policy("a").deleting());
    stage.revision(&policy("a"), &[]);
    stage.webhook(&policy("a"));
    stage.world.webhooks.values_mut().for_each(|webhook| webhook.labels.clear());
    assert_eq!(stage.actions(), ["unregister"]);
}

#[test]
fn revisions_of_nobody_go_after_a_while() {
    let mut stage = Stage::new();
    stage.revision(&policy("a"), &[]);
    assert_eq!(stage.actions(), NOTHING, "a watch may lag");
    stage.pass(30);
    assert_eq!(stage.actions(), ["find a"]);
    stage.gone(&policy("a"));
    assert_eq!(stage.actions(), ["mark a-1 deleted=true"]);
    stage.put(policy("a"));
    stage.revision(&policy("a"), &["deleted"]);
    assert!(stage.actions().contains(&"mark a-1 deleted=false".to_owned()), "it is there after all");
}

#[test]
fn a_policy_that_only_an_api_server_knows_keeps_webhook_and_revisions() {
    let mut stage = Stage::new();
    stage.revision(&policy("a"), &["served"]);
    stage.proven(&policy("a"));
    stage.pass(600);
    assert_eq!(stage.actions(), ["find a"]);
    // The executor finds it.
    stage.put(policy("a").everywhere().condition("True", "Registered", 1));
    assert_eq!(stage.actions(), ["a True Registered at 1"]);
    // The watch, when it lists again, still says nothing.
    stage.world.take(Change::Listed(POLICIES, BTreeSet::new()));
    assert_eq!(stage.actions(), NOTHING);
    stage.pass(600);
    assert_eq!(stage.actions(), ["find a"]);
}

#[test]
fn a_policy_that_lost_our_finalizer_while_it_is_deleted_is_forgotten() {
    let mut stage = Stage::new();
    let mut deleted = policy("a").deleting();
    deleted.0["metadata"]["finalizers"] = json!(["example.com/other"]);
    stage.put(deleted);
    stage.revision(&policy("a"), &["served"]);
    assert_eq!(stage.actions(), NOTHING);
    stage.pass(29);
    assert_eq!(stage.actions(), NOTHING);
    stage.pass(1);
    assert_eq!(stage.actions(), ["mark a-1 deleted=true"]);
    stage.revision(&policy("a"), &["served", "deleted"]);
    stage.decide();
    stage.pass(2);
    assert_eq!(stage.actions(), ["remove a-1"]);
}

/// What the API server answers to these actions.
pub(super) fn answer(stage: &mut Stage, actions: &[Action], cause: crate::failed::Cause) {
    for action in actions {
        let failed = crate::failed::Failed::of(cause, "its words".to_owned());
        stage.memory.failed(action, &failed, &stage.world, stage.start + stage.elapsed);
    }
}

/// The conditions that are to be written, with their messages.
pub(super) fn said(actions: &[Action]) -> Vec<(String, String)> {
    let conditions = actions.iter().filter_map(|action| match action {
        Action::SetCondition { condition, .. } => Some((short(action), condition.message.clone())),
        _ => None,
    });
    conditions.collect()
}

#[test]
fn a_finalizer_or_a_revision_that_the_api_server_refuses_is_told_in_its_words() {
    use crate::failed::Cause;
    for first in [policy("a").without_finalizer(), policy("a")] {
        for (cause, reason) in [(Cause::Forbidden, "Forbidden"), (Cause::Refused, "SpecInvalid")] {
            let mut stage = Stage::new();
            stage.put(first.clone());
            let actions = stage.decide();
            assert_eq!(said(&actions), []);
            answer(&mut stage, &actions[1..], cause);
            let actions = stage.decide();
            assert_eq!(said(&actions), [(format!("a False {reason} at 1"), "its words".to_owned())]);
            assert_eq!(actions.len(), 3, "it is tried again: {actions:?}");
            // What is said of one generation is not said of the next.
            stage.put(first.clone().generation(2));
            assert_eq!(said(&stage.decide()), []);
            stage.memory.succeeded(&actions[1]);
            assert!(stage.memory.refused.is_empty());
        }
    }
    let mut stage = Stage::new();
    stage.put(policy("a"));
    let actions = stage.decide();
    answer(&mut stage, &actions, Cause::Other);
    assert_eq!(said(&stage.decide()), [], "waiting helps");
    answer(&mut stage, &actions[1..], Cause::Forbidden);
    stage.put(policy("a").deleting());
    stage.decide();
    assert!(stage.memory.refused.is_empty(), "nothing is kept of a policy that goes");
}

#[test]
fn a_change_of_a_webhook_that_the_api_server_refuses_is_told_in_its_words() {
    let mut stage = Stage::new();
    stage.put(policy("a").everywhere().condition("True", "Registered", 1));
    stage.revision(&policy("a"), &["served"]);
    stage.proven(&policy("a"));
    stage.decide();
    let right = stage.rules.installation.clone();
    if let Ok(installation) = &mut stage.rules.installation {
        installation.path_key = PathKey::Secret([7; 32]);
    }
    let actions = stage.decide();
    assert!(matches!(actions[..], [Action::ChangeWebhook { .. }]), "{actions:?}");
    answer(&mut stage, &actions, crate::failed::Cause::Refused);
    let actions = stage.decide();
    let told = said(&actions);
    let [(condition, message)] = &told[..] else { panic!("{actions:?}") };
    assert_eq!(condition, "a True Registered at 1", "API servers call it as before");
    assert!(message.ends_with("; the API server refuses a change of it: its words"), "{message}");

    // What somebody else made of it is not proven, from the first moment on.
    for webhook in stage.world.webhooks.values_mut() {
        webhook.entries = Arc::new(json!([]));
    }
    for _ in 0..2 {
        let actions = stage.decide();
        assert_eq!(short(&actions[0]), "change back");
        answer(&mut stage, &actions, crate::failed::Cause::Refused);
        assert_eq!(said(&actions), [("a False SpecInvalid at 1".to_owned(), "its words".to_owned())]);
    }
    stage.rules.installation = right;
    stage.proven(&policy("a"));
    let told = said(&stage.decide());
    let [(condition, message)] = &told[..] else { panic!("{told:?}") };
    assert!(condition == "a True Registered at 1" && !message.contains("refuses"), "it is over: {message}");
}

#[test]
fn a_webhook_that_the_api_server_does_not_let_come_back_is_told_and_forgotten_when_it_is_back() {
    let mut stage = Stage::new();
    stage.put(policy("a").everywhere().condition("True", "Registered", 1));
    stage.revision(&policy("a"), &["served"]);
    stage.proven(&policy("a"));
    stage.decide();
    let webhooks = std::mem::take(&mut stage.world.webhooks);
    let actions = stage.decide();
    assert_eq!(short(&actions[0]), "register again");
    answer(&mut stage, &actions, crate::failed::Cause::Refused);
    let actions = stage.decide();
    assert_eq!(short(&actions[0]), "register again");
    let forbidden = [("a False Forbidden at 1".to_owned(), "its words".to_owned())];
    assert_eq!(said(&actions), forbidden, "its content was taken before, and no older webhook stays in its place");
    stage.world.webhooks = webhooks;
    stage.decide();
    assert!(stage.memory.groups.values().all(|group| group.tried.is_none() && group.refused.is_none()));
}

#[test]
fn z10_nothing_removes_finalizers_that_were_not_read() {
    let mut stage = Stage::new();
    let mut with = |count: usize| {
        let mut deleted = policy("a").deleting();
        let others = (0..count).map(|number| json!(format!("example.com/{number}")));
        deleted.0["metadata"]["finalizers"].as_array_mut().expect("a list").extend(others);
        stage.put(deleted);
        stage.actions()
    };
    assert_eq!(with(1), ["release a"]);
    assert_eq!(with(50_000), NOTHING);
}
