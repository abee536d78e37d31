//! Waits for conditions.

use std::fmt::{Debug, Display};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which a condition is checked.
const PACE: Duration = Duration::from_millis(20);

/// Looks until `look` returns something, for at most `limit`.
///
/// # Panics
/// When the limit passes; `what` completes "waited in vain for …".
pub fn eventually_within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    eventually_seen(limit, what, || look().ok_or("nothing"))
}

/// Looks until `look` succeeds, for at most `limit`. Its error is what was seen instead.
///
/// # Panics
/// When the limit passes; `what` completes "waited in vain for …", and what was seen last follows.
pub fn eventually_seen<T, E: Display>(limit: Duration, what: &str, mut look: impl FnMut() -> Result<T, E>) -> T {
    let start = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) => assert!(start.elapsed() < limit, "waited in vain for {what}, {limit:?} long; seen: {seen}"),
        }
        thread::sleep(PACE);
    }
}

/// Looks for `time`, and fails if `look` returns something: for things that must not happen. The whole time is always spent,
/// so keep it short.
///
/// # Panics
/// When `look` returns something.
pub fn never<T: Debug>(time: Duration, what: &str, mut look: impl FnMut() -> Option<T>) {
    let start = Instant::now();
    while start.elapsed() < time {
        if let Some(found) = look() {
            panic!("{what} must not happen: {found:?}");
        }
        thread::sleep(PACE);
    }
}
