//! Webhooks of match groups.

use super::*;

#[test]
fn a_policy_that_moves_is_called_in_both_groups_until_the_new_one_is_proven() {
    let mut stage = Stage::new();
    let (old, new) = (policy("a"), policy("a").generation(2).on("secrets"));
    stage.put(new.clone().condition("True", "Registered", 1));
    stage.revision(&old, &["served"]);
    stage.revision(&new, &[]);
    stage.proven(&old);
    stage.tried(&new);
    assert_eq!(stage.actions(), ["a False WaitingForReplicas at 2"]);
    stage.put(new.clone().everywhere().condition("False", "WaitingForReplicas", 2));
    assert_eq!(stage.actions()[..1], ["register"]);
    stage.webhook(&new);
    assert_eq!(stage.actions(), ["prove with a-2"], "the old one stays");
    stage.proven(&new);
    assert_eq!(stage.actions(), ["unregister", "a True Registered at 2"]);
    let name = crate::world::webhook_name("default", &stage.group(&old));
    stage.put(new.clone().everywhere().condition("True", "Registered", 2));
    stage.unregistered(&name);
    assert!(!stage.actions().iter().any(|action| action.starts_with("mark")), "API servers may call it still");
    stage.pass(5);
    assert!(stage.actions().contains(&"mark a-1 withdrawn=true".to_owned()));
}

#[test]
fn a_webhook_that_a_policy_has_left_stays_away_while_no_replica_answers() {
    let mut stage = Stage::new();
    let (old, new) = (policy("a"), policy("a").generation(2).on("secrets"));
    stage.put(new.clone().everywhere().condition("True", "Registered", 2));
    stage.revision(&old, &["served"]);
    stage.revision(&new, &["served"]);
    stage.proven(&old);
    stage.proven(&new);
    assert_eq!(stage.actions(), ["unregister", "a True Registered at 2"]);
    let name = crate::world::webhook_name("default", &stage.group(&old));
    stage.unregistered(&name);
    // The replicas stop before the pause is over, after which the older revision is withdrawn.
    stage.put(new.status("replicaCounts", json!({"expected": 2})).condition("True", "Registered", 2));
    assert!(!stage.actions().iter().any(|action| action.starts_with("register")));
}

#[test]
fn a_policy_that_goes_back_to_a_group_whose_webhook_we_deleted_accuses_nobody() {
    let mut stage = Stage::new();
    let (old, new) = (policy("a"), policy("a").generation(2).on("secrets"));
    stage.put(new.clone().everywhere().condition("True", "Registered", 2));
    stage.revision(&old, &["served"]);
    stage.revision(&new, &["served"]);
    stage.proven(&old);
    stage.proven(&new);
    assert_eq!(stage.actions(), ["unregister", "a True Registered at 2"]);
    let name = crate::world::webhook_name("default", &stage.group(&old));
    let late = stage.world.webhooks[&(WebhookKind::Validating, name.clone())].clone();
    stage.unregistered(&name);
    // The watch reports an earlier change of the webhook after the answer to its deletion.
    stage.world.webhooks.insert((WebhookKind::Validating, name.clone()), late);
    let back = policy("a").generation(3).everywhere();
    stage.put(back.clone().condition("True", "Registered", 2));
    stage.revision(&back, &[]);
    stage.tried(&back);
    assert!(stage.actions().contains(&"register".to_owned()));
    stage.unregistered(&name);
    assert!(stage.actions().contains(&"register".to_owned()));
}

