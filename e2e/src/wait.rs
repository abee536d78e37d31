//! Waiting for conditions, with limits wide enough for a busy machine.

use std::time::Duration;

use portcullis_testkit::eventually_within;

/// Longest wait for anything that should happen soon. Wide, as debug builds of several installations may share two cores; a
/// wait ends as soon as it happens.
pub const LIMIT: Duration = Duration::from_secs(180);

/// Looks until there is something, [`LIMIT`] at most.
///
/// # Panics
/// When the limit passes; `what` completes "waited in vain for …".
pub fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    eventually_within(LIMIT, what, look)
}
