//! After a restore of etcd: every object is as it was earlier, with a lower resource version, and those that came later are gone.

use super::*;

/// A world that has seen generation 5, whose webhook has replaced that of generation 4, and the two generations.
fn before() -> (Stage, P, P) {
    let mut stage = Stage::new();
    stage.version = 479;
    let (old, new) = (policy("a").generation(4), policy("a").generation(5).on("secrets"));
    stage.revision(&old, &["served", "withdrawn"]);
    stage.put(new.clone().everywhere().condition("True", "Registered", 5));
    stage.revision(&new, &["served"]);
    stage.proven(&new);
    assert_eq!(stage.actions(), ["a True Registered at 5"], "only the message is another");
    // Another controller leads meanwhile.
    stage.memory = Memory::new(stage.start + stage.elapsed);
    (stage, old, new)
}

/// Lists a collection in which these are all the objects.
fn list(stage: &mut Stage, collection: Collection, objects: impl FnOnce(&mut Stage), uids: &[&str]) {
    stage.world.take(Change::Listing(collection));
    objects(stage);
    stage.world.take(Change::Listed(collection, uids.iter().map(|uid| (*uid).to_owned()).collect()));
}

#[test]
fn no_webhook_in_use_is_deleted_although_the_controller_knew_a_later_generation() {
    let (mut stage, old, new) = before();
    (stage.version, stage.lists) = (149, true);
    let name = crate::world::webhook_name("default", &stage.group(&old));
    let webhooks = Collection::Webhooks(WebhookKind::Validating);
    list(&mut stage, webhooks, |stage| drop(stage.webhook(&old)), &[&format!("uid-of-{name}")]);
    for _ in 0..2 {
        assert_eq!(stage.actions(), ["register again"], "the other lists may take a while");
        stage.pass(29);
    }
    list(&mut stage, Collection::Revisions, |stage| stage.revision(&old, &["served"]), &["uid-of-a-4"]);
    let configured = old.clone().everywhere().condition("True", "Registered", 4);
    list(&mut stage, POLICIES, |stage| stage.put(configured), &["uid-a"]);
    assert_eq!(stage.actions(), ["prove with a-4"], "nothing for generation 5, and no webhook goes");
    assert!(stage.memory.strays.is_empty() && !stage.memory.groups.contains_key(&stage.group(&new)));
}
