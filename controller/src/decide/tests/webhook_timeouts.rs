//! Timeouts of the webhooks of mutating policies, which are asked one after the other.

use super::*;

fn mutating(name: &str, seconds: u32) -> P {
    let seconds_at_least = json!(seconds.max(10));
    policy(name)
        .spec("mutating", json!(true))
        .spec("timeoutEvalSeconds", json!(seconds))
        .spec("timeoutSeconds", seconds_at_least)
}

/// A stage with these policies and their revisions, under a webhook that is proven.
fn enforced(policies: &[P]) -> Stage {
    let mut stage = Stage::new();
    for policy in policies {
        stage.put(policy.clone().everywhere().condition("True", "Registered", 1));
        stage.revision(policy, &["served"]);
    }
    stage.tried(&policies[0]);
    let action = stage.decide().into_iter().find_map(|action| match action {
        Action::CreateWebhook { desired, .. } => Some(desired),
        _ => None,
    });
    let seconds = action.expect("it is registered").entries[0]["timeoutSeconds"].as_u64().expect("a number");
    let content = stage.content(&policies[0]).expect("a content");
    stage.webhook_of(&content, u32::try_from(seconds).expect("few"));
    stage.prove(content.group);
    stage
}

fn wait(stage: &Stage) -> u64 {
    let webhook = stage.world.webhooks.values().next().expect("a webhook");
    webhook.entries[0]["timeoutSeconds"].as_u64().expect("a number")
}

fn created(actions: &[Action]) -> Option<&Value> {
    actions.iter().find_map(|action| match action {
        Action::CreateRevision { object, .. } => Some(object),
        _ => None,
    })
}

#[test]
fn z03_a_webhook_waits_for_the_evaluations_of_all_its_members() {
    let stage = enforced(&[mutating("a", 10), mutating("b", 2), mutating("c", 2), mutating("d", 2)]);
    assert_eq!(wait(&stage), 17);
}

#[test]
fn z03_nobody_joins_before_the_webhook_waits_for_it_too() {
    let mut stage = enforced(&[mutating("a", 10), mutating("b", 2)]);
    assert_eq!(wait(&stage), 13);
    stage.put(mutating("new", 5));
    assert_eq!(stage.actions()[..1], ["change"]);
    assert!(created(&stage.decide()).is_none(), "its revision would make replicas ask it");
    let content = stage.content(&mutating("a", 10)).expect("a content");
    stage.webhook_of(&content, 18);
    assert!(created(&stage.decide()).is_none(), "API servers may not know it yet");
    stage.prove(content.group.clone());
    let actions = stage.decide();
    let object = created(&actions).expect("a revision");
    assert_eq!(object["metadata"]["labels"]["policies.portcullis.dev/match-group"], content.group.as_str());
    assert!(object["data"].get("shard").is_none());
}

#[test]
fn z03_an_edit_that_takes_no_more_time_waits_for_nothing() {
    let mut stage = enforced(&[mutating("a", 10), mutating("b", 2)]);
    // As after a restart, when no proof is remembered.
    stage.memory = Memory::new(stage.start);
    stage.put(mutating("a", 10).spec("suspend", json!(true)).generation(2));
    assert!(created(&stage.decide()).is_some());
    stage.put(mutating("a", 12).generation(3));
    assert!(created(&stage.decide()).is_none());
}

#[test]
fn z03_nobody_waits_for_what_only_somebody_else_can_mend() {
    let mut stage = enforced(&[mutating("a", 10)]);
    stage.put(mutating("new", 5));
    let group = stage.group(&mutating("a", 10));
    let forbidden = ConditionValue { status: Truth::Unknown, reason: "Forbidden", message: "no".into() };
    stage.memory.groups.entry(group).or_default().refused = Some(forbidden);
    assert!(created(&stage.decide()).is_some());
}

