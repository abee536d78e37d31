//! Webhooks that something else changes again after each of our writes, such as an admission plugin, or a tool that keeps them as they were.
//! They are never right for long, so what waits for that would wait for ever, and nobody would learn why.

use std::time::Duration;

use super::rules::Decision;
use crate::memory::{ConditionValue, GroupMemory, Reverted};

/// How long it goes on before policies say so. A webhook that is right for as long is taken to be left alone.
const LONG: Duration = Duration::from_secs(30);
/// How many writes were in vain by then, at least. This leaves out a webhook that was edited once or twice while it could not be written.
const WRITES: u32 = 3;

/// Notes that a webhook is as it should be. It may be different a moment later, even if it has been proven meanwhile.
pub(super) fn note_right(remembered: &mut GroupMemory, decision: &Decision) {
    let now = decision.now.instant;
    if let Some(reverted) = &mut remembered.reverted
        && now.duration_since(*reverted.right.get_or_insert(now)) >= LONG
    {
        remembered.reverted = None;
    }
}

/// Notes that a webhook is neither as it should be nor as it was left.
pub(super) fn note_wrong(remembered: &mut GroupMemory, decision: &Decision) {
    let now = decision.now.instant;
    let goes_on = |reverted: &&mut Reverted| reverted.right.is_none_or(|right| now.duration_since(right) < LONG);
    match remembered.reverted.as_mut().filter(goes_on) {
        Some(reverted) => reverted.right = None,
        None => remembered.reverted = Some(Reverted { since: now, writes: 0, right: None }),
    }
}

/// Whether it has gone on for long, and still does.
pub(super) fn has_lasted(remembered: &GroupMemory, decision: &mut Decision) -> bool {
    let Some(reverted) = remembered.reverted.as_ref().filter(|reverted| reverted.writes >= WRITES) else {
        return false;
    };
    decision.has_passed(reverted.since, LONG) && !reverted.right.is_some_and(|right| decision.has_passed(right, LONG))
}

/// What policies say of it once it has gone on for long.
pub(super) fn condition(name: &str, remembered: &GroupMemory, decision: &mut Decision) -> Option<ConditionValue> {
    has_lasted(remembered, decision).then(|| {
        let text = format!(
            "something else changes webhook configuration {name} again after each write of the controller: find it in \
             metadata.managedFields or in the audit log, and make it leave this object alone (docs/operations.md, \"Where clusters differ\")"
        );
        ConditionValue::not_configured("Unknown", text)
    })
}
