//! Decides what to do with a policy that is being deleted, and with revisions whose policy is gone.
//!
//! First its webhooks are deleted, unless other policies need them, followed by a pause in which API servers notice. Then replicas drop
//! the policy, then its revisions are deleted, and last its finalizer is removed. Before anything of a policy that no watch has reported is
//! deleted, an API server is asked whether it exists.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use portcullis_api::ConditionType;
use portcullis_api::revision::DELETED_ANNOTATION;

use super::condition;
use super::groups::Groups;
use super::revision;
use super::rules::{Decision, Rules};
use super::unknown::UNKNOWN_FOR;
use crate::action::{Action, Key};
use crate::memory::{ConditionValue, Memory, Obstacle};
use crate::world::{PolicyView, RevisionView, World, webhook_name};

/// How long a step may fail for a reason that may pass by itself before the policy says so.
const PATIENCE: Duration = Duration::from_secs(30);
/// How the message of a policy begins that says what holds up its deletion. It stands within the message of one that was uninstalled.
const HELD_UP: &str = "the policy is being deleted, and ";

pub(super) fn decide(world: &World, groups: &Groups<'_>, memory: &mut Memory, rules: &Rules, decision: &mut Decision) {
    let none = BTreeMap::new();
    for (uid, policy) in world.policies.iter().filter(|(_, policy)| policy.is_deleting && policy.is_held) {
        let revisions = world.revisions.get(uid).unwrap_or(&none);
        forget(uid, revisions, groups, memory, rules, decision);
        // The other finalizers must all be known when ours is removed, as they stay.
        if revisions.is_empty() && !policy.is_cut {
            decision.act(Action::Release(policy.reference.clone()));
        }
    }
    // It is not known, or somebody else has removed our finalizer while it is being deleted.
    let is_orphan = |uid: &str| world.policies.get(uid).is_none_or(|policy| policy.is_deleting && !policy.is_held);
    memory.orphans.retain(|uid, _| world.revisions.contains_key(uid) && is_orphan(uid));
    memory.gone.retain(|uid| world.revisions.contains_key(uid));
    for (uid, revisions) in world.revisions.iter().filter(|(uid, _)| is_orphan(uid)) {
        let since = *memory.orphans.entry(uid.clone()).or_insert(decision.now.instant);
        if !decision.has_passed(since, UNKNOWN_FOR) {
            continue;
        }
        match revisions.values().next() {
            Some(revision) if !world.policies.contains_key(uid) && !memory.gone.contains(uid) => {
                decision.act(Action::FindPolicy(revision.policy.clone()));
            }
            _ => forget(uid, revisions, groups, memory, rules, decision),
        }
    }
    memory.forgotten.retain(|uid, _| world.revisions.contains_key(uid));
}

/// Writes to policies that are being deleted what holds that up, and that it is over. This comes after all removals were decided, so that a failure
/// of one that is no longer to be done is forgotten before.
pub(super) fn tell(world: &World, memory: &mut Memory, rules: &Rules, decision: &mut Decision) {
    let removals: BTreeSet<_> = decision.actions.iter().filter(|one| one.is_removal()).map(Action::key).collect();
    memory.obstacles.retain(|object, _| removals.contains(object));
    for (uid, policy) in world.policies.iter().filter(|(_, policy)| policy.is_deleting) {
        let objects = objects(uid, world, rules);
        let value = match objects.iter().find_map(|object| memory.obstacles.get(object)) {
            Some(obstacle) => held_up(obstacle, decision).filter(|_| policy.is_held),
            // Whether this one works is not known yet.
            None if objects.iter().any(|object| removals.contains(object)) => None,
            None => no_longer_held_up(policy, memory, rules, decision),
        };
        decision.actions.extend(value.and_then(|value| condition::write(world, policy, value, decision.now)));
    }
}

/// The objects for whose removal the deletion of a policy waits, or for that of its finalizer.
fn objects(uid: &str, world: &World, rules: &Rules) -> Vec<Key> {
    let mut objects = vec![Key::Policy(uid.to_owned())];
    for revision in world.revisions.get(uid).into_iter().flat_map(BTreeMap::values) {
        objects.push(Key::Revision(revision.name.clone()));
        let groups = revision.groups().filter(|_| revision.is_in_force());
        objects.extend(groups.map(|group| Key::Webhook(webhook_name(&rules.policy_server, group))));
    }
    objects
}

/// What a policy says whose deletion this holds up; `None` as long as it may pass by itself.
fn held_up(obstacle: &Obstacle, decision: &mut Decision) -> Option<ConditionValue> {
    let reason = obstacle.reason.or_else(|| decision.has_passed(obstacle.since, PATIENCE).then_some("Unknown"))?;
    let message = format!(
        "{HELD_UP}{}; the controller tries again, so the deletion goes on as soon as this works",
        obstacle.message
    );
    Some(ConditionValue::not_configured(reason, message))
}

/// What a policy says that still names something which holds up its deletion, although nothing of ours does: finalizers of others may keep it
/// for long. `None` if it names nothing.
fn no_longer_held_up(
    policy: &PolicyView,
    memory: &Memory,
    rules: &Rules,
    decision: &mut Decision,
) -> Option<ConditionValue> {
    let before = policy.status.webhook.as_ref().filter(|before| before.message.contains(HELD_UP))?;
    let reason = ConditionType::WebhookConfigured.reasons().iter().find(|reason| **reason == before.reason)?;
    // The pauses between the steps start again with a new leader, which does not know before they are over what holds the deletion up.
    if !decision.has_passed(memory.since, rules.webhook_pause + rules.revision_pause + PATIENCE) {
        return None;
    }
    let what = match policy.is_held {
        true => "what held it up is over",
        false => "nothing of Portcullis holds that up any more",
    };
    Some(ConditionValue::not_configured(reason, format!("the policy is being deleted; {what}")))
}

fn forget(
    uid: &str,
    revisions: &BTreeMap<i64, RevisionView>,
    groups: &Groups<'_>,
    memory: &mut Memory,
    rules: &Rules,
    decision: &mut Decision,
) {
    let mut may_go = true;
    for group in revisions.values().filter(|revision| revision.is_in_force()).flat_map(RevisionView::groups) {
        may_go &= groups.may_leave(group, uid, memory, rules, decision);
    }
    if !may_go {
        return;
    }
    let mut all_marked = true;
    for revision in revisions.values().filter(|revision| !revision.marks.deleted) {
        all_marked = false;
        let annotations = BTreeMap::from([(DELETED_ANNOTATION, "true".to_owned())]);
        let (name, policy) = (revision.name.clone(), revision.policy.clone());
        decision.act(Action::Mark { name, policy, labels: BTreeMap::new(), annotations });
    }
    if !all_marked {
        memory.forgotten.remove(uid);
        return;
    }
    let since = *memory.forgotten.entry(uid.to_owned()).or_insert(decision.now.instant);
    if decision.has_passed(since, rules.revision_pause) {
        for revision in revisions.values() {
            decision.act(revision::delete(revision));
        }
    }
}
