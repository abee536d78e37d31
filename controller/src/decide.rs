//! Decides what to do next. Pure: the same world, memory and time give the same actions.
//!
//! Each step of a sequence follows from the state of the cluster, so a controller that was killed continues with the next step. Pauses
//! are kept in memory only, and start again.

mod condition;
mod deletion;
mod groups;
mod policy;
mod policy_checks;
mod quota;
mod reverted;
mod revision;
mod rules;
mod uninstalled;
mod unknown;
mod unreadable;
mod webhook_timeout;

#[cfg(test)]
mod tests;

use portcullis_process::Now;

use crate::action::Action;
use crate::memory::Memory;
use crate::world::World;

pub(crate) use revision::rolled_back;
pub use rules::{Decision, Rules};

/// Decides what to do. Nothing until all lists are complete, as a missing object must not be taken for a deleted one.
pub fn decide(world: &World, memory: &mut Memory, rules: &Rules, now: Now) -> Decision {
    let mut decision = Decision::new(now);
    if !world.is_complete() {
        return decision;
    }
    let quota = quota::Quota::of(world, rules);
    let groups = groups::Groups::of(world, &quota, memory, rules, now);
    groups.decide(world, memory, rules, &mut decision);
    for policy in world.policies.values().filter(|policy| !policy.is_deleting) {
        match groups.refusal(policy) {
            // It has no revision and no finalizer, so there is nothing to clean up when it is deleted.
            Some(refusal) if !quota::is_taken(world, policy) => {
                decision.refusals.extend(condition::write(world, policy, refusal.clone(), now));
            }
            Some(_) | None => policy::decide(world, &groups, policy, memory, rules, &mut decision),
        }
    }
    deletion::decide(world, &groups, memory, rules, &mut decision);
    deletion::tell(world, memory, rules, &mut decision);
    policy_checks::decide(world, memory, rules, &mut decision);
    let stays = |uid: &String| world.policies.get(uid).is_some_and(|policy| !policy.is_deleting);
    memory.waiting.retain(|uid, _| stays(uid));
    memory.refused.retain(|uid, _| stays(uid));
    memory.groups.retain(|group, _| groups.holds(group));
    // Events come last, as nothing depends on them.
    let due_events: Vec<_> = memory.groups.values().filter_map(|group| group.due_events.front().cloned()).collect();
    decision.actions.extend(due_events.into_iter().map(Action::Warn));
    decision
}
