//! Revisions that are damaged, or that a newer release wrote.

use super::*;

const KIND: WebhookKind = WebhookKind::Validating;

/// A stage with a policy whose webhook was registered and proven, and whose only revision was then changed by `change`. With `labelled`, the
/// revision's labels name its group.
fn registered(policy: &P, labelled: bool, change: impl FnOnce(&mut Value)) -> Stage {
    let mut stage = Stage::new();
    stage.put(policy.clone().everywhere().condition("True", "Registered", 1));
    stage.revision(&self::policy("a"), &["served"]);
    stage.proven(&self::policy("a"));
    stage.decide();
    let label = labelled.then(|| (stage.group(&self::policy("a")), KIND));
    stage.revision_changed(policy, &["served"], label.as_ref(), change);
    stage
}

fn message(stage: &mut Stage) -> String {
    let actions = stage.decide();
    let mut messages = actions.iter().filter_map(|action| match action {
        Action::SetCondition { condition, .. } => Some(condition.message.clone()),
        _ => None,
    });
    messages.next_back().unwrap_or_default()
}

/// A policy with values that a newer release may have and this one does not know.
fn newer() -> P {
    policy("a").spec("mode", json!("quarantine")).spec("failurePolicy", json!("Perhaps"))
}

#[test]
fn z18_a_value_of_a_newer_release_takes_no_webhook_away() {
    let mut stage = registered(&newer(), true, |_| ());
    assert_eq!(stage.actions(), ["a True Registered at 1"], "it is called, and says what is wrong");
    let text = message(&mut stage);
    assert!(text.contains("revision a-1 of generation 1") && text.contains("upgrade"), "{text}");
    assert!(text.contains("mode") && text.contains("quarantine"), "{text}");
}

#[test]
fn z18_a_new_controller_keeps_what_it_cannot_make_and_follows_the_authority() {
    let mut stage = registered(&newer(), true, |_| ());
    stage.memory = Memory::new(stage.start);
    assert_eq!(stage.actions()[0], "prove with a-1");
    if let Ok(installation) = &mut stage.rules.installation {
        installation.ca_bundle = Arc::new("another".into());
    }
    let actions = stage.decide();
    let [Action::ChangeWebhook { desired, .. }, ..] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(
        desired.entries[0]["rules"],
        json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
                                                    "operations": ["CREATE"], "scope": "*"}])
    );
    assert_eq!(desired.entries[0]["clientConfig"]["caBundle"], "YW5vdGhlcg==");
}

#[test]
fn z18_a_webhook_that_is_deleted_meanwhile_comes_back_from_memory_or_is_told_to_be_lost() {
    let mut stage = registered(&newer(), true, |_| ());
    stage.decide();
    stage.world.webhooks.clear();
    assert_eq!(stage.actions()[0], "register again");
    stage.memory = Memory::new(stage.start);
    assert_eq!(stage.actions(), ["a False SpecInvalid at 1"]);
    let text = message(&mut stage);
    assert!(text.contains("does not exist, and its content is no longer known"), "{text}");
}

#[test]
fn z18_an_edit_of_a_kept_webhook_is_undone() {
    let mut stage = registered(&newer(), true, |_| ());
    stage.decide();
    if let Some(webhook) = stage.world.webhooks.values_mut().next() {
        webhook.entries = Arc::new(json!([]));
    }
    assert_eq!(stage.actions()[0], "change back");
}

#[test]
fn z18_of_damage_the_policy_itself_tells_the_match_part_and_the_labels_are_put_back() {
    let mut stage = registered(&policy("a"), false, |object| object["data"] = json!("damage"));
    let group = stage.group(&policy("a"));
    let mark = format!("mark a-1 match-group={group} webhook-kind=validating");
    assert_eq!(stage.actions(), [mark, "a True Registered at 1".to_owned()]);
    let text = message(&mut stage);
    assert!(
        text.contains("a-1 of generation 1 is damaged") && text.contains("delete controllerrevision a-1"),
        "{text}"
    );
    stage.world.webhooks.clear();
    assert_eq!(stage.actions()[0], "register again", "its match part is known");
}

#[test]
fn z18_without_any_word_of_its_group_no_webhook_that_may_be_its_own_goes() {
    let mut stage = registered(&newer(), false, |_| ());
    assert_eq!(stage.actions(), ["a False SpecInvalid at 1"]);
    // The webhook of a group that another revision names is deleted as usual.
    let other = policy("b").on("secrets");
    stage.put(other.clone().deleting());
    stage.revision(&other, &[]);
    stage.webhook(&other);
    assert!(stage.actions().contains(&"unregister".to_owned()));
}