#[test]
fn z03_who_does_not_fit_gets_a_webhook_of_its_own_and_nobody_loses_a_place() {
    let mut stage = enforced(&[mutating("a", 20), mutating("z", 5)]);
    // Its uid comes before the others', but does not entitle it to their place.
    let newcomer = mutating("0", 10);
    stage.put(newcomer.clone());
    let actions = stage.decide();
    let object = created(&actions).expect("a revision at once").clone();
    assert_eq!(object["data"]["shard"], 1);
    let own = stage.content(&newcomer).expect("a content").in_shard(1);
    assert_eq!(object["metadata"]["labels"]["policies.portcullis.dev/match-group"], own.group.as_str());
    assert!(!actions.iter().any(|action| short(action) == "change"), "{actions:?}");
    let label = (own.group.clone(), WebhookKind::Mutating);
    stage.revision_changed(&newcomer, &[], Some(&label), |revision| revision["data"]["shard"] = json!(1));
    stage.put(newcomer.clone().everywhere());
    stage.memory.groups.entry(own.group.clone()).or_default().tried = Some(Ok(()));
    let actions = stage.decide();
    let registered = actions.iter().find_map(|action| match action {
        Action::CreateWebhook { desired, .. } => Some(desired),
        _ => None,
    });
    let registered = registered.expect("a webhook of its own");
    assert!(registered.name.ends_with(own.group.as_str()) && registered.entries[0]["timeoutSeconds"] == 11);
}

#[test]
fn z03_a_place_that_was_given_is_kept_when_others_come_before_the_revision_is_there() {
    let mut stage = enforced(&[mutating("m", 20)]);
    stage.put(mutating("z", 9));
    let shard = |stage: &mut Stage, name: &str| stage.memory.placed.get(&(format!("uid-{name}"), 1)).copied();
    stage.decide();
    assert_eq!(shard(&mut stage, "z"), Some(0));
    stage.put(mutating("a", 9));
    stage.decide();
    assert_eq!((shard(&mut stage, "z"), shard(&mut stage, "a")), (Some(0), Some(1)));
}

#[test]
fn z03_an_edit_stays_where_it_fits_and_moves_where_it_does_not() {
    let edited = |seconds| mutating("a", seconds).generation(2);
    let mut stage = enforced(&[mutating("a", 10), mutating("b", 15)]);
    stage.put(edited(12));
    stage.decide();
    assert_eq!(stage.memory.placed.values().copied().collect::<Vec<_>>(), [0]);
    let mut stage = enforced(&[mutating("a", 10), mutating("b", 15)]);
    stage.put(edited(20));
    let actions = stage.decide();
    assert_eq!(created(&actions).expect("a revision")["data"]["shard"], 1);
    assert!(!actions.iter().any(|action| short(action) == "unregister"));
}

#[test]
fn z03_an_older_generation_that_may_serve_keeps_its_time() {
    let mut stage = enforced(&[mutating("a", 20), mutating("b", 2)]);
    let edited = mutating("a", 2).generation(2);
    stage.put(edited.clone().everywhere().condition("True", "Registered", 2));
    stage.revision(&mutating("a", 20), &["served", "withdrawn"]);
    stage.revision(&edited, &[]);
    assert!(!stage.actions().iter().any(|action| action.starts_with("change")));
    stage.revision(&edited, &["served"]);
    assert!(stage.actions().iter().any(|action| action.starts_with("change")), "now it is not needed");
}

#[test]
fn z03_a_group_that_was_too_full_before_keeps_its_members_and_says_so() {
    let members: Vec<P> = (0..20).map(|number| mutating(&format!("p{number:02}"), 2)).collect();
    let mut stage = enforced(&members);
    assert_eq!(wait(&stage), 30);
    stage.put(members[3].clone().everywhere().condition("False", "WaitingForReplicas", 1));
    let actions = stage.decide();
    let said = actions.iter().find_map(|action| match action {
        Action::SetCondition { policy, condition, .. } if policy.name == "p03" => Some(condition),
        _ => None,
    });
    let said = said.expect("a condition");
    assert!(
        said.status == Truth::True && said.message.contains("20 mutating policies may take 40 s"),
        "{}",
        said.message
    );
}
