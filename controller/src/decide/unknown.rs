//! Policies of which there are revisions, and which no watch has reported.

use std::time::Duration;

use portcullis_process::Now;

use crate::memory::Memory;
use crate::world::World;

/// How long a policy must have been missing before its webhook and its revisions are deleted, as one watch may lag behind another.
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
