//! Decides what to do with a policy that is not being deleted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use portcullis_api::PolicyReference;
use portcullis_api::revision::{DELETED_ANNOTATION, PINNED_DIGEST_ANNOTATION, SERVED_ANNOTATION, WITHDRAWN_ANNOTATION};

use super::groups::{Groups, newest_content, was_registered};
use super::rules::{Decision, Rules};
use super::{condition, revision, uninstalled, unreadable};
use crate::action::Action;
use crate::event::PolicyWarning;
use crate::memory::{ConditionValue, Memory, WAITING, Waiting};
use crate::world::{Content, PolicyView, RevisionView, World};

/// How long the condition does not mention that a new policy waits for its replicas.
const UNREPORTED_WAIT: Duration = Duration::from_secs(5);

pub(super) fn decide(
    world: &World,
    groups: &Groups<'_>,
    policy: &PolicyView,
    memory: &mut Memory,
    rules: &Rules,
    decision: &mut Decision,
) {
    if !policy.is_held {
        decision.act(Action::Hold(policy.reference.clone()));
        let refusal = memory.refusal(policy).cloned();
        uninstalled::unmark(policy, world, decision);
        decision.actions.extend(refusal.and_then(|refusal| condition::write(world, policy, refusal, decision.now)));
        return;
    }
    let revisions = world.revisions.get(&policy.reference.uid);
    let newest = revisions.and_then(|revisions| revisions.get(&policy.generation));
    let value = match newest {
        // An older generation serves meanwhile.
        None if groups.refusal(policy).is_some() => groups.refusal(policy).cloned(),
        None => {
            let mut waits = None;
            if let Some(planned) = groups.planned(&policy.reference.uid) {
                match groups.has_time(planned, memory, decision) {
                    true => decision.act(revision::create(policy, planned, rules)),
                    false => waits = groups.waiting_condition(planned, memory, decision),
                }
            }
            memory.refusal(policy).cloned().or(waits)
        }
        Some(newest) => condition::value(policy, newest, groups, memory, rules, decision),
    };
    if let Some(revisions) = revisions {
        mark(policy, revisions, groups, memory, rules, decision);
        for old in revision::prune(policy, revisions) {
            decision.act(revision::delete(old));
        }
    }
    let Some(value) = value else { return };
    let since = wait(policy, &value, memory, rules, decision);
    if since.is_some_and(|since| is_too_early_to_report(policy, since, decision)) {
        return;
    }
    decision.actions.extend(condition::write(world, policy, value, decision.now));
}

/// Writes what has become known to the annotations of revisions.
fn mark(
    policy: &PolicyView,
    revisions: &BTreeMap<i64, RevisionView>,
    groups: &Groups<'_>,
    memory: &Memory,
    rules: &Rules,
    decision: &mut Decision,
) {
    let newest = newest_content(policy, revisions);
    for revision in revisions.values() {
        let (generation, marks) = (revision.generation, &revision.marks);
        let mut more = BTreeMap::new();
        let resolved = policy.status.resolved.as_ref().filter(|resolved| resolved.generation == generation);
        if let Some(resolved) = resolved.filter(|_| !revision.annotations.contains_key(PINNED_DIGEST_ANNOTATION)) {
            more.insert(PINNED_DIGEST_ANNOTATION, revision::pin(resolved));
        }
        more.extend(uninstalled::served_mark(policy, revision).map(|mark| (SERVED_ANNOTATION, mark)));
        // The policy exists and is not being deleted, so the annotation is wrong.
        if marks.deleted {
            more.insert(DELETED_ANNOTATION, "false".to_owned());
        }
        if generation == policy.generation && marks.withdrawn {
            more.insert(WITHDRAWN_ANNOTATION, "false".to_owned());
        }
        if generation < policy.generation
            && !marks.withdrawn
            && let Some(newest) = newest
            && may_withdraw(policy, revision, newest, groups, memory, rules, decision)
        {
            more.insert(WITHDRAWN_ANNOTATION, "true".to_owned());
        }
        let labels = unreadable::labels(policy, revision, groups, |group| {
            groups.may_leave(group, &policy.reference.uid, memory, rules, decision)
        });
        if !more.is_empty() || !labels.is_empty() {
            let (name, policy) = (revision.name.clone(), policy.reference.clone());
            decision.act(Action::Mark { name, policy, labels, annotations: more });
        }
    }
}

/// Whether an older revision may be withdrawn. Then loaders forget its rules, and its policy is no longer asked because of them. So one that
/// API servers call stays until they call the newest instead: in another group until the policy may leave that one, and in a webhook that
/// policies share, where edits change no group, until the webhook is called for the newest. Generations that were never called go at once, so
/// that edits of a policy that never loads leave none behind.
fn may_withdraw(
    policy: &PolicyView,
    revision: &RevisionView,
    newest: &Content,
    groups: &Groups<'_>,
    memory: &Memory,
    rules: &Rules,
    decision: &mut Decision,
) -> bool {
    let uid = &policy.reference.uid;
    // Every group is asked, even if one keeps the revision, because asking starts its wait.
    let mut others: Vec<_> = revision.groups().filter(|group| **group != newest.group).collect();
    others.retain(|group| !groups.may_leave(group, uid, memory, rules, decision));
    if !others.is_empty() {
        return false;
    }
    if groups.is_settled(newest, policy) || rules.is_never_asked(&policy.reference) {
        return true;
    }
    // A revision whose group is unknown may be called in any.
    if revision.groups().next().is_none() {
        return false;
    }
    let had_moved = !policy.is_suspended && memory.moved.get(uid) == Some(&revision.generation);
    let is_called = was_registered(policy, revision, memory) || had_moved;
    let is_in_it = revision.groups().any(|group| *group == newest.group);
    let is_called_there = is_in_it && newest.shared && is_called && !revision.has_part_of(newest);
    !is_called_there
}

/// Whether it is too early to report that a new policy waits for its replicas, as that usually takes a moment only. It is reported after
/// a while, or as soon as the leader of the reporters has written a status.
fn is_too_early_to_report(policy: &PolicyView, since: Instant, decision: &mut Decision) -> bool {
    let is_new = policy.status.webhook.is_none() && policy.status.observed < policy.generation;
    is_new && !decision.has_passed(since, UNREPORTED_WAIT)
}

/// Writes an event about a policy that has waited for long, again and again. Returns since when it waits, if it does.
fn wait(
    policy: &PolicyView,
    value: &ConditionValue,
    memory: &mut Memory,
    rules: &Rules,
    decision: &mut Decision,
) -> Option<Instant> {
    let uid = &policy.reference.uid;
    if value.reason != WAITING {
        memory.waiting.remove(uid);
        return None;
    }
    let now = decision.now.instant;
    let begins = Waiting { generation: policy.generation, since: now, warned: now, is_event_due: false };
    let waiting = memory.waiting.entry(uid.clone()).or_insert(begins);
    if waiting.generation != policy.generation {
        *waiting = begins;
    }
    let since = waiting.since;
    if decision.has_passed(waiting.warned, rules.waiting_event) {
        waiting.warned = now;
        waiting.is_event_due = true;
        decision.wake_at(now + rules.waiting_event);
    }
    if waiting.is_event_due {
        let note = format!("{}; status.replicas says which one is missing and why", value.message);
        decision.act(warn(&policy.reference, WAITING, note));
    }
    Some(since)
}

fn warn(policy: &PolicyReference, reason: &'static str, note: String) -> Action {
    Action::Warn(PolicyWarning { policy: policy.clone(), reason, note })
}
