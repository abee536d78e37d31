//! Events about webhooks that were repaired.

use super::*;
use crate::failed::Cause;
use crate::memory::MAX_DUE_EVENTS;

const TOLD: &str = "tell a WebhookRepaired";

/// A policy whose webhook somebody else has emptied, and the change that repairs it, which was made.
fn repaired() -> (Stage, Action) {
    let mut stage = Stage::new();
    stage.put(policy("a").everywhere().condition("True", "Registered", 1));
    stage.revision(&policy("a"), &["served"]);
    stage.proven(&policy("a"));
    stage.world.webhooks.values_mut().for_each(|webhook| webhook.entries = Arc::new(json!([])));
    let change = stage.decide().into_iter().next().expect("a change");
    assert_eq!(short(&change), "change back");
    assert_eq!(stage.write_webhooks(), 1);
    stage.memory.succeeded(&change);
    (stage, change)
}

#[test]
fn a_repair_is_known_at_once_and_its_event_is_written_afterwards_until_that_works() {
    let (mut stage, _) = repaired();
    let actions = stage.decide();
    assert_eq!(actions.iter().map(short).collect::<Vec<_>>(), ["prove with a-1", TOLD]);
    for cause in [Cause::Other, Cause::Overtaken] {
        policies::answer(&mut stage, &actions[1..], cause);
        assert!(stage.actions().contains(&TOLD.to_owned()), "it is tried again");
    }
    stage.memory.succeeded(&actions[1]);
    assert_eq!(stage.actions(), ["prove with a-1"]);
}

#[test]
fn an_event_that_is_given_up_is_not_written_again() {
    let (mut stage, change) = repaired();
    let actions = stage.decide();
    let [_, Action::Warn(warning)] = &actions[..] else { panic!("{actions:?}") };
    stage.memory.gave_up(warning);
    assert_eq!(stage.actions(), ["prove with a-1"]);
    stage.memory.succeeded(&change);
    assert!(stage.actions().contains(&TOLD.to_owned()), "the next repair has its event");
}

#[test]
fn each_repair_has_an_event_although_the_one_before_is_not_written_yet() {
    let (mut stage, change) = repaired();
    stage.memory.succeeded(&change);
    let told = stage.decide().into_iter().find(|action| short(action) == TOLD).expect("an event");
    stage.memory.succeeded(&told);
    assert!(stage.actions().contains(&TOLD.to_owned()), "the second one has its event");
    stage.memory.succeeded(&told);
    assert_eq!(stage.actions(), ["prove with a-1"]);
    (0..=MAX_DUE_EVENTS).for_each(|_| stage.memory.succeeded(&change));
    (0..MAX_DUE_EVENTS).for_each(|_| stage.memory.succeeded(&told));
    assert_eq!(stage.actions(), ["prove with a-1"], "not more than these are kept");
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
    assert!(stage.actions().contains(&TOLD.to_owned()));
    stage.world.revisions.clear();
    stage.world.policies.clear();
    assert_eq!(stage.actions(), NOTHING);
}
