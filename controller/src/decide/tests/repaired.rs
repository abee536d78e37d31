//! Events about webhooks that were repaired.

use super::*;

#[test]
fn a_repair_is_known_at_once_and_its_event_is_written_afterwards_until_that_works() {
    let mut stage = Stage::new();
    stage.put(policy("a").everywhere().condition("True", "Registered", 1));
    stage.revision(&policy("a"), &["served"]);
    stage.proven(&policy("a"));
    stage.world.webhooks.values_mut().for_each(|webhook| webhook.entries = Arc::new(json!([])));
    let change = stage.decide();
    assert_eq!(short(&change[0]), "change back");
    assert_eq!(stage.write_webhooks(), 1);
    stage.memory.succeeded(&change[0]);
    let actions = stage.decide();
    let told = "tell a WebhookRepaired";
    assert_eq!(actions.iter().map(short).collect::<Vec<_>>(), ["prove with a-1", told]);
    policies::answer(&mut stage, &actions[1..], crate::failed::Cause::Other);
    assert!(stage.actions().contains(&told.to_owned()), "it is tried again");
    stage.memory.succeeded(&actions[1]);
    assert_eq!(stage.actions(), ["prove with a-1"]);
}

#[test]
fn nothing_is_told_of_a_group_that_is_gone() {
    let mut stage = Stage::new();
    stage.put(policy("a").everywhere().condition("True", "Registered", 1));
    stage.revision(&policy("a"), &["served"]);
    stage.proven(&policy("a"));
    stage.world.webhooks.clear();
    let register = stage.decide();
    assert_eq!(short(&register[0]), "register again");
    stage.memory.succeeded(&register[0]);
    assert!(stage.actions().contains(&"tell a WebhookRepaired".to_owned()));
    stage.world.revisions.clear();
    stage.world.policies.clear();
    assert_eq!(stage.actions(), NOTHING);
}
