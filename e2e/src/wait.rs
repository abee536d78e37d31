//! Waits for conditions, with limits that are long enough for a busy machine.

use std::time::Duration;

use portcullis_testkit::eventually_within;

/// Longest wait for anything that should happen soon. It is long, because debug builds of several installations may share
/// two cores; a wait ends as soon as the condition holds.
pub const LIMIT: Duration = Duration::from_secs(180);

/// Looks until `look` returns something, for at most [`LIMIT`].
///
/// # Panics
/// When the limit passes; `what` completes "waited in vain for …".
pub fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    eventually_within(LIMIT, what, look)
}