#[test]
fn nobody_leaves_a_group_before_every_replica_knows_the_other() {
    let mut stage = Stage::new();
    let (old, new) = (policy("a"), policy("a").generation(2).on("secrets"));
    stage.revision(&old, &["served"]);
    stage.revision(&new, &[]);
    // The new group is already registered and proven, for another policy.
    stage.put(policy("b").on("secrets").everywhere());
    stage.revision(&policy("b").on("secrets"), &[]);
    let previous = json!([{"pod": "x", "podUID": "u", "state": "Previous", "generation": 1}]);
    let lagging = new.clone().everywhere().status("replicas", previous);
    stage.put(lagging.status("replicaCounts", json!({"expected": 1, "previous": 1})));
    stage.proven(&old);
    stage.proven(&new);
    assert!(!stage.actions().contains(&"unregister".to_owned()));
    stage.put(new.everywhere());
    assert!(stage.actions().contains(&"unregister".to_owned()));
}

#[test]
fn a_webhook_that_somebody_deletes_comes_back_without_waiting() {
    let mut stage = Stage::new();
    stage.put(policy("a").everywhere());
    stage.revision(&policy("a"), &[]);
    stage.proven(&policy("a"));
    stage.decide();
    stage.put(policy("a").status("replicaCounts", json!({"expected": 2})));
    stage.world.webhooks.clear();
    assert_eq!(stage.actions(), ["register again"], "replicas that fail open no door");
}

#[test]
fn who_joins_a_group_whose_webhook_we_removed_waits_for_its_own_replicas() {
    let mut stage = Stage::new();
    stage.put(policy("a").everywhere());
    stage.revision(&policy("a"), &[]);
    stage.proven(&policy("a"));
    stage.decide();
    stage.put(policy("a").deleting());
    assert_eq!(stage.actions(), ["unregister"]);
    let names: Vec<_> = stage.world.webhooks.keys().map(|(_, name)| name.clone()).collect();
    stage.unregistered(&names[0]);
    stage.put(policy("b"));
    stage.revision(&policy("b"), &[]);
    assert!(!stage.actions().iter().any(|action| action.starts_with("register")));
    stage.put(policy("b").everywhere());
    stage.tried(&policy("b"));
    assert!(stage.actions().contains(&"register".to_owned()));
}

#[test]
fn a_new_controller_knows_from_the_status_what_was_registered() {
    let mut stage = Stage::new();
    stage.put(policy("a").condition("True", "Registered", 1));
    stage.revision(&policy("a"), &[]);
    assert_eq!(stage.actions(), ["register again"], "and the status says so to the next one");
}

/// What a new leader sees of a policy whose newest generation does not load, and whose webhook was deleted while no controller ran. The generation
/// that serves had these rules, and has been withdrawn; one replica does not answer, and there is no authority yet.
fn serving_previous(old: P) -> (Stage, P) {
    let mut stage = Stage::new();
    let new = policy("a").generation(2).spec("module", json!("broken"));
    stage.put(new.clone().condition("True", "Registered", 2));
    stage.revision(&old, &["served", "withdrawn"]);
    stage.revision(&new, &[]);
    stage.memory = Memory::new(stage.start + stage.elapsed);
    stage.rules.installation = Err(ConditionValue::not_configured("CABundleInvalid", "none yet"));
    (stage, new)
}

#[test]
fn a_new_controller_that_does_not_know_the_authority_yet_keeps_in_the_status_what_was_registered() {
    for old in [policy("a"), policy("a").on("secrets")] {
        let (mut stage, _) = serving_previous(old);
        assert_eq!(stage.actions(), NOTHING);
        stage.rules.installation = rules().installation;
        assert_eq!(stage.actions(), ["register again"]);
    }
}

#[test]
fn an_authority_that_is_missing_for_long_is_told_and_what_was_registered_is_not_forgotten() {
    for old in [policy("a"), policy("a").on("secrets")] {
        let (mut stage, new) = serving_previous(old);
        assert_eq!(stage.actions(), NOTHING);
        stage.pass(30);
        assert_eq!(stage.actions(), ["a False CABundleInvalid at 2"]);
        stage.put(new.condition("False", "CABundleInvalid", 2));
        stage.rules.installation = rules().installation;
        assert_eq!(stage.actions(), ["register again"]);
    }
}

