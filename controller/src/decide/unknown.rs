//! What no watch has reported: policies of which there are revisions, and revisions of which there are webhooks.

use std::collections::BTreeSet;
use std::time::Duration;

use portcullis_process::Now;

use super::rules::Decision;
use crate::memory::Memory;
use crate::world::{WebhookView, World};

/// How long a policy must have been missing before its webhook and its revisions are deleted, and how long a webhook must have belonged to no
/// known group before it is deleted, as one watch may lag behind another.
pub(super) const UNKNOWN_FOR: Duration = Duration::from_secs(30);

/// Whether a policy that has revisions is not known, and may only not have been reported: it is unknown for a short time, or no API server
/// has said yet that it does not exist. A watch that leaves it out must not be enough to end its enforcement.
pub(super) fn may_exist(uid: &str, world: &World, memory: &mut Memory, now: Now) -> bool {
    if world.policies.contains_key(uid) {
        return false;
    }
    let since = *memory.orphans.entry(uid.to_owned()).or_insert(now.instant);
    now.instant < since + UNKNOWN_FOR || !memory.gone.contains(uid)
}

/// Forgets since when webhooks belonged to no known group, except for those that still do.
pub(super) fn retain_strays(world: &World, is_stray: impl Fn(&WebhookView) -> bool, memory: &mut Memory) {
    let strays = world.webhooks.values().filter(|webhook| is_stray(webhook));
    let strays: BTreeSet<_> = strays.map(|webhook| &webhook.uid).collect();
    memory.strays.retain(|uid, _| strays.contains(uid));
}

/// Whether a webhook has belonged to no known group for long. Its policy and its revision may only not have been reported: after a restore of
/// etcd, webhooks may be listed first, and all of them are as they were earlier.
pub(super) fn is_long_stray(webhook: &WebhookView, memory: &mut Memory, decision: &mut Decision) -> bool {
    let since = *memory.strays.entry(webhook.uid.clone()).or_insert(decision.now.instant);
    decision.has_passed(since, UNKNOWN_FOR)
}
