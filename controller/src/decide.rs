//! What to do next, from what there is. Pure: the same world, memory and time give the same actions.
//!
//! Every step of a sequence is told from what is there, so a controller that was killed goes on with the next one. A pause whose
//! beginning nobody remembers begins anew.

mod condition;
mod deletion;
mod groups;
mod living;
mod quota;
mod revision;
mod turns;
mod unreadable;
mod webhook_quota;

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::action::Action;
use crate::desired::Site;
use crate::memory::{Memory, Verdict};
use crate::world::{PolicyView, World};

pub(crate) use revision::rolled_back;

/// What the operator chose, and what is known of the installation.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The policy server.
    pub policy_server: String,
    /// The namespace of the installation.
    pub namespace: String,
    /// What stands in every webhook, or why it is not known yet.
    pub site: Result<Site, Verdict>,
    /// How long an evaluation may take where a policy says nothing, in seconds.
    pub policy_timeout: u32,
    /// How many policies of a namespace are taken.
    pub policies_per_namespace: usize,
    /// How many webhook configurations the policies of a namespace may have.
    pub webhooks_per_namespace: usize,
    /// How long API servers may go on calling a webhook that is gone.
    pub webhook_pause: Duration,
    /// How long replicas may take to forget a policy.
    pub revision_pause: Duration,
    /// How long a policy waits for its replicas before an event says so.
    pub waiting_event: Duration,
}

/// What time it is.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// By the clock that does not jump.
    pub instant: Instant,
    /// By the clock that people read.
    pub clock: Timestamp,
}

/// What to do.
#[derive(Debug, Default)]
pub struct Decision {
    /// In the order of their importance.
    pub actions: Vec<Action>,
    /// When to decide again, although nothing may have changed.
    pub wake: Option<Instant>,
}

impl Decision {
    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    fn wake_at(&mut self, at: Instant) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Whether this much time has passed since; if not, there will be another look when it has.
    fn has_passed(&mut self, since: Instant, time: Duration, now: Now) -> bool {
        let at = since + time;
        let has = now.instant >= at;
        if !has {
            self.wake_at(at);
        }
        has
    }
}

/// Whether an earlier generation of a policy was taken, or this one.
fn is_taken(world: &World, policy: &PolicyView) -> bool {
    world.revisions.contains_key(&policy.reference.uid) || policy.standing.last_served.is_some()
}

/// Decides. Nothing, as long as the lists are not whole: a part must not be taken for the whole.
pub fn decide(world: &World, memory: &mut Memory, rules: &Rules, now: Now) -> Decision {
    let mut decision = Decision::default();
    if !world.is_complete() {
        return decision;
    }
    let quota = quota::Quota::of(world, rules);
    let groups = groups::Groups::of(world, &quota, memory, rules);
    groups.decide(world, memory, rules, now, &mut decision);
    for policy in world.policies.values().filter(|policy| !policy.is_deleting) {
        match groups.refusal(policy) {
            // It gets no revision and no finalizer, so there is nothing to clean up when it is deleted.
            Some(refusal) if !is_taken(world, policy) => {
                decision.actions.extend(condition::write(policy, refusal.clone(), now));
            }
            Some(_) | None => living::decide(world, &groups, policy, memory, rules, now, &mut decision),
        }
    }
    deletion::decide(world, &groups, memory, rules, now, &mut decision);
    memory.waiting.retain(|uid, _| world.policies.get(uid).is_some_and(|policy| !policy.is_deleting));
    memory.groups.retain(|group, _| groups.holds(group));
    decision
}
