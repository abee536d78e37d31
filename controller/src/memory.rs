//! What a leading controller remembers between decisions. All of it may be lost: a controller that starts without it waits a little
//! longer and asks once more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use portcullis_api::Truth;
use portcullis_contract::{GroupId, WebhookKind};

use crate::action::{Action, Key};
use crate::event::PolicyWarning;
use crate::failed::{Cause, Failed};
use crate::world::{Change, Collection, Entries, OwnWebhook, PolicyView, World};

/// The reason of a policy that waits for its replicas.
pub(crate) const WAITING: &str = "WaitingForReplicas";

/// How many events about repairs of one webhook are kept until they are written. The log has all of them.
pub(crate) const MAX_DUE_EVENTS: usize = 8;

/// The memory.
#[derive(Debug)]
pub struct Memory {
    /// When this controller began to lead.
    pub since: Instant,
    /// What is remembered of each match group.
    pub groups: BTreeMap<GroupId, GroupMemory>,
    /// The entries of the webhook that checks policies, as they were last seen as desired, or as we wrote them last.
    pub check_webhook: Option<Entries>,
    /// The shard of a policy's next revision, by the policy's uid and generation.
    pub placed: BTreeMap<(String, i64), u32>,
    /// The newest generation of a policy that every API server called in its own group and every replica knew, by the policy's uid.
    pub moved: BTreeMap<String, i64>,
    /// The generation that API servers called, as the policy's status said last, by the policy's uid. By now the status may say why its webhook,
    /// which is missing, cannot be registered again.
    pub registered: BTreeMap<String, i64>,
    /// Since when all revisions of a policy are marked as deleted, by the policy's uid.
    pub forgotten: BTreeMap<String, Instant>,
    /// Since when there are revisions of an unknown policy, by the policy's uid.
    pub orphans: BTreeMap<String, Instant>,
    /// Unknown policies of which an API server said that they do not exist, by uid.
    pub gone: BTreeSet<String>,
    /// Since when a webhook of ours belongs to no known group, by its uid.
    pub strays: BTreeMap<String, Instant>,
    /// Why the API server refused our finalizer or a revision, by the policy's uid, with the generation that it was for.
    pub refused: BTreeMap<String, (i64, ConditionValue)>,
    /// Why the last try of a write failed that the deletion of a policy may wait for, by the object that it writes.
    pub obstacles: BTreeMap<Key, Obstacle>,
    /// The policies that wait for their replicas, by uid.
    pub waiting: BTreeMap<String, Waiting>,
}

/// What is remembered of a match group.
#[derive(Debug, Default, Clone)]
pub struct GroupMemory {
    /// Whether there was a webhook at the last decision.
    pub was_found: bool,
    /// The entries that were last seen as desired, or that we wrote last.
    pub right: Option<Entries>,
    /// When the webhook was found to be gone; `None` while it exists.
    pub gone: Option<Instant>,
    /// The uid of the webhook that we deleted, until there is another one.
    pub deleted: Option<String>,
    /// The result of trying the webhook in a dry run, if it was tried.
    pub tried: Option<Result<(), WebhookRejection>>,
    /// The uid and entries of the webhook that every API server was proven to call.
    pub proven: Option<(String, Entries)>,
    /// The last proof, if it failed.
    pub unproven: Option<FailedProof>,
    /// Why the last write failed, if a user has to fix it.
    pub refused: Option<ConditionValue>,
    /// Since when the webhook, which is missing, cannot be created for a reason that may pass by itself, and the last one in the words of the
    /// API server.
    pub failing: Option<(Instant, String)>,
    /// What is known of something else that changes the webhook again after our writes; `None` while nothing does.
    pub reverted: Option<Reverted>,
    /// Whether we wrote the webhook.
    pub is_written: bool,
    /// The events about our repairs of the webhook that are neither written nor given up yet, in their order.
    pub due_events: VecDeque<PolicyWarning>,
    /// When a revision of a member last said that it served in an installation that was removed; `None` if none did in this controller's time.
    pub marked: Option<Instant>,
}

/// Something else changes a webhook again after our writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reverted {
    /// Since when the webhook has not been left alone.
    pub since: Instant,
    /// How often we have written it since then when it was not as it should be.
    pub writes: u32,
    /// Since when it is as it should be; `None` if it is not.
    pub right: Option<Instant>,
}

/// A failure that holds up the deletion of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// Since when each try has failed.
    pub since: Instant,
    /// The reason that the policy should give; `None` if it may pass by itself.
    pub reason: Option<&'static str>,
    /// What failed, and the API server's words.
    pub message: String,
}