#[test]
fn a_webhook_that_cannot_be_registered_for_long_is_told_whatever_the_cause() {
    let again = serving_previous(policy("a")).0;
    let mut first = Stage::new();
    first.put(policy("a").everywhere());
    first.revision(&policy("a"), &[]);
    first.tried(&policy("a"));
    for (mut stage, register, generation) in [(again, "register again", 2), (first, "register", 1)] {
        stage.rules.installation = rules().installation;
        for seconds in [29, 1] {
            let actions = stage.decide();
            assert_eq!(actions.iter().map(short).collect::<Vec<_>>(), [register]);
            policies::answer(&mut stage, &actions, crate::failed::Cause::Other);
            stage.pass(seconds);
        }
        let told = format!("a False Unknown at {generation}");
        assert_eq!(stage.actions(), [register, &told]);
        let (_, message) = policies::said(&stage.decide()).remove(0);
        assert!(message.ends_with(" is missing and cannot be registered: its words"), "{message}");
        assert_eq!(stage.write_webhooks(), 1);
        stage.decide();
        assert!(stage.memory.groups.values().all(|group| group.failing.is_none()));
    }
}

#[test]
fn a_withdrawn_generation_that_served_tells_that_its_policy_was_registered() {
    let told = |old: P, new: P| {
        let mut stage = Stage::new();
        stage.put(new.clone());
        stage.revision(&old, &["served", "withdrawn"]);
        stage.revision(&new, &[]);
        stage.tried(&new);
        stage.actions().iter().any(|action| action == "register")
    };
    let new = policy("a").generation(2).spec("module", json!("broken")).condition("False", "CABundleInvalid", 2);
    assert!(told(policy("a"), new.clone()));
    assert!(!told(policy("a").on("secrets"), new.clone()), "it was called in another group");
    assert!(!told(policy("a"), new.clone().spec("suspend", json!(true))));
    assert!(!told(policy("a"), new.condition("False", "Uninstalled", 2)));
}

#[test]
fn a_policy_that_goes_back_to_a_group_which_it_has_left_waits_for_its_replicas() {
    let mut stage = Stage::new();
    let (elsewhere, back) = (policy("a").generation(2).on("secrets"), policy("a").generation(3));
    stage.put(back.clone().condition("True", "Registered", 2));
    stage.revision(&policy("a"), &["served", "withdrawn"]);
    // No replica could load it, but it was registered.
    stage.revision(&elsewhere, &[]);
    stage.proven(&elsewhere);
    stage.revision(&back, &[]);
    stage.tried(&back);
    assert_eq!(stage.actions(), ["a False WaitingForReplicas at 3"]);
}

/// What a new controller sees of a policy that was edited under the previous leader, and its two generations. The condition is that of the old
/// one, and all replicas serve the new one.
fn edited() -> (Stage, [P; 2]) {
    let mut stage = Stage::new();
    let (old, new) = (policy("a"), policy("a").generation(2).on("secrets"));
    stage.put(new.clone().everywhere().condition("True", "Registered", 1));
    stage.revision(&old, &["served"]);
    stage.revision(&new, &["served"]);
    (stage, [old, new])
}

/// The previous leader deleted the webhook of the old generation, and had not written the condition yet.
#[test]
fn a_new_controller_accuses_nobody_of_deleting_the_webhook_that_an_edited_policy_has_left() {
    let (mut stage, [_, new]) = edited();
    stage.webhook(&new);
    let actions = stage.actions();
    assert!(actions.contains(&"register".to_owned()), "not proven yet, so both are called: {actions:?}");
}

/// The previous leader had not registered the webhook of the new generation, which all replicas have come to serve since then.
#[test]
fn a_new_controller_accuses_nobody_of_deleting_the_webhook_that_an_edited_policy_waits_for() {
    let (mut stage, [old, _]) = edited();
    stage.webhook(&old);
    let actions = stage.actions();
    assert!(actions.contains(&"register".to_owned()), "{actions:?}");
}

