//! Match groups: who is a member, which webhooks there should be, and when one goes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use portcullis_api::{PolicyReference, Truth};
use portcullis_contract::{GroupId, MatchPart};

use super::{Decision, Now, Rules};
use crate::action::Action;
use crate::desired::{Desired, desired, webhook_name};
use crate::event::Told;
use crate::memory::{GroupMemory, Memory};
use crate::world::{Content, PolicyView, RevisionView, WebhookView, World};

/// After this time the API server is asked again about a webhook that it refused.
const REFUSED_FOR: Duration = Duration::from_secs(600);

/// All groups that a revision in force names.
pub(super) struct Groups<'w>(BTreeMap<GroupId, Group<'w>>);

/// A match group.
pub(super) struct Group<'w> {
    part: Arc<MatchPart>,
    timeout_seconds: u32,
    /// Policies that need the webhook: living ones that have not moved to another group.
    claims: BTreeSet<&'w str>,
    /// Whether some policy that is asked has its newest revision here, and all replicas know it.
    pub(super) may_register: bool,
    /// A policy that was registered here already, as its status says.
    was_registered: bool,
    /// The first member, of whom events tell.
    first: Option<&'w PolicyReference>,
    /// A member's revision, which carries the marker.
    marker: Option<&'w str>,
    /// What is there.
    pub(super) found: Option<&'w WebhookView>,
    /// What should be there, once the installation is known.
    pub(super) desired: Option<Desired>,
    /// Whether the two are the same.
    pub(super) is_right: bool,
    /// Whether a proof came back from every API server, of this webhook or of an earlier form of it.
    pub(super) is_proven: bool,
}

impl<'w> Groups<'w> {
    /// The groups of a world.
    pub(super) fn of(world: &'w World, memory: &Memory, rules: &Rules) -> Self {
        let mut groups = Self(BTreeMap::new());
        for (uid, revisions) in &world.revisions {
            let policy = world.policies.get(uid).filter(|policy| !policy.is_deleting);
            for revision in revisions.values().filter(|revision| revision.is_in_force()) {
                if let Ok(content) = &revision.content {
                    groups.join(content, revision, policy);
                }
            }
        }
        for (uid, policy) in world.policies.iter().filter(|(_, policy)| !policy.is_deleting) {
            // A revision that somebody deleted takes no webhook away before it is made again.
            let has_newest = world.revisions.get(uid).is_some_and(|all| all.contains_key(&policy.generation));
            if let (false, None, Ok(content)) = (has_newest, policy.rollback_to, &policy.content) {
                let group = groups.group(content);
                group.add(content, policy);
                group.claims.insert(uid);
            }
        }
        let nothing = GroupMemory::default();
        for (id, group) in &mut groups.0 {
            let remembered = memory.groups.get(id).unwrap_or(&nothing);
            group.found = world.webhooks.get(&(group.part.kind, webhook_name(&rules.policy_server, id)));
            if let Ok(site) = &rules.site {
                let desired = desired(site, id, &group.part, group.timeout_seconds.max(1));
                group.is_right = group.found.is_some_and(|found| desired.is(found, site));
                group.desired = Some(desired);
            }
            group.is_proven = remembered.proven.is_some() && remembered.unproven.is_none();
        }
        groups.claim(world);
        groups
    }

    fn join(&mut self, content: &Content, revision: &'w RevisionView, policy: Option<&'w PolicyView>) {
        let group = self.group(content);
        let Some(policy) = policy else { return };
        group.add(content, policy);
        group.marker.get_or_insert(&revision.name);
        let condition = policy.standing.webhook.as_ref();
        group.was_registered |=
            condition.is_some_and(|one| one.status == Truth::True && one.observed_generation == revision.generation);
        let is_newest = revision.generation == policy.generation;
        group.may_register |= is_newest && !policy.is_suspended && policy.standing.everywhere >= policy.generation;
    }

