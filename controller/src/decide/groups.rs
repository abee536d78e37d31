//! Match groups: their members, the webhooks that they should have, and when a webhook is deleted.

mod member;
mod webhook;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portcullis_api::PolicyReference;
use portcullis_contract::{GroupId, MatchPart, RuleWithOperations, WebhookKind};
use portcullis_matching::rules::resources;
use portcullis_process::Now;

use super::quota::{self, Quota, WebhookQuota};
use super::revision::{self, Planned};
use super::rules::{Decision, Rules};
use super::webhook_timeout::{WebhookTimeout, longest_evaluation};
use super::{reverted, uninstalled, unknown};
use crate::action::Action;
use crate::desired::{self, Desired, desired, kept, waits};
use crate::memory::{ConditionValue, GroupMemory, Memory};
use crate::world::{Content, PolicyView, RevisionView, WebhookView, World, webhook_name};
use member::Member;

pub(super) use member::was_registered;

/// The most resources in the rules of a shared webhook, which an API server compares with every request.
const MOST_RESOURCES: usize = 256;

/// All match groups that a revision in force names.
#[derive(Default)]
pub(super) struct Groups<'w> {
    groups: BTreeMap<GroupId, Group<'w>>,
    /// Revisions that are still to be made, by the uid of their policy.
    planned: BTreeMap<&'w str, Planned>,
    /// The group of a newest revision whose match part cannot be read, by the uid of its policy.
    stand_ins: BTreeMap<&'w str, GroupId>,
    /// Policies whose next revision would go beyond a limit, by uid.
    refused: BTreeMap<&'w str, ConditionValue>,
    /// Whether the group of a revision in force is unknown, so that any webhook without a group may belong to it.
    has_unknown: bool,
}

/// A match group.
pub(super) struct Group<'w> {
    kind: WebhookKind,
    /// Its match part; `None` if no member's revision can be read. Where members share the webhook, its rules name groups and versions only.
    part: Option<Arc<MatchPart>>,
    /// The members of a shared webhook.
    sharing: Vec<Sharing>,
    /// The resources in the rules of these members.
    resources: BTreeSet<(String, String)>,
    /// The time that its members need.
    pub(super) timeout: WebhookTimeout<'w>,
    /// The policies that need the webhook: those that are not being deleted, have not moved to another group, and can be asked at all.
    claims: BTreeSet<&'w str>,
    /// Whether the newest revision of a policy that is not suspended is here, and all replicas know it.
    pub(super) may_register: bool,
    /// Whether the webhook was registered before, as the status or a revision of a member says.
    was_registered: bool,
    /// Whether it is registered now, as that status says, so if it is missing, another client has deleted it. A webhook that a policy has
    /// moved to or from may be missing because another controller, which led before, did not register it yet, or has deleted it.
    is_registered: bool,
    /// The first member, which events are about.
    first: Option<&'w PolicyReference>,
    /// A member's revision, which carries the marker.
    marker: Option<&'w str>,
    /// The webhook that exists.
    pub(super) found: Option<&'w WebhookView>,
    /// The webhook that should exist; `None` until the installation is known, and if the match part is not.
    pub(super) desired: Option<Desired>,
    /// Whether `found` is as `desired`.
    pub(super) is_right: bool,
    /// Whether every API server has proven that it calls this webhook, or an earlier version of it.
    pub(super) is_proven: bool,
    /// The rules of the version that every API server has proven to call.
    proven_rules: Vec<RuleWithOperations>,
}

/// A generation of a policy that shares a webhook.
struct Sharing {
    /// The match part of its own.
    own: Arc<MatchPart>,
    /// Whether it should be called: all replicas serve it, or it was called before.
    is_called: bool,
}

