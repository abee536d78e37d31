//! Limits how many webhook configurations the policies of a namespace may have. An API server compares every request with all of them, so
//! a user who may write Policies in one namespace could slow it down for everyone. It also limits what the match parts that policies are
//! leaving take of this program's memory.

use std::collections::{BTreeMap, BTreeSet};

use portcullis_contract::{GroupId, Reason};

use crate::memory::ConditionValue;
use crate::world::{MATCH_BYTES, PolicyView, RevisionView, World};

/// The match groups of each namespace.
#[derive(Debug)]
pub(in crate::decide) struct WebhookQuota<'w> {
    namespaces: BTreeMap<&'w str, Groups<'w>>,
    limit: usize,
}

#[derive(Debug, Default)]
struct Groups<'w> {
    /// The group of each policy's newest accepted generation, by the policy's uid.
    newest: BTreeMap<&'w str, GroupId>,
    /// What the match part of that generation takes in memory, in bytes, by the policy's uid.
    newest_bytes: BTreeMap<&'w str, usize>,
    /// What the match parts of all generations in force take in memory, in bytes, by the policy's uid and their group.
    parts: BTreeMap<(&'w str, GroupId), usize>,
    /// All groups with a webhook, including those that a policy is leaving.
    in_force: BTreeSet<GroupId>,
    /// What the match parts that policies are leaving take in memory, in bytes.
    leaving: usize,
}

impl<'w> WebhookQuota<'w> {
    /// Counts the groups of the revisions. ClusterPolicies are not counted.
    pub(in crate::decide) fn of(world: &'w World, limit: usize) -> Self {
        let mut namespaces: BTreeMap<&str, Groups<'_>> = BTreeMap::new();
        for (uid, revisions) in &world.revisions {
            for revision in revisions.values().filter(|revision| revision.is_in_force()) {
                let Some(namespace) = revision.policy.namespace.as_deref() else { continue };
                let groups = namespaces.entry(namespace).or_default();
                groups.in_force.extend(revision.groups().cloned());
                groups.newest.extend(RevisionView::groups(revision).next().map(|group| (uid.as_str(), group.clone())));
                groups.leaving += groups.newest_bytes.insert(uid, revision.match_bytes).unwrap_or_default();
                let own = revision.content.as_ref().ok().map(|content| content.group.clone());
                groups.parts.extend(own.map(|group| ((uid.as_str(), group), revision.match_bytes)));
            }
        }
        Self { namespaces, limit }
    }

    /// Accepts a generation whose policy joins this group, or says why not. An existing group can always be joined. While policies move
    /// from one group to another there may be twice as many: both are called until the new one is proven. A policy that stays in its group
    /// leaves none, and one that goes back to a group that it is leaving takes no more memory.
    pub(in crate::decide) fn take(
        &mut self,
        uid: &'w str,
        policy: &'w PolicyView,
        group: &GroupId,
    ) -> Result<(), ConditionValue> {
        let Some(namespace) = policy.reference.namespace.as_deref() else { return Ok(()) };
        let groups = self.namespaces.entry(namespace).or_default();
        let is_moving = groups.newest.get(uid).is_some_and(|newest| newest != group);
        let left = groups.newest_bytes.get(uid).copied().filter(|_| is_moving).unwrap_or_default();
        let returns = groups.parts.get(&(uid, group.clone())).copied().filter(|_| is_moving);
        if is_moving && returns.is_none() && groups.leaving + left > MATCH_BYTES {
            return Err(too_much(namespace));
        }
        if !groups.in_force.contains(group) {
            let others: BTreeSet<_> =
                groups.newest.iter().filter(|(other, _)| **other != uid).map(|(_, group)| group).collect();
            let moving = groups.in_force.len();
            if others.len() >= self.limit || moving >= self.limit.saturating_mul(2) {
                return Err(too_many(namespace, others.len().max(moving), self.limit));
            }
        }
        groups.leaving = (groups.leaving + left).saturating_sub(returns.unwrap_or_default());
        groups.in_force.insert(group.clone());
        groups.newest.insert(uid, group.clone());
        Ok(())
    }
}

fn too_much(namespace: &str) -> ConditionValue {
    let text = format!(
        "the rules, selectors and matchConditions that policies of namespace {namespace} are leaving take more than {MATCH_BYTES} bytes of memory; wait until these policies are Ready, keep those of the newest accepted generation in this edit, go back to an earlier generation, or delete policies"
    );
    ConditionValue::not_configured(Reason::QuotaExceeded.as_str(), text)
}

fn too_many(namespace: &str, taken: usize, limit: usize) -> ConditionValue {
    let text = format!(
        "namespace {namespace} has {taken} webhook configurations of at most {limit}; give policies the same rules, selectors and match conditions, so that they share one, or have the limit raised (controller.webhooksPerNamespace of the chart)"
    );
    ConditionValue::not_configured(Reason::QuotaExceeded.as_str(), text)
}