    fn group(&mut self, content: &Content) -> &mut Group<'w> {
        self.0.entry(content.group.clone()).or_insert_with(|| Group {
            part: Arc::clone(&content.part),
            timeout_seconds: 0,
            claims: BTreeSet::new(),
            may_register: false,
            was_registered: false,
            first: None,
            marker: None,
            found: None,
            desired: None,
            is_right: false,
            is_proven: false,
        })
    }

    /// A policy needs the webhook of its newest match part, and those of older ones until the newest is called everywhere.
    fn claim(&mut self, world: &'w World) {
        for (uid, policy) in world.policies.iter().filter(|(_, policy)| !policy.is_deleting) {
            let Some(revisions) = world.revisions.get(uid) else { continue };
            let newest = newest_group(policy, revisions);
            let has_moved = newest.is_some_and(|newest| self.is_settled(newest, policy));
            for revision in revisions.values().filter(|revision| revision.is_in_force()) {
                let Ok(content) = &revision.content else { continue };
                if (!has_moved || Some(&content.group) == newest)
                    && let Some(group) = self.0.get_mut(&content.group)
                {
                    group.claims.insert(uid);
                }
            }
        }
    }

    /// Whether every API server calls every replica for this policy in its newest group.
    fn is_settled(&self, newest: &GroupId, policy: &PolicyView) -> bool {
        let is_called = self.0.get(newest).is_some_and(|group| group.is_right && group.is_proven);
        is_called && policy.standing.everywhere >= policy.generation
    }

    pub(super) fn get(&self, group: &GroupId) -> Option<&Group<'w>> {
        self.0.get(group)
    }

    /// Whether a revision in force names it.
    pub(super) fn holds(&self, group: &GroupId) -> bool {
        self.0.contains_key(group)
    }

    /// Whether leaving the group changes nothing for API servers: others keep its webhook, or they have stopped calling it.
    pub(super) fn may_leave(
        &self,
        group: &GroupId,
        uid: &str,
        memory: &Memory,
        rules: &Rules,
        now: Now,
        decision: &mut Decision,
    ) -> bool {
        let Some(found) = self.0.get(group) else { return true };
        if found.claims.contains(uid) {
            return false;
        }
        if !found.claims.is_empty() {
            return true;
        }
        let gone = memory.groups.get(group).and_then(|remembered| remembered.gone).unwrap_or(memory.since);
        found.found.is_none() && decision.has_passed(gone, rules.webhook_pause, now)
    }

    /// What to do about webhooks.
    pub(super) fn decide(&self, world: &World, memory: &mut Memory, rules: &Rules, now: Now, decision: &mut Decision) {
        let mut kept = BTreeSet::new();
        for (id, group) in &self.0 {
            let remembered = memory.groups.entry(id.clone()).or_default();
            group.remember(remembered, now);
            if group.claims.is_empty() {
                continue;
            }
            kept.extend(group.found.map(|found| (found.kind, &found.name)));
            let Some(desired) = &group.desired else { continue };
            match group.found {
                Some(found) if group.is_right => group.prove(id, found, desired, remembered, decision),
                Some(found) => group.change(id, found, desired, remembered, decision),
                None => group.create(id, desired, remembered, now, decision),
            }
        }
        // Nobody needs the others: their last member went, or nobody knows where they come from.
        for ((kind, name), found) in &world.webhooks {
            if found.is_ours(&rules.policy_server) && !kept.contains(&(*kind, name)) {
                decision.act(Action::DeleteWebhook { kind: *kind, name: name.clone(), uid: found.uid.clone() });
            }
        }
    }
}

impl<'w> Group<'w> {
    fn add(&mut self, content: &Content, policy: &'w PolicyView) {
        self.timeout_seconds = self.timeout_seconds.max(content.timeout_seconds);
        self.first.get_or_insert(&policy.reference);
    }

    fn remember(&self, remembered: &mut GroupMemory, now: Now) {
        let was_found = std::mem::replace(&mut remembered.was_found, self.found.is_some());
        match self.found {
            Some(found) => {
                remembered.gone = None;
                if self.is_right {
                    remembered.right = Some(Arc::clone(&found.entries));
                    remembered.refused = None;
                }
            }
            None => {
                if was_found {
                    remembered.gone = Some(now.instant);
                }
                if self.claims.is_empty() {
                    // Whoever joins it later registers it anew.
                    remembered.right = None;
                    remembered.proven = None;
                    remembered.unproven = None;
                }
            }
        }
    }

    fn prove(
        &self,
        id: &GroupId,
        found: &WebhookView,
        desired: &Desired,
        remembered: &GroupMemory,
        decision: &mut Decision,
    ) {
        let webhook = (found.uid.clone(), Arc::clone(&desired.entries));
        if remembered.proven.as_ref() == Some(&webhook) && remembered.unproven.is_none() {
            return;
        }
        if let Some(revision) = self.marker {
            decision.act(Action::Prove { group: id.clone(), revision: revision.to_owned(), webhook });
        }
    }

    fn change(
        &self,
        id: &GroupId,
        found: &WebhookView,
        desired: &Desired,
        remembered: &mut GroupMemory,
        decision: &mut Decision,
    ) {
        // What was right before is different now because we want something else; anything else was somebody's edit.
        let is_edited = remembered.right.as_ref().is_some_and(|right| *right != found.entries);
        if is_edited {
            remembered.proven = None;
        }
        let repaired = is_edited.then(|| self.told(&desired.name, "was changed")).flatten();
        decision.act(Action::ChangeWebhook {
            group: id.clone(),
            desired: Box::new(desired.clone()),
            version: found.version.clone(),
            repaired,
        });
    }

    fn create(&self, id: &GroupId, desired: &Desired, remembered: &mut GroupMemory, now: Now, decision: &mut Decision) {
        let (group, desired) = (id.clone(), Box::new(desired.clone()));
        // Once registered, always registered: replicas that fail must not open the door.
        if remembered.right.is_some() || self.was_registered {
            let repaired = self.told(&desired.name, "was deleted");
            decision.act(Action::CreateWebhook { group, desired, repaired });
            return;
        }
        let is_old = |at| now.instant.duration_since(at) >= REFUSED_FOR;
        match &remembered.tried {
            Some(Err(refusal)) if !is_old(refusal.at) => decision.wake_at(refusal.at + REFUSED_FOR),
            Some(Ok(())) => {
                if self.may_register {
                    decision.act(Action::CreateWebhook { group, desired, repaired: None });
                }
            }
            Some(Err(_)) | None => decision.act(Action::TryWebhook { group, desired }),
        }
    }

    fn told(&self, name: &str, what: &str) -> Option<Told> {
        let policy = self.first?;
        let others = match self.claims.len() {
            0 | 1 => String::new(),
            count => format!("; it calls {count} policies"),
        };
        let note = format!("webhook configuration {name} {what} by somebody else and has been repaired{others}");
        Some(Told { policy: policy.clone(), reason: "WebhookRepaired", note })
    }
}

/// The group of a policy's newest generation, where its revision is there and can be read.
pub(super) fn newest_group<'w>(policy: &PolicyView, revisions: &'w BTreeMap<i64, RevisionView>) -> Option<&'w GroupId> {
    let newest = revisions.get(&policy.generation)?;
    newest.content.as_ref().ok().map(|content| &content.group)
}