#[test]
fn z18_while_the_newest_cannot_be_read_nothing_of_the_older_is_given_up() {
    let mut stage = Stage::new();
    let (old, new) = (policy("a"), newer().generation(2));
    stage.put(new.clone().everywhere());
    stage.revision(&old, &["served"]);
    stage.proven(&old);
    stage.revision(&new, &[]);
    let actions = stage.actions();
    assert!(!actions.iter().any(|action| action.contains("unregister") || action.contains("withdrawn")), "{actions:?}");
}

#[test]
fn z18_an_older_one_that_cannot_be_read_leaves_when_the_newest_is_called() {
    for labelled in [true, false] {
        let mut stage = Stage::new();
        let (old, new) = (policy("a"), policy("a").generation(2).on("secrets"));
        stage.put(new.clone().everywhere().condition("True", "Registered", 1));
        let label = labelled.then(|| (stage.group(&old), KIND));
        stage.revision(&old, &["served"]);
        stage.proven(&old);
        stage.revision_changed(&old, &["served"], label.as_ref(), |object| object["data"]["spec"] = json!(7));
        stage.revision(&new, &[]);
        stage.tried(&new);
        let actions = stage.actions();
        assert!(
            !actions.iter().any(|action| action.contains("unregister") || action.contains("withdrawn")),
            "{actions:?}"
        );
        stage.proven(&new);
        let actions = stage.actions();
        // Without labels it is not known which webhook the old revision had, until the revision is withdrawn.
        let expected = if labelled { "unregister" } else { "mark a-1 withdrawn=true" };
        assert!(actions.contains(&expected.to_owned()), "{actions:?}");
    }
}

#[test]
fn z18_labels_are_put_onto_revisions_of_an_older_release() {
    let mut stage = registered(&policy("a"), false, |_| ());
    let group = stage.group(&policy("a"));
    assert!(stage.actions().contains(&format!("mark a-1 match-group={group} webhook-kind=validating")));
    stage.revision_changed(&policy("a"), &["withdrawn"], None, |object| object["metadata"]["name"] = json!("a-0"));
    stage.put(policy("a").generation(2));
    stage.revision(&policy("a").generation(2), &[]);
    assert!(!stage.actions().iter().any(|action| action.contains("match-group")), "of those in force");
}

#[test]
fn z18_a_label_that_contradicts_its_content_moves_nobody_and_is_corrected() {
    let mut stage = registered(&policy("a"), true, |_| ());
    let (own, victim) = (stage.group(&policy("a")), policy("b").on("secrets"));
    stage.put(victim.clone().everywhere().condition("True", "Registered", 1));
    stage.revision(&victim, &[]);
    stage.proven(&victim);
    let forged = (stage.group(&victim), KIND);
    stage.revision_changed(&policy("a"), &["served"], Some(&forged), |_| ());
    let actions = stage.actions();
    assert!(actions.contains(&format!("mark a-1 match-group={own} webhook-kind=validating")), "{actions:?}");
    assert!(!actions.contains(&"unregister".to_owned()), "{actions:?}");
}

/// A newer release made the group of a field that this one does not know.
#[test]
fn z18_after_a_downgrade_a_policy_is_called_in_the_old_group_until_the_other_is_proven() {
    let mut stage = Stage::new();
    let policy = policy("a").spec("novelty", json!(1));
    stage.put(policy.clone().everywhere().condition("True", "Registered", 1));
    let theirs = crate::world::Content {
        group: "0123456789abcdef".parse().expect("an id"),
        ..stage.content(&policy).expect("a content")
    };
    stage.webhook_of(&theirs, 10);
    stage.revision_changed(&policy, &["served"], Some(&(theirs.group.clone(), KIND)), |_| ());
    let actions = stage.actions();
    assert!(actions.contains(&"register".to_owned()) && !actions.contains(&"unregister".to_owned()), "{actions:?}");
    stage.webhook(&policy);
    let group = stage.group(&policy);
    stage.prove(group.clone());
    let actions = stage.actions();
    assert!(
        actions.contains(&"unregister".to_owned()) && !actions.iter().any(|action| action.starts_with("mark")),
        "{actions:?}"
    );
    stage.world.webhooks.retain(|(_, name), _| !name.ends_with(theirs.group.as_str()));
    stage.decide();
    stage.pass(5);
    assert!(stage.actions().contains(&format!("mark a-1 match-group={group} webhook-kind=validating")));
}

#[test]
fn z18_a_policy_with_damaged_revisions_can_be_deleted() {
    let mut stage = registered(&newer().deleting(), true, |_| ());
    stage.put(newer().deleting());
    assert_eq!(stage.actions(), ["unregister"]);
    stage.world.webhooks.clear();
    stage.decide();
    stage.pass(5);
    assert_eq!(stage.actions(), ["mark a-1 deleted=true"]);
}
