//! Policies that nothing has called since `helm uninstall`, as their status says. They count as new: replicas of this installation that are
//! not ready must not reject requests because of them.
//!
//! Their revisions are those of the installation before, which say that the policy served: then replicas take it for an enforced one, and its
//! webhook would be registered at once. So this mark is taken back first, and no webhook is registered for such a policy until replicas have
//! heard of that. Until it is taken back, only the status tells that the policy counts as new, so that no other reason takes its place there.

use std::collections::BTreeMap;
use std::time::Instant;

use portcullis_api::Truth;
use portcullis_api::reason::UNINSTALLED;
use portcullis_api::revision::SERVED_ANNOTATION;
use portcullis_process::Now;

use super::rules::{Decision, Rules};
use crate::action::Action;
use crate::memory::{ConditionValue, GroupMemory, WAITING};
use crate::world::{PolicyView, RevisionView, World};

/// Reasons because of which nobody has to act.
const EARLY: [&str; 3] = [WAITING, "Suspended", "Unknown"];

/// Whether a revision still says that the policy served, although it has been uninstalled since.
fn has_old_marks(policy: &PolicyView, world: &World) -> bool {
    let revisions = world.revisions.get(&policy.reference.uid);
    policy.is_uninstalled() && revisions.is_some_and(|all| all.values().any(|revision| revision.marks.served))
}

/// Whether a generation has served in this installation.
pub(super) fn has_served(policy: &PolicyView, generation: i64) -> bool {
    let served = policy.status.last_served.as_ref().is_some_and(|served| served.generation == generation);
    served && !policy.is_uninstalled()
}

/// What the mark of a revision should say, if it says something else.
pub(super) fn served_mark(policy: &PolicyView, revision: &RevisionView) -> Option<String> {
    let is_known = revision.marks.served || has_served(policy, revision.generation);
    let mark = is_known && !policy.is_uninstalled();
    (mark != revision.marks.served).then(|| mark.to_string())
}

/// Takes back the marks of a policy that does not have our finalizer yet.
pub(super) fn unmark(policy: &PolicyView, world: &World, decision: &mut Decision) {
    if !policy.is_uninstalled() {
        return;
    }
    for revision in world.revisions.get(&policy.reference.uid).into_iter().flat_map(BTreeMap::values) {
        if let Some(mark) = served_mark(policy, revision) {
            let (name, policy) = (revision.name.clone(), policy.reference.clone());
            let annotations = [(SERVED_ANNOTATION, mark)].into();
            decision.act(Action::Mark { name, policy, labels: BTreeMap::new(), annotations });
        }
    }
}

/// Notes whether one of these policies, by uid, still has old marks. This is for every decision: marks are mostly taken back in the first one,
/// in which no webhook can be made yet.
pub(super) fn note_old_marks<'w>(
    mut uids: impl Iterator<Item = &'w str>,
    world: &World,
    remembered: &mut GroupMemory,
    now: Now,
) {
    if uids.any(|uid| world.policies.get(uid).is_some_and(|policy| has_old_marks(policy, world))) {
        remembered.marked = Some(now.instant);
    }
}

/// Whether replicas take no member of the group for one that was enforced before it was uninstalled: those who have heard that the marks were
/// taken back do not. A controller that began to lead at `since` does not know what the leader before it has taken back.
pub(super) fn have_heard(remembered: &GroupMemory, since: Instant, rules: &Rules, decision: &mut Decision) -> bool {
    decision.has_passed(remembered.marked.unwrap_or(since), rules.revision_pause)
}

/// The value for a policy that nothing has called since the uninstallation. Until the old marks are taken back, nothing takes the place of
/// that one, not even that its webhook is called, as it is already if other policies have it too. After that, a reason because of which somebody
/// has to act does.
pub(super) fn keep_reason(policy: &PolicyView, world: &World, value: ConditionValue) -> ConditionValue {
    let is_early = value.status == Truth::False && EARLY.contains(&value.reason);
    if !policy.is_uninstalled() || !is_early && !has_old_marks(policy, world) {
        return value;
    }
    let more = match value.status {
        Truth::True => "its revisions still say that it served, which is being taken back".to_owned(),
        Truth::False | Truth::Unknown => format!("{}: {}", value.reason, value.message),
    };
    ConditionValue::not_configured(UNINSTALLED, format!("not registered since the last uninstallation; {more}"))
}