#[test]
fn a_policy_that_is_resumed_accuses_nobody() {
    let mut stage = Stage::new();
    let suspended = policy("a").spec("suspend", json!(true));
    let resumed = policy("a").generation(2);
    stage.put(resumed.clone().everywhere().condition("False", "Suspended", 1));
    stage.revision(&suspended, &["served"]);
    stage.revision(&resumed, &[]);
    stage.tried(&resumed);
    assert!(stage.actions().contains(&"register".to_owned()));
}

#[test]
fn an_edit_is_undone_and_told_and_a_change_of_our_own_is_not() {
    let mut stage = Stage::new();
    stage.put(policy("a").everywhere().condition("True", "Registered", 1));
    stage.revision(&policy("a"), &[]);
    stage.proven(&policy("a"));
    stage.decide();
    let right = stage.world.webhooks.clone();
    if let Some(webhook) = stage.world.webhooks.values_mut().next() {
        webhook.entries = Arc::new(json!([]));
    }
    assert_eq!(stage.actions(), ["change back"]);
    stage.world.webhooks = right;
    stage.decide();
    if let Ok(installation) = &mut stage.rules.installation {
        installation.ca_bundle = Arc::new("another".into());
    }
    assert_eq!(stage.actions()[0], "change");
}

#[test]
fn what_we_wrote_is_not_an_edit_even_if_something_else_is_desired_by_then() {
    let mut stage = Stage::new();
    stage.rules.check_timeout = Some(10);
    stage.put(policy("a").everywhere().condition("True", "Registered", 1));
    stage.revision(&policy("a"), &[]);
    stage.proven(&policy("a"));
    let bundle = |stage: &mut Stage, text: &str| {
        if let Ok(installation) = &mut stage.rules.installation {
            installation.ca_bundle = Arc::new(text.into());
        }
        stage.actions()
    };
    assert_eq!(stage.write_webhooks(), 1);
    assert_eq!(bundle(&mut stage, "second"), ["change", "change checks"]);
    assert_eq!(stage.write_webhooks(), 2);
    // No decision has seen the webhooks as they were desired.
    assert_eq!(bundle(&mut stage, "third"), ["change", "change checks"]);
    for webhook in stage.world.webhooks.values_mut() {
        webhook.entries = Arc::new(json!([]));
    }
    assert_eq!(stage.actions(), ["change back", "change checks back"]);
}

#[test]
fn what_an_admission_plugin_makes_of_a_webhook_is_an_edit() {
    let mut stage = Stage::new();
    stage.rules.check_timeout = Some(10);
    stage.put(policy("a").everywhere());
    stage.revision(&policy("a"), &["served"]);
    stage.tried(&policy("a"));
    assert_eq!(stage.actions(), ["register", "register checks"]);
    for _ in 0..2 {
        let writes = stage.write_webhooks_through(|object| object["webhooks"][0]["timeoutSeconds"] = json!(1));
        assert_eq!(writes, 2);
        assert_eq!(stage.actions(), ["change back", "change checks back"]);
    }
}

#[test]
fn another_key_of_paths_changes_a_webhook_that_stays_registered() {
    let mut stage = Stage::new();
    stage.put(policy("a").everywhere().condition("True", "Registered", 1));
    stage.revision(&policy("a"), &[]);
    stage.proven(&policy("a"));
    assert_eq!(stage.actions(), ["a True Registered at 1"]);
    if let Ok(installation) = &mut stage.rules.installation {
        installation.path_key = PathKey::Secret([7; 32]);
    }
    assert_eq!(stage.actions(), ["change"], "its condition stays, as the old path answers meanwhile");
}

