//! Policies that nothing has called since `helm uninstall`.

use super::*;

/// A policy of generation 2 whose installation was removed.
fn left(name: &str) -> P {
    policy(name).generation(2).condition("False", "Uninstalled", 2)
}

/// The message of the condition that is to be written.
fn message(stage: &mut Stage) -> String {
    let written = stage.decide().into_iter().find_map(|action| match action {
        Action::SetCondition { condition, .. } => Some(condition.message),
        _ => None,
    });
    written.expect("a condition")
}

#[test]
fn after_an_uninstallation_a_policy_waits_for_its_replicas_again_and_nobody_is_accused() {
    let mut stage = Stage::new();
    let left = left("a");
    stage.put(left.clone());
    stage.revision(&policy("a"), &["served", "withdrawn"]);
    stage.revision(&left, &["served"]);
    stage.tried(&left);
    let forgets = ["mark a-1 served=false", "mark a-2 served=false", "a False Uninstalled at 2"];
    assert_eq!(stage.actions(), forgets, "the reason stays, as the next leader has to know it too");
    for reason in ["Unknown", "CABundleInvalid", "Forbidden"] {
        stage.rules.installation = Err(ConditionValue::not_configured(reason, "not made yet"));
        assert_eq!(stage.actions(), forgets);
        let text = format!("not registered since the last uninstallation; {reason}: not made yet");
        assert_eq!(message(&mut stage), text);
    }
    stage.rules.installation = rules().installation;
    stage.put(left.clone().everywhere());
    assert_eq!(stage.actions(), forgets[..2], "replicas would take it for an enforced one");
    stage.revision(&policy("a"), &["withdrawn"]);
    stage.revision(&left, &[]);
    assert_eq!(stage.actions(), NOTHING, "replicas hear of it");
    stage.pass(2);
    assert_eq!(stage.actions(), ["register"], "and not `register again`");
    stage.proven(&left);
    assert_eq!(stage.actions(), ["a True Registered at 2"]);
}

#[test]
fn the_authority_that_is_made_first_does_not_hide_that_a_policy_was_uninstalled() {
    let mut stage = Stage::new();
    let left = left("a");
    stage.put(left.clone());
    stage.revision(&left, &["served"]);
    stage.tried(&left);
    stage.rules.installation =
        Err(ConditionValue::not_configured("CABundleInvalid", "there is no certificate authority yet"));
    assert_eq!(stage.actions(), ["mark a-2 served=false", "a False Uninstalled at 2"]);
    stage.revision(&left, &[]);
    assert_eq!(stage.actions(), ["a False CABundleInvalid at 2"], "now no mark is left to be taken for true");
    stage.put(policy("a").generation(2).condition("False", "CABundleInvalid", 2));
    stage.rules.installation = rules().installation;
    stage.pass(60);
    assert_eq!(stage.actions(), ["a False WaitingForReplicas at 2"]);
}

#[test]
fn replicas_hear_that_the_marks_were_taken_back_before_the_authority_is_made() {
    let mut stage = Stage::new();
    let left = left("a").everywhere();
    stage.put(left.clone());
    stage.revision(&left, &["served"]);
    stage.tried(&left);
    let installation = stage.rules.installation.clone();
    stage.rules.installation =
        Err(ConditionValue::not_configured("CABundleInvalid", "there is no certificate authority yet"));
    assert_eq!(stage.actions(), ["mark a-2 served=false", "a False Uninstalled at 2"]);
    stage.revision(&left, &[]);
    stage.rules.installation = installation;
    assert_eq!(stage.actions(), NOTHING, "they may not have heard of it yet");
    stage.pass(1);
    assert_eq!(stage.actions(), NOTHING);
    stage.pass(1);
    assert_eq!(stage.actions(), ["register"]);
}

#[test]
fn a_new_leader_does_not_know_when_the_marks_were_taken_back_and_waits_as_long() {
    let mut stage = Stage::new();
    let left = policy("a").generation(2).everywhere().condition("False", "CABundleInvalid", 2);
    stage.put(left.clone());
    stage.revision(&left, &[]);
    stage.memory = Memory::new(stage.start + stage.elapsed);
    stage.tried(&left);
    assert_eq!(stage.actions(), NOTHING);
    stage.pass(2);
    assert_eq!(stage.actions(), ["register"]);
}

#[test]
fn a_policy_whose_webhook_others_have_too_stays_uninstalled_until_its_marks_are_taken_back() {
    let mut stage = Stage::new();
    let registered = policy("a").everywhere().condition("True", "Registered", 1);
    stage.put(registered.clone());
    stage.revision(&registered, &["served"]);
    let left = left("b").everywhere();
    assert_eq!(stage.group(&registered), stage.group(&left));
    stage.put(left.clone());
    stage.revision(&left, &["served"]);
    stage.proven(&registered);
    let stays = ["a True Registered at 1", "mark b-2 served=false", "b False Uninstalled at 2"];
    assert_eq!(stage.actions(), stays, "although the webhook is called");
    let group = stage.group(&left);
    let value = ConditionValue { status: Truth::Unknown, reason: "Unknown", message: "not called".into() };
    let failed = FailedProof { value, keeps_earlier: false };
    stage.memory.groups.get_mut(&group).expect("a group").unproven = Some(failed);
    let actions = stage.actions();
    assert!(actions.ends_with(&stays[1..].iter().map(|one| (*one).to_owned()).collect::<Vec<_>>()), "{actions:?}");
    stage.revision(&left, &[]);
    assert!(stage.actions().contains(&"b Unknown Unknown at 2".to_owned()), "now no mark is left to be taken for true");
    stage.proven(&registered);
    stage.memory.groups.get_mut(&group).expect("a group").unproven = None;
    assert!(stage.actions().contains(&"b True Registered at 2".to_owned()));
}

#[test]
fn the_first_policy_of_a_group_that_is_ready_registers_no_other_one_as_enforced() {
    let mut stage = Stage::new();
    let (ready, broken) = (left("a").everywhere(), left("b"));
    assert_eq!(stage.group(&ready), stage.group(&broken));
    // The finalizers were removed as well.
    stage.put(ready.clone().without_finalizer());
    stage.put(broken.clone().without_finalizer());
    stage.revision(&ready, &["served"]);
    stage.revision(&broken, &["served"]);
    stage.tried(&ready);
    assert_eq!(stage.actions(), ["hold a", "mark a-2 served=false", "hold b", "mark b-2 served=false"]);
    stage.put(ready.clone());
    stage.revision(&ready, &[]);
    assert_eq!(stage.actions(), ["hold b", "mark b-2 served=false"], "one is not enough");
    stage.put(broken.clone());
    stage.revision(&broken, &[]);
    stage.decide();
    stage.pass(2);
    assert_eq!(stage.actions(), ["register"]);
}

#[test]
fn a_new_revision_of_an_uninstalled_policy_does_not_say_that_it_served() {
    let mut stage = Stage::new();
    let served = json!({"digest": format!("sha256:{}", "a".repeat(64)), "generation": 2});
    let left = left("a").status("lastServed", served);
    stage.put(left.clone());
    let is_marked = |actions: &[Action]| {
        let created = actions.iter().find_map(|action| match action {
            Action::CreateRevision { object, .. } => Some(object["metadata"]["annotations"].clone()),
            _ => None,
        });
        created.expect("a revision")["policies.portcullis.dev/served"] == "true"
    };
    assert!(!is_marked(&stage.decide()));
    stage.revision(&left, &[]);
    stage.tried(&left);
    assert_eq!(stage.actions(), ["a False Uninstalled at 2"], "nor is the mark added later");
}
