//! The members of match groups, and whether API servers call them already. What was called is registered again whether replicas answer or not.

use std::collections::BTreeMap;

use super::{Groups, says_nothing};
use crate::memory::Memory;
use crate::world::{PolicyView, RevisionView};

/// A policy that has revisions.
pub(super) struct Member<'w> {
    /// Its uid.
    pub(super) uid: &'w str,
    /// The policy; `None` if it is not known, or is being deleted.
    pub(super) policy: Option<&'w PolicyView>,
    /// Whether it is not known, and may only not have been reported yet.
    pub(super) may_exist: bool,
    /// Its revisions, by generation.
    pub(super) revisions: &'w BTreeMap<i64, RevisionView>,
    /// The longest evaluation of the generations that may serve, in seconds.
    pub(super) evaluation_limit: u32,
}

impl<'w> Groups<'w> {
    /// Notes what a revision in force says.
    pub(super) fn join(&mut self, member: &Member<'w>, revision: &'w RevisionView, memory: &Memory) {
        let content = revision.content.as_ref().ok();
        let named = content.map(|content| (&content.group, content.part.kind, Some(&content.part)));
        let label = revision.label.as_ref().map(|(group, kind)| (group, *kind, None));
        for (id, kind, part) in named.into_iter().chain(label) {
            let group = self.group(id, kind, part);
            if member.evaluation_limit > 0 {
                group.timeout.add(member.uid, member.evaluation_limit);
            }
            let content = content.filter(|_| member.policy.is_some() || member.may_exist);
            let sharing = content.filter(|content| content.shared && content.group == *id);
            if let Some(content) = content {
                group.timeout.at_least(content.timeout_seconds);
            }
            let Some(policy) = member.policy else {
                // What is registered for it stays, and nothing is added.
                sharing.into_iter().for_each(|content| group.share(content, false));
                continue;
            };
            group.first.get_or_insert(&policy.reference);
            group.marker.get_or_insert(&revision.name);
            let is_newest = revision.generation == policy.generation;
            let may_register = is_newest && !policy.is_suspended && policy.status.everywhere >= policy.generation;
            let was_registered = was_registered(policy, revision, memory);
            let is_in_group = |one: &RevisionView| one.groups().any(|group| group == id);
            group.was_registered |=
                was_registered || is_newest && has_replaced_served(policy, member.revisions, is_in_group);
            group.is_registered |=
                is_newest && is_registered(policy, revision, memory) && revision.groups().count() == 1;
            group.may_register |= may_register;
            if let Some(content) = sharing {
                let is_called_alike = |one: &RevisionView| is_in_group(one) && one.has_part_of(content);
                let was_called =
                    was_registered || is_newest && has_replaced_served(policy, member.revisions, is_called_alike);
                group.share(content, was_called || may_register);
            }
        }
        let is_newest_known = |policy: &PolicyView| revision.generation == policy.generation && !says_nothing(policy);
        self.has_unknown |= revision.groups().next().is_none()
            && member.policy.map_or(member.may_exist, |policy| !is_newest_known(policy));
    }
}

/// Whether API servers call the policy because of this revision, as its status says, or said last in this controller's term.
fn is_registered(policy: &PolicyView, revision: &RevisionView, memory: &Memory) -> bool {
    policy.is_registered_at(revision.generation) || was_said(policy, revision, memory)
}

/// Whether API servers may have called the policy because of this revision. The condition may be about a later generation by now.
pub(in crate::decide) fn was_registered(policy: &PolicyView, revision: &RevisionView, memory: &Memory) -> bool {
    let was_called = revision.marks.served || was_said(policy, revision, memory);
    policy.is_registered_at(revision.generation) || may_count(policy) && was_called
}

/// Whether the status said last of this revision that API servers call it.
fn was_said(policy: &PolicyView, revision: &RevisionView, memory: &Memory) -> bool {
    memory.registered.get(&policy.reference.uid) == Some(&revision.generation)
}

/// Whether the newest generation has replaced one that served where API servers call the policy. The older one is withdrawn then, and its mark
/// tells that the policy is called, even if the newest one never loads. `is_same` tells whether a revision is called there, as all of them since
/// the one that served have to be.
fn has_replaced_served(
    policy: &PolicyView,
    revisions: &BTreeMap<i64, RevisionView>,
    is_same: impl Fn(&RevisionView) -> bool,
) -> bool {
    let served = revisions.values().rev().find(|revision| revision.marks.served);
    may_count(policy) && served.is_some_and(|served| revisions.range(served.generation..).all(|(_, one)| is_same(one)))
}

/// Whether it counts that the policy was called earlier.
fn may_count(policy: &PolicyView) -> bool {
    !policy.is_suspended && !policy.is_uninstalled()
}
