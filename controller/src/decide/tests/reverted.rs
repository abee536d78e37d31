//! Webhooks that something else changes again after each write.

use base64::Engine as _;

use super::*;

/// What an admission plugin does, as AKS has one.
fn add_expression(object: &mut Value) {
    let expression = json!({"key": "control-plane", "operator": "NotIn", "values": ["true"]});
    let expressions = &mut object["webhooks"][0]["namespaceSelector"]["matchExpressions"];
    expressions.as_array_mut().expect("expressions").push(expression);
}

/// Lets the plugin change each write for 31 s.
fn changed_for_long(stage: &mut Stage, plugin: impl Fn(&mut Value) + Copy) {
    for _ in 0..31 {
        assert!(stage.write_webhooks_through(plugin) > 0);
        stage.pass(1);
    }
}

fn registered() -> Stage {
    let mut stage = Stage::new();
    stage.put(policy("a").everywhere().condition("True", "Registered", 1));
    stage.revision(&policy("a"), &["served"]);
    stage.proven(&policy("a"));
    assert_eq!(stage.actions(), ["a True Registered at 1"]);
    stage
}

fn message(stage: &mut Stage) -> String {
    policies::said(&stage.decide()).pop().expect("a condition").1
}

#[test]
fn repeated_changes_are_reported_after_a_while() {
    let mut stage = Stage::new();
    stage.put(policy("a").everywhere());
    stage.revision(&policy("a"), &["served"]);
    stage.tried(&policy("a"));
    for _ in 0..30 {
        assert_eq!(stage.write_webhooks_through(add_expression), 1);
        assert_eq!(stage.actions(), ["change back"]);
        stage.pass(1);
    }
    assert_eq!(stage.actions(), ["change back", "a False Unknown at 1"]);
    let said = message(&mut stage);
    let name = crate::world::webhook_name("default", &stage.group(&policy("a")));
    assert!(said.starts_with(&format!("something else changes webhook configuration {name} again")), "{said}");
    assert!(said.contains("metadata.managedFields") && said.contains("docs/operations.md"), "{said}");

    // The plugin leaves it alone from now on.
    stage.write_webhooks();
    assert_eq!(stage.actions(), ["prove with a-1", "a False Unknown at 1"]);
    stage.prove(stage.group(&policy("a")));
    assert_eq!(stage.actions(), ["a False Unknown at 1"], "it may still be reverted");
    stage.pass(30);
    assert_eq!(stage.actions(), ["a True Registered at 1"]);
}

#[test]
fn a_webhook_that_is_right_only_briefly_is_reported_too() {
    let mut stage = registered();
    for _ in 0..4 {
        stage.world.webhooks.values_mut().for_each(|webhook| webhook.entries = Arc::new(json!([])));
        assert_eq!(stage.actions(), ["change back"]);
        stage.write_webhooks();
        assert_eq!(stage.actions(), ["prove with a-1"]);
        stage.prove(stage.group(&policy("a")));
        assert_eq!(stage.actions(), ["a True Registered at 1"]);
        stage.pass(8);
    }
    assert_eq!(stage.actions(), ["a False Unknown at 1"]);
    stage.pass(30);
    assert_eq!(stage.actions(), ["a True Registered at 1"], "it is left alone now");
}

/// As an operator does that restores what it has installed as soon as somebody changes it.
#[test]
fn the_condition_does_not_change_with_each_write_whatever_is_reverted() {
    let authority = || rcgen::generate_simple_self_signed(["a.example".to_owned()]).expect("a certificate").cert.pem();
    let mut stage = registered();
    if let Ok(installation) = &mut stage.rules.installation {
        installation.ca_bundle = Arc::new(authority());
    }
    stage.write_webhooks();
    stage.prove(stage.group(&policy("a")));
    let foreign = base64::engine::general_purpose::STANDARD.encode(authority());
    let mut said = Vec::new();
    for _ in 0..60 {
        stage.write_webhooks();
        said.extend(policies::said(&stage.decide()));
        for webhook in stage.world.webhooks.values_mut() {
            let mut entries = Value::clone(&webhook.entries);
            entries[0]["clientConfig"]["caBundle"] = json!(foreign);
            webhook.entries = Arc::new(entries);
        }
        said.extend(policies::said(&stage.decide()));
        stage.pass(1);
    }
    said.dedup();
    assert!(said.len() <= 3, "{said:?}");
    assert!(said.last().is_some_and(|(short, _)| short == "a False Unknown at 1"), "{said:?}");
}

#[test]
fn single_edits_and_our_own_changes_are_not_reported() {
    let mut stage = registered();
    // One edit, and the API server does not let us repair it.
    stage.world.webhooks.values_mut().for_each(|webhook| webhook.entries = Arc::new(json!([])));
    for _ in 0..40 {
        assert_eq!(stage.actions(), ["change back"]);
        stage.pass(1);
    }
    stage.write_webhooks();
    stage.prove(stage.group(&policy("a")));
    assert_eq!(stage.actions(), ["a True Registered at 1"]);
    // Other authorities, which nobody proves again.
    for number in 0..40 {
        if let Ok(installation) = &mut stage.rules.installation {
            installation.ca_bundle = Arc::new(number.to_string());
        }
        assert_eq!(stage.actions(), ["change"]);
        stage.write_webhooks();
        assert_eq!(stage.actions()[0], "prove with a-1");
        stage.pass(1);
    }
    assert!(stage.memory.groups.values().all(|group| group.reverted.is_none()));
}

#[test]
fn z03_a_webhook_that_is_never_right_holds_up_no_policy_once_it_waits_long_enough() {
    let mutating = |name: &str| policy(name).spec("mutating", json!(true)).spec("timeoutEvalSeconds", json!(10));
    let stage_of = || {
        let mut stage = Stage::new();
        stage.put(mutating("a").everywhere());
        stage.revision(&mutating("a"), &["served"]);
        stage.tried(&mutating("a"));
        changed_for_long(&mut stage, add_expression);
        stage.put(mutating("b"));
        stage
    };
    let is_created = |stage: &mut Stage| stage.actions().contains(&"revision 1".to_owned());
    let mut stage = stage_of();
    assert!(!is_created(&mut stage), "API servers do not wait for it yet");
    stage.write_webhooks_through(add_expression);
    assert!(is_created(&mut stage));

    // If the plugin changes the timeout itself, the status says so.
    let mut stage = stage_of();
    stage.write_webhooks_through(|object| object["webhooks"][0]["timeoutSeconds"] = json!(11));
    let actions = stage.actions();
    assert!(!actions.contains(&"revision 1".to_owned()), "{actions:?}");
    assert!(actions.contains(&"b False Unknown at 1".to_owned()), "{actions:?}");
    // Our own write, which it has not reverted yet, is not what API servers will have.
    stage.write_webhooks();
    let actions = stage.actions();
    assert!(!actions.contains(&"revision 1".to_owned()), "{actions:?}");
    assert!(actions.contains(&"b False Unknown at 1".to_owned()), "{actions:?}");
}