impl<'w> Groups<'w> {
    /// Finds the groups of a world, and remembers in which shard policies were placed.
    pub(super) fn of(world: &'w World, quota: &Quota<'_>, memory: &mut Memory, rules: &Rules, now: Now) -> Self {
        let mut groups = Self::default();
        memory.note_registered(world);
        for (uid, revisions) in &world.revisions {
            let policy = world.policies.get(uid).filter(|policy| !policy.is_deleting);
            let may_exist = unknown::may_exist(uid, world, memory, now);
            let member =
                Member { uid, policy, may_exist, revisions, evaluation_limit: longest_evaluation(revisions, rules) };
            for revision in revisions.values().filter(|revision| revision.is_in_force()) {
                groups.join(&member, revision, memory);
            }
        }
        let mut missing = Vec::new();
        for (uid, policy) in world.policies.iter().filter(|(_, policy)| !policy.is_deleting) {
            if let Some(refusal) = quota.refusal(policy) {
                groups.refused.insert(uid, refusal);
                continue;
            }
            let revisions = world.revisions.get(uid);
            match revisions.and_then(|revisions| revisions.get(&policy.generation)) {
                // If a revision was deleted by hand, its webhook stays until the revision is restored.
                None => missing.push((uid.as_str(), policy, revisions)),
                Some(newest) if newest.content.is_err() => groups.stand_in(uid, policy, newest, rules),
                Some(_) => {}
            }
        }
        // A policy keeps the shard that it was given, even if others have come since. Then accepted policies come first, and older ones.
        missing.sort_by_key(|(uid, policy, revisions)| {
            let is_placed = memory.placed.contains_key(&((*uid).to_owned(), policy.generation));
            (!is_placed, revisions.is_none(), policy.created, *uid)
        });
        let planned = missing.iter().map(|(uid, policy, _)| ((*uid).to_owned(), policy.generation));
        let planned: BTreeSet<_> = planned.collect();
        memory.placed.retain(|place, _| planned.contains(place));
        let mut webhooks = WebhookQuota::of(world, rules.webhooks_per_namespace);
        for (uid, policy, revisions) in missing {
            groups.plan(uid, policy, revisions, &mut webhooks, memory, rules);
        }
        groups.look(world, memory, rules);
        groups.claim(world, memory, rules);
        groups.keep(world, memory, now);
        groups
    }

    /// Finds the group of a newest revision whose match part cannot be read: from the policy itself, which says the same unless it is
    /// rolled back, or else from the labels.
    fn stand_in(&mut self, uid: &'w str, policy: &'w PolicyView, newest: &RevisionView, rules: &Rules) {
        let label = newest.label.as_ref().map(|(group, _)| group);
        let own = policy.content.as_ref().ok().filter(|_| !says_nothing(policy));
        let own = own.map(|content| content.in_shard_of(label));
        if let Some(content) = &own {
            self.need(uid, policy, content, rules);
        }
        let group = own.as_ref().map(|content| &content.group).or(label);
        self.stand_ins.extend(group.map(|group| (uid, group.clone())));
    }

    /// Plans the policy's next revision, and its shard of the match part.
    fn plan(
        &mut self,
        uid: &'w str,
        policy: &'w PolicyView,
        revisions: Option<&BTreeMap<i64, RevisionView>>,
        webhooks: &mut WebhookQuota<'w>,
        memory: &mut Memory,
        rules: &Rules,
    ) {
        let mut planned = revision::plan(policy, revisions);
        planned.content = planned.content.map(|content| {
            let shared = (rules.shares_webhooks && content.may_share()).then(|| content.sharing(true));
            let content = shared.filter(|shared| self.has_room(shared)).unwrap_or_else(|| content.sharing(false));
            let place = (uid.to_owned(), policy.generation);
            let shard = *memory.placed.entry(place).or_insert_with(|| self.place(uid, &content, revisions, rules));
            content.in_shard(shard)
        });
        if let Some(refusal) = revisions.and_then(|revisions| quota::refusal(revisions, &planned)) {
            memory.placed.remove(&(uid.to_owned(), policy.generation));
            self.refused.insert(uid, refusal);
            return;
        }
        if let Some(content) = &planned.content {
            let known = self.get(&content.group).and_then(|group| group.part.as_ref());
            if known.is_some_and(|part| !part.is_same(&content.part)) {
                memory.placed.remove(&(uid.to_owned(), policy.generation));
                self.refused.insert(uid, ConditionValue::same_id(&content.group));
                return;
            }
            if let Err(refusal) = webhooks.take(uid, policy, &content.group) {
                memory.placed.remove(&(uid.to_owned(), policy.generation));
                self.refused.insert(uid, refusal);
                return;
            }
            let limit = content.evaluation_limit(rules.policy_timeout);
            planned.needs_time = self.get(&content.group).is_none_or(|group| !group.timeout.covers(uid, limit));
            self.need(uid, policy, content, rules);
        }
        self.planned.insert(uid, planned);
    }

