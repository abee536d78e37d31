//! Decides what to do with a policy that is being deleted, and with revisions whose policy is gone.
//!
//! First its webhooks are deleted, unless other policies need them, followed by a pause in which API servers notice. Then replicas drop
//! the policy, then its revisions are deleted, and last its finalizer is removed. Before anything of a policy that no watch has reported is
//! deleted, an API server is asked whether it exists.

use std::collections::BTreeMap;

use portcullis_api::revision::DELETED_ANNOTATION;

use super::groups::Groups;
use super::revision;
use super::rules::{Decision, Rules};
use super::unknown::UNKNOWN_FOR;
use crate::action::Action;
use crate::memory::Memory;
use crate::world::{RevisionView, World};

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
