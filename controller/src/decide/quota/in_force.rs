//! Limits what stays in force of a policy's older generations. They stay until a newer one is called, which may be never, so a user who edits
//! the match part again and again could fill etcd and memory.

use std::collections::BTreeMap;

use portcullis_contract::Reason;

use super::super::revision::Planned;
use super::policies::SPEC_BYTES;
use crate::memory::ConditionValue;
use crate::world::RevisionView;

/// How large the revisions may be together, in bytes, that stay in force when a policy moves to another match group: four of the largest
/// specs. They stay until the policy is called in its newest group, which may never be: its module may not load.
const IN_FORCE_BYTES: usize = 4 * SPEC_BYTES;

/// Why a new generation is not accepted: too much would stay in force because of it. Those with the same match part do not, so an edit that
/// leaves the match part of the newest generation as it is, for instance one that mends the module, is always accepted. So is one that goes
/// back to an older generation: it takes that one's place, and is how a user gives up the others. It may not be larger than that one, unless
/// that one is the last that served.
pub(in crate::decide) fn refusal(revisions: &BTreeMap<i64, RevisionView>, planned: &Planned) -> Option<ConditionValue> {
    let content = planned.content.as_ref();
    let gives_way = |one: &RevisionView| content.is_some_and(|content| one.gives_way_to(content));
    let stays = |one: &&RevisionView| one.is_in_force() && !gives_way(one);
    let bytes = revisions.values().filter(stays).map(RevisionView::bytes).sum::<usize>();
    let (newest, _) = revisions.last_key_value().filter(|_| bytes > IN_FORCE_BYTES)?;
    let in_force = || revisions.values().filter(|one| one.is_in_force());
    let served = in_force().rev().find(|one| one.marks.served).map(|one| one.generation);
    let fits = |one: &RevisionView| planned.spec_bytes <= one.bytes() || Some(one.generation) == served;
    if in_force().any(|one| gives_way(one) && fits(one)) {
        return None;
    }
    let generations: Vec<_> = revisions.values().filter(stays).map(|one| one.generation.to_string()).collect();
    let text = format!(
        "generations {} stay in force until a newer one is called, and take {bytes} bytes of at most {IN_FORCE_BYTES}; wait until generation \
         {newest} is Ready, keep its rules, selectors and matchConditions in this edit, apply one of these generations again or set \
         spec.rollbackTo to it, or delete the policy and apply it again",
        generations.join(", ")
    );
    Some(ConditionValue::not_configured(Reason::QuotaExceeded.as_str(), text))
}
