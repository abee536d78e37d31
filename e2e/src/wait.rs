//! Waiting for conditions, with limits wide enough for a busy machine.

use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for anything that should happen soon. Wide, as debug builds of several installations may share two cores; who
/// waits goes on as soon as it happens.
pub const LIMIT: Duration = Duration::from_secs(90);

/// How often a condition is looked at.
const PACE: Duration = Duration::from_millis(50);

/// Looks until there is something, [`LIMIT`] at most.
///
/// # Panics
/// When the limit passes; `what` completes "waited in vain for …".
pub fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    eventually_within(LIMIT, what, look)
}

/// [`eventually`] with a limit of the test's own.
///
/// # Panics
/// When the limit passes.
pub fn eventually_within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < limit, "waited in vain for {what}, {limit:?} long");
        thread::sleep(PACE);
    }
}

/// Looks for a while and fails when there is something: for what must not happen. The time is always spent whole, so it is
/// short.
///
/// # Panics
/// When `look` finds something.
pub fn never<T: std::fmt::Debug>(time: Duration, what: &str, mut look: impl FnMut() -> Option<T>) {
    let start = Instant::now();
    while start.elapsed() < time {
        if let Some(found) = look() {
            panic!("{what} must not happen: {found:?}");
        }
        thread::sleep(PACE);
    }
}
