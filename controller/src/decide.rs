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
mod rules;
mod turns;
mod unreadable;
mod webhook_quota;

#[cfg(test)]
mod tests;

use crate::memory::Memory;
use crate::world::World;

pub(crate) use revision::rolled_back;
pub use rules::{Decision, Now, Rules};

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
            Some(refusal) if !quota::is_taken(world, policy) => {
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