    /// The shard for a policy: the one in which it is, if it fits there, or else the first one in which it fits.
    fn place(
        &self,
        uid: &str,
        content: &Content,
        revisions: Option<&BTreeMap<i64, RevisionView>>,
        rules: &Rules,
    ) -> u32 {
        if content.part.kind == WebhookKind::Validating {
            return 0;
        }
        let older = revisions.into_iter().flat_map(|revisions| revisions.values().rev());
        let older = older.filter(|revision| revision.is_in_force()).filter_map(|older| older.content.as_ref().ok());
        let own = older.map(|older| older.shard).find(|shard| {
            let id = content.in_shard(*shard).group;
            self.get(&id).is_some_and(|group| group.timeout.has(uid))
        });
        let limit = content.evaluation_limit(rules.policy_timeout);
        let fits = |shard: &u32| {
            self.get(&content.in_shard(*shard).group).is_none_or(|group| group.timeout.has_room_for(uid, limit))
        };
        own.into_iter().chain(0..).find(fits).unwrap_or(0)
    }

    /// Whether the webhook can have the rules of one more policy.
    fn has_room(&self, shared: &Content) -> bool {
        let Some(group) = self.get(&shared.group) else { return true };
        let more = resources(&shared.own.rules);
        group.resources.len() + more.difference(&group.resources).count() <= MOST_RESOURCES
    }

    /// Notes that a policy needs the webhook of this content, although no revision says so.
    fn need(&mut self, uid: &'w str, policy: &'w PolicyView, content: &Content, rules: &Rules) {
        let group = self.group(&content.group, content.part.kind, Some(&content.part));
        if content.shared {
            group.share(content, false);
        }
        group.timeout.add(uid, content.evaluation_limit(rules.policy_timeout));
        group.timeout.at_least(content.timeout_seconds);
        group.first.get_or_insert(&policy.reference);
        if !rules.is_never_asked(&policy.reference) {
            group.claims.insert(uid);
        }
    }

