//! Waiting for conditions, and for locks.

use std::fmt::{Debug, Display};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often a condition is looked at.
const PACE: Duration = Duration::from_millis(20);

/// Looks until there is something, for `limit` at most.
///
/// # Panics
/// When the limit passes; `what` completes "waited in vain for …".
pub fn eventually_within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    eventually_seen(limit, what, || look().ok_or("nothing"))
}

/// Looks until what is seen is right, for `limit` at most. The error is what was seen instead.
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

/// Looks for a while and fails when there is something: for what must not happen. This time is always spent whole, so keep it
/// short.
///
/// # Panics
/// When `look` finds something.
pub fn never<T: Debug>(time: Duration, what: &str, mut look: impl FnMut() -> Option<T>) {
    let start = Instant::now();
    while start.elapsed() < time {
        if let Some(found) = look() {
            panic!("{what} must not happen: {found:?}");
        }
        thread::sleep(PACE);
    }
}

/// Locks what a thread that failed may have held: the failure is that thread's to tell.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
