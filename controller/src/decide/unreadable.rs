//! Revisions that cannot be read: damaged ones, and ones that a newer release wrote.
//!
//! Such a revision never removes a webhook or takes a policy out of its group. Its group is taken from the first of these that can be
//! read: its match part, which is read separately from the rest of the spec; the policy itself, whose newest generation says the same;
//! and the labels, which were written when the content could be read. If none can be read, all webhooks without a group stay.
//!
//! Labels never take precedence over content that can be read; otherwise a right to write labels would be enough to move policies. If the
//! two differ, the policy is in both groups, as when it moves from one to the other, until the label is corrected. The same happens after
//! a downgrade, if the newer release computed the group from fields that this one does not know.
//!
//! Only administrators of the installation's namespace and the controller may write labels of revisions, and both may also write webhooks
//! and whole revisions, so a label gives them no further rights. The precautions here are against mistakes.

use std::collections::BTreeMap;

use portcullis_api::revision::group_labels;
use portcullis_contract::GroupId;

use super::groups::Groups;
use super::rules::Rules;
use crate::world::{PolicyView, RevisionView, Unreadable};

/// The labels that a revision lacks.
pub(super) fn labels(
    policy: &PolicyView,
    revision: &RevisionView,
    groups: &Groups<'_>,
    mut may_leave: impl FnMut(&GroupId) -> bool,
) -> BTreeMap<&'static str, String> {
    let nothing = BTreeMap::new();
    if !revision.is_in_force() {
        return nothing;
    }
    let own = revision.content.as_ref().ok().map(|content| (content.group.clone(), content.part.kind));
    let is_newest = revision.generation == policy.generation;
    let stand_in = || {
        let content = policy.content.as_ref().ok().filter(|_| is_newest && policy.rollback_to.is_none())?;
        Some((groups.stands_in(&policy.reference.uid)?.clone(), content.part.kind))
    };
    let Some((group, kind)) = own.clone().or_else(stand_in) else { return nothing };
    let is_right = match &revision.label {
        None => false,
        Some(label) if *label == (group.clone(), kind) => true,
        // Loaders cannot read the content and use only the label, so a wrong label has to be corrected.
        Some(_) if own.is_none() => false,
        // Loaders serve this group too as long as the label names it, and it may be called.
        Some((other, _)) => {
            let is_called = groups.get(other).is_some_and(|other| other.found.is_some());
            *other != group && is_called && !may_leave(other)
        }
    };
    if is_right { nothing } else { group_labels(&group, kind).into_iter().collect() }
}

/// What is wrong with a revision, and what to do; `None` if it can be read.
pub(super) fn words(revision: &RevisionView, rules: &Rules) -> Option<String> {
    let (name, generation) = (&revision.name, revision.generation);
    let unreadable = revision.unreadable.as_ref()?;
    Some(match unreadable {
        Unreadable::Damaged(_) => format!(
            "revision {name} of generation {generation} is damaged: {unreadable}; delete it (kubectl --namespace {} delete \
             controllerrevision {name}), and it is created again from the policy",
            rules.namespace
        ),
        Unreadable::Unknown(_) => format!(
            "revision {name} of generation {generation} has a value that this release of Portcullis cannot read: {unreadable}; upgrade to the \
             release that wrote it, or apply the policy with a value that this release knows"
        ),
    })
}