#[test]
fn a_bundle_that_trusts_nobody_is_told() {
    let mut stage = Stage::new();
    let authority = || rcgen::generate_simple_self_signed(["a.example".to_owned()]).expect("a certificate").cert.pem();
    let (ours, theirs) = (authority(), authority());
    if let Ok(installation) = &mut stage.rules.installation {
        installation.ca_bundle = Arc::new(theirs);
    }
    stage.put(policy("a").everywhere().condition("True", "Registered", 1));
    stage.revision(&policy("a"), &[]);
    stage.proven(&policy("a"));
    if let Ok(installation) = &mut stage.rules.installation {
        installation.ca_bundle = Arc::new(ours);
    }
    assert_eq!(stage.actions(), ["change", "a False CABundleInvalid at 1"]);
}

#[test]
fn webhooks_of_unknown_groups_and_of_nobody_go() {
    let mut stage = Stage::new();
    stage.webhook(&policy("a"));
    assert_eq!(stage.actions(), NOTHING, "a watch may lag");
    stage.pass(29);
    assert_eq!(stage.actions(), NOTHING);
    stage.pass(1);
    assert_eq!(stage.actions(), ["unregister"]);
    if let Some(webhook) = stage.world.webhooks.values_mut().next() {
        webhook.labels.clear();
    }
    assert_eq!(stage.actions(), NOTHING, "not ours");
}

#[test]
fn a_copy_of_a_webhook_under_another_name_is_left_alone() {
    let mut stage = Stage::new();
    stage.put(policy("a").everywhere().condition("True", "Registered", 1));
    stage.revision(&policy("a"), &["served"]);
    stage.proven(&policy("a"));
    let name = crate::world::webhook_name("default", &stage.group(&policy("a")));
    let installation = stage.rules.installation.clone().expect("an installation");
    let content = stage.content(&policy("a")).expect("a content");
    let mut copy = crate::desired::desired(&installation, &content.group, &content.part, 10).object();
    for kind in [WebhookKind::Validating, WebhookKind::Mutating] {
        for name in [format!("{name}-copy"), "portcullis-default-copy".to_owned(), "copy".to_owned()] {
            copy["metadata"]["name"] = json!(name);
            copy["metadata"]["uid"] = json!(format!("uid-of-{name}"));
            stage.take(Collection::Webhooks(kind), copy.clone());
        }
    }
    assert_eq!(stage.actions(), ["a True Registered at 1"]);
}

#[test]
fn a_group_waits_as_long_as_its_most_patient_member() {
    let mut stage = Stage::new();
    let slow = policy("b").spec("timeoutSeconds", json!(25));
    stage.put(policy("a").everywhere());
    stage.put(slow.clone().everywhere());
    stage.revision(&policy("a"), &[]);
    stage.revision(&slow, &[]);
    stage.tried(&slow);
    let actions = stage.decide();
    let Action::CreateWebhook { desired, .. } = &actions[0] else { panic!("{actions:?}") };
    assert_eq!(desired.entries[0]["timeoutSeconds"], 25);
}

#[test]
fn a_revision_that_somebody_deletes_takes_no_webhook_away() {
    let mut stage = Stage::new();
    stage.put(policy("a").everywhere().condition("True", "Registered", 1));
    stage.revision(&policy("a"), &[]);
    stage.proven(&policy("a"));
    stage.world.revisions.clear();
    assert_eq!(stage.actions(), ["revision 1"]);
}

#[test]
fn before_authority_and_owner_are_known_nothing_is_registered() {
    let mut stage = Stage::new();
    stage.rules.installation = Err(ConditionValue::not_configured("CABundleInvalid", "none yet"));
    stage.put(policy("a").everywhere());
    stage.revision(&policy("a"), &[]);
    assert_eq!(stage.actions(), ["a False CABundleInvalid at 1"]);
}