/// A failure to prove that every API server calls a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedProof {
    /// What policies say about it.
    pub value: ConditionValue,
    /// Whether nothing in it speaks against an earlier proof.
    pub keeps_earlier: bool,
}

/// An API server's refusal of a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookRejection {
    /// The API server's message.
    pub message: String,
    /// When it refused. A newer API server may accept the webhook.
    pub at: Instant,
}

/// What the condition `WebhookConfigured` should say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionValue {
    /// Whether the webhook is configured.
    pub status: Truth,
    /// Why it has this status, in one word.
    pub reason: &'static str,
    /// Why it has this status, for people to read.
    pub message: String,
}

impl WebhookRejection {
    /// A refusal that has just come, in the API server's words.
    pub fn now(message: &str) -> Self {
        Self { message: message.to_owned(), at: Instant::now() }
    }
}

impl ConditionValue {
    /// The webhook is not configured, for this reason.
    pub fn not_configured(reason: &'static str, message: impl Into<String>) -> Self {
        Self { status: Truth::False, reason, message: message.into() }
    }

    /// The refusal of a policy whose match part has the same id as another one. The id is a part of a hash, so this can happen by chance or
    /// by design, and the policy must not be called by the other's rules.
    pub(crate) fn same_id(group: &GroupId) -> Self {
        let text = format!(
            "the match group of this policy has the same id as another one, {group}, so it cannot be registered: change a match condition, for instance its name"
        );
        Self::not_configured("SpecInvalid", text)
    }

    /// API servers call the policy.
    pub fn registered(message: String) -> Self {
        Self { status: Truth::True, reason: "Registered", message }
    }
}

/// A policy that waits for its replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// The generation that waits.
    pub generation: i64,
    /// Since when it waits.
    pub since: Instant,
    /// When the last event about it was due; at first, since when it waits.
    pub warned: Instant,
    /// Whether that event is neither written nor given up yet.
    pub is_event_due: bool,
}

