//! The webhook of one match group: what it should be, and what is done about the one that exists.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_contract::{GroupId, MatchPart};
use portcullis_matching::rules::{covers, intersection, resources, union};

use super::super::rules::{Decision, Rules};
use super::super::{reverted, uninstalled};
use super::{Group, Sharing};
use crate::action::Action;
use crate::desired::{self, Desired};
use crate::event::PolicyWarning;
use crate::memory::GroupMemory;
use crate::world::{Content, Entries, WebhookView};

/// When to ask the API server again about a webhook that it refused.
const REFUSED_FOR: Duration = Duration::from_secs(600);

impl<'w> Group<'w> {
    /// Notes a member of a shared webhook.
    pub(super) fn share(&mut self, content: &Content, is_called: bool) {
        self.resources.extend(resources(&content.own.rules));
        self.sharing.push(Sharing { own: Arc::clone(&content.own), is_called });
    }

    /// The match part of the webhook; `None` if no member's revision can be read. Where members share the webhook, it has the rules of those
    /// that should be called, and what is `registered` of the others' rules stays. `known` are the entries that it should have had, or has.
    pub(super) fn webhook_part(&self, registered: Option<&Entries>, known: Option<&Entries>) -> Option<Arc<MatchPart>> {
        let part = self.part.as_ref()?;
        if self.sharing.is_empty() {
            return Some(Arc::clone(part));
        }
        let rules = |is_called| {
            let members = self.sharing.iter().filter(move |member| member.is_called == is_called);
            union(&members.flat_map(|member| desired::rules(&member.own)).collect::<Vec<_>>())
        };
        let (called, others) = (rules(true), rules(false));
        let registered = registered.map(desired::registered).unwrap_or_default();
        let kept = intersection(&registered, &others);
        let together = union(called.iter().chain(&kept));
        let rules = match known {
            _ if !together.is_empty() => together,
            // No member may be called for its rules yet, and the webhook stays for them.
            Some(known) => union(&desired::registered(known)),
            // One that is still to be registered is tried with the rules that it will have.
            None => others,
        };
        Some(Arc::new(MatchPart { rules, ..(**part).clone() }))
    }

    /// Whether every API server has proven that it calls the webhook for the requests that this member is about.
    pub(in crate::decide) fn calls_for(&self, content: &Content) -> bool {
        self.is_proven && (!content.shared || covers(&self.proven_rules, &desired::rules(&content.own)))
    }

    pub(super) fn remember(&self, remembered: &mut GroupMemory, decision: &Decision) {
        let was_found = std::mem::replace(&mut remembered.was_found, self.found.is_some());
        match self.found {
            Some(found) => {
                remembered.gone = None;
                remembered.deleted = None;
                remembered.failing = None;
                if self.is_right {
                    remembered.right = Some(Arc::clone(&found.entries));
                    remembered.refused = None;
                    remembered.tried = remembered.tried.take().filter(Result::is_ok);
                    reverted::note_right(remembered, decision);
                } else if self.is_reverted(remembered) {
                    reverted::note_wrong(remembered, decision);
                }
            }
            None => {
                if was_found {
                    remembered.gone = Some(decision.now.instant);
                }
                if !self.may_register && !self.comes_back(remembered) {
                    remembered.failing = None;
                }
                if self.claims.is_empty() {
                    // A policy that joins the group later registers it again.
                    remembered.right = None;
                    remembered.proven = None;
                    remembered.unproven = None;
                    remembered.failing = None;
                    remembered.reverted = None;
                }
            }
        }
    }

    /// Whether every API server has proven to call exactly this webhook.
    fn is_proven_as(&self, found: &WebhookView, remembered: &GroupMemory) -> bool {
        let proven = remembered.proven.as_ref().filter(|_| remembered.unproven.is_none());
        proven.is_some_and(|(uid, entries)| *uid == found.uid && *entries == found.entries)
    }

    /// Whether a webhook that is not as it should be was so before: what should be is what was there, or what we wrote last.
    fn is_reverted(&self, remembered: &GroupMemory) -> bool {
        self.desired.as_ref().is_some_and(|desired| remembered.right.as_ref() == Some(&desired.entries))
    }

    pub(super) fn prove(
        &self,
        id: &GroupId,
        found: &WebhookView,
        desired: &Desired,
        remembered: &GroupMemory,
        decision: &mut Decision,
    ) {
        if self.is_proven_as(found, remembered) {
            return;
        }
        let webhook = (found.uid.clone(), Arc::clone(&desired.entries));
        if let Some(revision) = self.marker {
            decision.act(Action::Prove { group: id.clone(), revision: revision.to_owned(), webhook });
        }
    }

    pub(super) fn change(
        &self,
        id: &GroupId,
        found: &WebhookView,
        desired: &Desired,
        remembered: &mut GroupMemory,
        decision: &mut Decision,
    ) {
        // If the webhook was right before and has not changed, we want something else now. Otherwise something else changed it.
        let is_edited = remembered.right.as_ref().is_some_and(|right| *right != found.entries);
        if is_edited {
            remembered.proven = None;
        }
        let repaired = is_edited.then(|| self.repair_warning(&desired.name, "was changed")).flatten();
        decision.act(Action::ChangeWebhook {
            group: id.clone(),
            desired: Box::new(desired.clone()),
            version: found.version.clone(),
            repaired,
        });
    }

    /// Whether a webhook that is missing is registered again in any case. Once registered, it stays registered: failing replicas must not switch
    /// off the policies.
    pub(in crate::decide) fn comes_back(&self, remembered: &GroupMemory) -> bool {
        remembered.right.is_some() || self.was_registered
    }

    pub(super) fn create(
        &self,
        id: &GroupId,
        desired: &Desired,
        remembered: &mut GroupMemory,
        since: Instant,
        rules: &Rules,
        decision: &mut Decision,
    ) {
        let (group, desired) = (id.clone(), Box::new(desired.clone()));
        if self.comes_back(remembered) {
            let is_deleted = remembered.right.is_some() || self.is_registered;
            let repaired = is_deleted.then(|| self.repair_warning(&desired.name, "was deleted")).flatten();
            decision.act(Action::CreateWebhook { group, desired, repaired });
            return;
        }
        let now = decision.now;
        let is_old = |at| now.instant.duration_since(at) >= REFUSED_FOR;
        match &remembered.tried {
            Some(Err(refusal)) if !is_old(refusal.at) => decision.wake_at(refusal.at + REFUSED_FOR),
            Some(Ok(())) => {
                if self.may_register && uninstalled::have_heard(remembered, since, rules, decision) {
                    decision.act(Action::CreateWebhook { group, desired, repaired: None });
                }
            }
            Some(Err(_)) | None => decision.act(Action::TryWebhook { group, desired }),
        }
    }

    fn repair_warning(&self, name: &str, what: &str) -> Option<PolicyWarning> {
        let policy = self.first?;
        let others = match self.claims.len() {
            0 | 1 => String::new(),
            count => format!("; it calls {count} policies"),
        };
        let note = format!("webhook configuration {name} {what} by somebody else and has been repaired{others}");
        Some(PolicyWarning { policy: policy.clone(), reason: "WebhookRepaired", note })
    }
}