#[test]
fn nobody_joins_a_group_of_another_match_part_that_has_the_same_id() {
    let mut stage = Stage::new();
    let (first, second) = (policy("first").on("services"), policy("second"));
    stage.put(first.clone());
    stage.revision(&first, &[]);
    // No two match parts with the same hash are known, so one is made up.
    let colliding = stage.group(&second);
    stage.world.revisions.values_mut().flat_map(|revisions| revisions.values_mut()).for_each(|revision| {
        revision.content.as_mut().expect("it can be read").group = colliding.clone();
    });
    stage.put(second);
    let actions = stage.actions();
    assert!(actions.contains(&"second False SpecInvalid at 1".to_owned()), "{actions:?}");
    assert!(!actions.contains(&"revision 1".to_owned()), "{actions:?}");
}

#[test]
fn the_order_of_the_words_in_a_rule_keeps_nobody_out_of_a_group() {
    let mut stage = Stage::new();
    let on = |name: &str, operations: &[&str]| {
        let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": operations});
        policy(name).spec("rules", json!([rule]))
    };
    let first = on("first", &["CREATE", "UPDATE"]);
    stage.put(first.clone());
    stage.revision(&first, &[]);
    stage.put(on("second", &["UPDATE", "CREATE"]));
    let actions = stage.actions();
    assert!(actions.contains(&"revision 1".to_owned()), "{actions:?}");
}

/// The revision that is made for a policy which waits for one.
fn planned(stage: &mut Stage) -> Value {
    let actions = stage.decide();
    let mut objects = actions.iter().filter_map(|action| match action {
        Action::CreateRevision { object, .. } => Some(object.clone()),
        _ => None,
    });
    let last = objects.next_back();
    last.unwrap_or_else(|| panic!("{actions:?}"))
}

#[test]
fn policies_of_different_selectors_and_conditions_share_a_webhook_where_evaluators_can_judge_them() {
    let mut stage = Stage::new();
    let plain = stage.content(&policy("plain")).expect("a content").sharing(true).group;
    let on = |app: &str| policy("a").spec("objectSelector", json!({"matchLabels": {"app": app}}));
    let conditions = |text: &str| policy("a").spec("matchConditions", json!([{"name": "c", "expression": text}]));
    let group_of = |object: &Value| object["metadata"]["labels"]["policies.portcullis.dev/match-group"].clone();
    let mut planned_for = |shares: bool, policy: P| {
        stage.rules.shares_webhooks = shares;
        stage.put(policy);
        planned(&mut stage)
    };
    let elsewhere = policy("a").on("services");
    for shared in [policy("a"), elsewhere, on("shop"), on("bank"), conditions("request.userInfo.username != 'me'")] {
        let object = planned_for(true, shared);
        assert_eq!((&object["data"]["shared"], group_of(&object)), (&json!(true), json!(plain.as_str())));
    }
    let unjudged = conditions("authorizer.group('').resource('pods').check('get').allowed()");
    let rule = |version: &str| json!({"apiGroups": [""], "apiVersions": [version], "resources": ["pods"], "operations": ["CREATE"]});
    let versions = policy("a").spec("rules", json!([rule("v1"), rule("v2")]));
    let mutating = on("shop").spec("mutating", json!(true));
    for (shares, alone) in [(false, on("shop")), (true, unjudged), (true, mutating), (true, versions)] {
        let object = planned_for(shares, alone);
        assert!(object["data"]["shared"].is_null() && group_of(&object) != json!(plain.as_str()), "{object}");
    }
}

#[test]
fn the_entries_of_a_webhook_are_in_memory_once() {
    let mut stage = Stage::new();
    stage.put(policy("a").everywhere());
    stage.revision(&policy("a"), &[]);
    stage.proven(&policy("a"));
    stage.memory.groups.values_mut().for_each(|group| (group.right, group.proven) = (None, None));
    let actions = stage.decide();
    let [Action::Prove { webhook, .. }] = &actions[..] else { panic!("{actions:?}") };
    let found = stage.world.webhooks.values().next().expect("a webhook");
    let right = stage.memory.groups.values().next().and_then(|group| group.right.as_ref()).expect("it is right");
    assert!(Arc::ptr_eq(&webhook.1, &found.entries) && Arc::ptr_eq(right, &found.entries));
}
