//! The history of the newest generations: whether each was served, or why not. Pure.

use jiff::Timestamp;
use portcullis_api::{HistoryEntry, PolicyStatus, Resolved};
use portcullis_contract::Digest;

use super::aggregate::Aggregate;
use crate::facts::to_second;
use crate::message;

/// The entries so far, newest first, with the entry of the newest generation added or updated. An entry has the time when its
/// generation was first served everywhere or, if it never was, first seen. Once served, it stays marked as served.
pub(super) fn of(
    aggregate: &Aggregate<'_>,
    previous: Option<&PolicyStatus>,
    digest: Option<Digest>,
    last_served: Option<&Resolved>,
    now: Timestamp,
) -> Vec<HistoryEntry> {
    let generation = aggregate.facts.generation;
    let mut entries = previous.and_then(|previous| previous.history.clone()).unwrap_or_default();
    let last = entries.iter().position(|entry| entry.generation == generation).map(|at| entries.remove(at));
    let was_served = last.as_ref().is_some_and(|last| last.served);
    let served = was_served || aggregate.is_served();
    let reason =
        if aggregate.bad.is_empty() { aggregate.reason().to_owned() } else { message::joint_reason(&aggregate.bad) };
    entries.insert(
        0,
        HistoryEntry {
            generation,
            digest: digest.or_else(|| last.as_ref().and_then(|last| last.digest)),
            time: last.filter(|_| served == was_served).map_or_else(|| to_second(now), |last| last.time),
            served,
            reason: (!served).then_some(reason),
        },
    );
    let older = entries.iter_mut().filter(|entry| entry.generation != generation && !entry.served);
    for entry in older.filter(|entry| last_served.is_some_and(|served| served.generation == entry.generation)) {
        // This generation served everywhere only after a newer one had come and failed.
        *entry = HistoryEntry { served: true, reason: None, time: to_second(now), ..entry.clone() };
    }
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.generation));
    entries.dedup_by_key(|entry| entry.generation);
    entries.truncate(PolicyStatus::MAX_HISTORY);
    entries
}