    fn group(&mut self, id: &GroupId, kind: WebhookKind, part: Option<&Arc<MatchPart>>) -> &mut Group<'w> {
        let group = self.groups.entry(id.clone()).or_insert_with(|| Group {
            kind,
            part: None,
            sharing: Vec::new(),
            resources: BTreeSet::new(),
            timeout: WebhookTimeout::default(),
            claims: BTreeSet::new(),
            may_register: false,
            was_registered: false,
            is_registered: false,
            first: None,
            marker: None,
            found: None,
            desired: None,
            is_right: false,
            is_proven: false,
            proven_rules: Vec::new(),
        });
        if let (None, Some(part)) = (&group.part, part) {
            group.kind = part.kind;
            group.part = Some(Arc::clone(part));
        }
        group
    }

    /// Compares the webhooks that exist with those that should.
    fn look(&mut self, world: &'w World, memory: &Memory, rules: &Rules) {
        let nothing = GroupMemory::default();
        for (id, group) in &mut self.groups {
            let remembered = memory.groups.get(id).unwrap_or(&nothing);
            let name = webhook_name(&rules.policy_server, id);
            // A watch may report an earlier change of it later than the answer to our deletion came.
            let is_there = |found: &&WebhookView| remembered.deleted.as_ref() != Some(&found.uid);
            let find = |kind| world.webhooks.get(&(kind, name.clone())).filter(is_there);
            group.was_registered &= remembered.deleted.is_none();
            group.found = find(group.kind);
            if group.part.is_none() && group.found.is_none() {
                // The kind in the labels may be wrong, but that of the webhook is right.
                group.found = find(WebhookKind::Validating).or_else(|| find(WebhookKind::Mutating));
                group.kind = group.found.map_or(group.kind, |found| found.kind);
            }
            if let Ok(installation) = &rules.installation {
                let known = remembered.right.as_ref().or(group.found.map(|found| &found.entries));
                let registered = group.found.map(|found| &found.entries).or(remembered.right.as_ref());
                group.desired = match group.webhook_part(registered, known) {
                    Some(part) => Some(desired(installation, id, &part, group.timeout.seconds(group.kind))),
                    None => known.map(|entries| kept(installation, group.kind, id, entries)),
                };
                if let (Some(desired), Some(found)) = (&mut group.desired, group.found) {
                    desired.share_entries(found);
                    group.is_right = desired.is(found, installation);
                }
            }
            group.is_proven = remembered.proven.is_some() && remembered.unproven.is_none();
            if let Some((_, entries)) = remembered.proven.as_ref().filter(|_| !group.sharing.is_empty()) {
                group.proven_rules = desired::registered(entries);
            }
        }
    }

    /// Notes that a policy needs the webhook of its newest match part, and those of older ones until the newest is called everywhere. A
    /// webhook that is gone since then is not needed again if replicas stop to answer.
    fn claim(&mut self, world: &'w World, memory: &mut Memory, rules: &Rules) {
        memory.moved.retain(|uid, _| world.policies.contains_key(uid));
        let needs_webhook = |policy: &PolicyView| !policy.is_deleting && !rules.is_never_asked(&policy.reference);
        for (uid, policy) in world.policies.iter().filter(|(_, policy)| needs_webhook(policy)) {
            let Some(revisions) = world.revisions.get(uid) else { continue };
            let newest = newest_content(policy, revisions);
            let has_moved = newest.is_some_and(|newest| self.is_settled(newest, policy));
            if has_moved {
                memory.moved.insert(uid.clone(), policy.generation);
            }
            let had_moved = newest.is_some() && memory.moved.get(uid) == Some(&policy.generation);
            for id in revisions.values().filter(|revision| revision.is_in_force()).flat_map(RevisionView::groups) {
                let Some(group) = self.groups.get_mut(id) else { continue };
                let has_left = has_moved || had_moved && group.found.is_none();
                if !has_left || newest.is_some_and(|newest| *id == newest.group) {
                    group.claims.insert(uid);
                }
            }
        }
    }

    /// Notes that policies which may not have been reported yet need the webhooks that their revisions name, if they exist.
    fn keep(&mut self, world: &'w World, memory: &mut Memory, now: Now) {
        for (uid, revisions) in &world.revisions {
            if !unknown::may_exist(uid, world, memory, now) {
                continue;
            }
            for id in revisions.values().filter(|revision| revision.is_in_force()).flat_map(RevisionView::groups) {
                if let Some(group) = self.groups.get_mut(id).filter(|group| group.found.is_some()) {
                    group.claims.insert(uid);
                }
            }
        }
    }

    /// Whether every API server calls every replica for this policy in its newest group.
    pub(super) fn is_settled(&self, newest: &Content, policy: &PolicyView) -> bool {
        let is_called = self.get(&newest.group).is_some_and(|group| group.is_right && group.calls_for(newest));
        is_called && policy.status.everywhere >= policy.generation
    }

    pub(super) fn get(&self, group: &GroupId) -> Option<&Group<'w>> {
        self.groups.get(group)
    }

    /// Why the next revision of a policy is not made, if that would exceed a limit.
    pub(super) fn refusal(&self, policy: &PolicyView) -> Option<&ConditionValue> {
        self.refused.get(policy.reference.uid.as_str())
    }

    /// The planned revision of a policy whose newest one does not exist yet.
    pub(super) fn planned(&self, uid: &str) -> Option<&Planned> {
        self.planned.get(uid)
    }

    /// The group of a newest revision whose match part cannot be read, if it is known.
    pub(super) fn stands_in(&self, uid: &str) -> Option<&GroupId> {
        self.stand_ins.get(uid)
    }

    /// Whether API servers wait long enough for all members, including the planned one, which is not called before that. True if the
    /// webhook cannot be changed until a user fixes something, or something else changes it each time.
    pub(super) fn has_time(&self, planned: &Planned, memory: &Memory, decision: &mut Decision) -> bool {
        if !planned.needs_time {
            return true;
        }
        let Some(id) = planned.content.as_ref().map(|content| &content.group) else { return true };
        let Some(group) = self.get(id) else { return true };
        let (Some(found), Some(desired), Some(_)) = (group.found, &group.desired, group.marker) else { return true };
        let Some(remembered) = memory.groups.get(id) else { return false };
        let needed = waits(&desired.entries);
        let is_proven =
            remembered.proven.as_ref().is_some_and(|(uid, entries)| *uid == found.uid && waits(entries) >= needed);
        // What we have just written counts only once it is proven: what reverts it may restore a shorter timeout a moment later.
        let is_left = !group.is_right && reverted::has_lasted(remembered, decision);
        let is_stuck = (remembered.unproven.is_some() || is_left) && waits(&found.entries) >= needed;
        group.kind == WebhookKind::Validating || is_proven || is_stuck || remembered.refused.is_some()
    }

    /// The condition of a policy whose planned revision waits for time, if it waits because something else changes the webhook each time.
    pub(super) fn waiting_condition(
        &self,
        planned: &Planned,
        memory: &Memory,
        decision: &mut Decision,
    ) -> Option<ConditionValue> {
        let id = &planned.content.as_ref()?.group;
        reverted::condition(&self.get(id)?.found?.name, memory.groups.get(id)?, decision)
    }

    /// Whether a revision in force names the group.
    pub(super) fn holds(&self, group: &GroupId) -> bool {
        self.groups.contains_key(group)
    }

    /// Whether a policy can leave the group without a change for API servers: its webhook stays for others, or is no longer called.
    pub(super) fn may_leave(
        &self,
        group: &GroupId,
        uid: &str,
        memory: &Memory,
        rules: &Rules,
        decision: &mut Decision,
    ) -> bool {
        let Some(found) = self.groups.get(group) else { return true };
        if found.claims.contains(uid) {
            return false;
        }
        if !found.claims.is_empty() {
            return true;
        }
        let gone = memory.groups.get(group).and_then(|remembered| remembered.gone).unwrap_or(memory.since);
        found.found.is_none() && decision.has_passed(gone, rules.webhook_pause)
    }

    /// Whether no revision in force names the webhook's group.
    fn is_stray(&self, webhook: &WebhookView, rules: &Rules) -> bool {
        webhook.group(&rules.policy_server).is_some_and(|group| !self.holds(&group))
    }

    /// Decides what to do with webhooks.
    pub(super) fn decide(&self, world: &World, memory: &mut Memory, rules: &Rules, decision: &mut Decision) {
        let mut kept = BTreeSet::new();
        for (id, group) in &self.groups {
            let remembered = memory.groups.entry(id.clone()).or_default();
            group.remember(remembered, decision);
            uninstalled::note_old_marks(group.claims.iter().copied(), world, remembered, decision.now);
            if group.claims.is_empty() {
                continue;
            }
            kept.extend(group.found.map(|found| (found.kind, &found.name)));
            let Some(desired) = &group.desired else { continue };
            match group.found {
                Some(found) if group.is_right => group.prove(id, found, desired, remembered, decision),
                Some(found) => group.change(id, found, desired, remembered, decision),
                None => group.create(id, desired, remembered, memory.since, rules, decision),
            }
        }
        // The other webhooks are not needed: their last member is gone, or their origin is unknown. One with another name than that of a group
        // is somebody's copy, even if it has our labels.
        unknown::retain_strays(world, |found| self.is_stray(found, rules), memory);
        for ((kind, name), found) in &world.webhooks {
            let Some(group) = found.group(&rules.policy_server) else { continue };
            let may_be_needed = self.has_unknown && !self.groups.contains_key(&group);
            // One that has lost its labels is still that of a group which is known, as it would be if it were needed.
            let known = self.groups.get(&group).and_then(|group| group.found);
            let is_ours = found.is_ours(&rules.policy_server) || known.is_some_and(|known| known.uid == found.uid);
            let is_needless = is_ours && !kept.contains(&(*kind, name)) && !may_be_needed;
            if is_needless && (!self.is_stray(found, rules) || unknown::is_long_stray(found, memory, decision)) {
                decision.act(Action::DeleteWebhook { kind: *kind, name: name.clone(), uid: found.uid.clone() });
            }
        }
    }
}

/// The content of a policy's newest generation, if its revision exists and can be read.
pub(super) fn newest_content<'w>(
    policy: &PolicyView,
    revisions: &'w BTreeMap<i64, RevisionView>,
) -> Option<&'w Content> {
    revisions.get(&policy.generation)?.content.as_ref().ok()
}

/// Whether the match part of the newest generation does not follow from the policy itself.
fn says_nothing(policy: &PolicyView) -> bool {
    policy.content.is_err() || policy.rollback_to.is_some()
}