impl Memory {
    /// An empty memory.
    pub fn new(now: Instant) -> Self {
        Self {
            since: now,
            groups: BTreeMap::new(),
            check_webhook: None,
            placed: BTreeMap::new(),
            moved: BTreeMap::new(),
            registered: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            orphans: BTreeMap::new(),
            gone: BTreeSet::new(),
            strays: BTreeMap::new(),
            refused: BTreeMap::new(),
            obstacles: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// Why the API server refused what a policy needs first, its finalizer or the revision of its newest generation.
    pub fn refusal(&self, policy: &PolicyView) -> Option<&ConditionValue> {
        let refused =
            self.refused.get(&policy.reference.uid).filter(|(generation, _)| *generation == policy.generation);
        refused.map(|(_, value)| value)
    }

    /// Notes which generations API servers call, as the status of policies says.
    pub(crate) fn note_registered(&mut self, world: &World) {
        self.registered.retain(|uid, _| world.policies.contains_key(uid));
        for (uid, policy) in &world.policies {
            let condition = policy.status.webhook.as_ref().filter(|condition| condition.status == Truth::True);
            let Some(generation) = condition.map(|condition| condition.observed_generation) else { continue };
            if self.registered.get(uid) != Some(&generation) {
                self.registered.insert(uid.clone(), generation);
            }
        }
    }

    /// Notes that an action has succeeded.
    pub fn succeeded(&mut self, action: &Action) {
        if action.is_removal() {
            self.obstacles.remove(&action.key());
        }
        match action {
            Action::Hold(policy) | Action::CreateRevision { policy, .. } => drop(self.refused.remove(&policy.uid)),
            Action::CreateWebhook { group, repaired: Some(warning), .. }
            | Action::ChangeWebhook { group, repaired: Some(warning), .. } => {
                let due_events = &mut self.groups.entry(group.clone()).or_default().due_events;
                if due_events.len() < MAX_DUE_EVENTS {
                    due_events.push_back(warning.clone());
                }
            }
            Action::Warn(warning) => {
                self.wait_was_reported(warning);
                for group in self.groups.values_mut() {
                    // Each repair has an event, even if it says the same: it is counted.
                    let written = group.due_events.iter().position(|one| one == warning);
                    written.and_then(|written| group.due_events.remove(written));
                }
            }
            _ => {}
        }
    }

    /// Notes why an action has failed: if somebody has to act, policies say so until it succeeds, and if a webhook cannot be created, they say so
    /// after a while in any case.
    pub(crate) fn failed(&mut self, action: &Action, failed: &Failed, world: &World, now: Instant) {
        if let (Cause::Unreachable | Cause::Other, Action::CreateWebhook { group, .. }) = (failed.cause, action) {
            let failing = &mut self.groups.entry(group.clone()).or_default().failing;
            let since = failing.as_ref().map_or(now, |(since, _)| *since);
            *failing = Some((since, failed.text.clone()));
        }
        if action.is_removal() {
            return self.obstructed(action, failed, now);
        }
        let Some(reason) = failed.reason() else { return };
        // A webhook with this content was there, so the content is not what is wrong, and nothing else is called in its place.
        let reason = if action.restores() { "Forbidden" } else { reason };
        let value = ConditionValue::not_configured(reason, failed.text.clone());
        match action {
            Action::Hold(policy) | Action::CreateRevision { policy, .. } => {
                if let Some(known) = world.policies.get(&policy.uid) {
                    self.refused.insert(policy.uid.clone(), (known.generation, value));
                }
            }
            Action::TryWebhook { group, .. }
            | Action::CreateWebhook { group, .. }
            | Action::ChangeWebhook { group, .. } => {
                let remembered = self.groups.entry(group.clone()).or_default();
                if failed.is_refusal() && matches!(action, Action::CreateWebhook { .. }) && !action.restores() {
                    remembered.tried = Some(Err(WebhookRejection::now(&failed.text)));
                }
                remembered.refused = Some(value);
            }
            _ => {}
        }
    }

    /// Notes that an event is not tried again. Nothing but the log depends on it, which has the repair already.
    pub(crate) fn gave_up(&mut self, warning: &PolicyWarning) {
        self.wait_was_reported(warning);
        for group in self.groups.values_mut() {
            group.due_events.retain(|one| one != warning);
        }
    }

    /// Notes that no event about the wait of a policy is to be written until the next is due, if this was one.
    fn wait_was_reported(&mut self, warning: &PolicyWarning) {
        let waiting = self.waiting.get_mut(&warning.policy.uid).filter(|_| warning.reason == WAITING);
        if let Some(waiting) = waiting {
            waiting.is_event_due = false;
        }
    }

    /// Notes why a write failed that the deletion of a policy may wait for.
    fn obstructed(&mut self, action: &Action, failed: &Failed, now: Instant) {
        let (what, reason) = match action {
            Action::DeleteWebhook { name, .. } => {
                (format!("webhook configuration {name}, which API servers still call, cannot be deleted"), "Forbidden")
            }
            Action::DeleteRevision { name, .. } => (format!("revision {name} cannot be deleted"), "Forbidden"),
            Action::Mark { name, .. } => (format!("revision {name} cannot be changed"), "SpecInvalid"),
            _ => ("the finalizer of Portcullis cannot be removed".to_owned(), "SpecInvalid"),
        };
        let reason = match failed.cause {
            Cause::Overtaken => return,
            Cause::Unreachable | Cause::Other => None,
            Cause::Forbidden => Some("Forbidden"),
            Cause::Refused => Some(reason),
        };
        let since = self.obstacles.get(&action.key()).map_or(now, |before| before.since);
        let message = format!("{what}: {}", failed.text);
        self.obstacles.insert(action.key(), Obstacle { since, reason, message });
    }

    /// Notes that an action of ours has written a webhook. By the next decision something else may be desired, and then what was written is
    /// not somebody else's change. What the API server made of it is not noted: if that differs, somebody else changed it on the way.
    pub fn wrote(&mut self, action: &Action, change: &Change) {
        let Change::Answered(Collection::Webhooks(_), _) = change else { return };
        match action {
            Action::CreateWebhook { group, desired, .. } | Action::ChangeWebhook { group, desired, .. } => {
                let remembered = self.groups.entry(group.clone()).or_default();
                remembered.right = Some(Arc::clone(&desired.entries));
                remembered.is_written = true;
                remembered.refused = None;
                // A change of our own is not in vain.
                if let Some(reverted) = remembered.reverted.as_mut().filter(|reverted| reverted.right.is_none()) {
                    reverted.writes = reverted.writes.saturating_add(1);
                }
            }
            Action::CreateCheckWebhook { desired, .. } | Action::ChangeCheckWebhook { desired, .. } => {
                self.check_webhook = Some(Arc::clone(&desired.entries));
            }
            _ => {}
        }
    }

    /// Notes that we deleted the webhook with this name and uid: a policy that joins its group from now on registers and proves it again.
    pub fn unregistered(&mut self, policy_server: &str, kind: WebhookKind, name: &str, uid: &str) {
        let Some(OwnWebhook::Group(group)) = OwnWebhook::of(policy_server, kind, name) else { return };
        if let Some(group) = self.groups.get_mut(&group) {
            group.deleted = Some(uid.to_owned());
            group.right = None;
            group.proven = None;
            group.unproven = None;
            group.reverted = None;
        }
    }
}
