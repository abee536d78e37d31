//! Waits for conditions.

use std::fmt::{Debug, Display};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which a condition is checked at first.
const QUICK: Duration = Duration::from_millis(20);

/// The longest interval: looking often takes the time of what is waited for, and several tests wait at once.
const SLOW: Duration = Duration::from_millis(100);

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
        thread::sleep(pace(start.elapsed()));
    }
}

/// The interval after this much of a wait: a wait becomes longer by a tenth at most.
fn pace(waited: Duration) -> Duration {
    (waited / 10).clamp(QUICK, SLOW)
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
        thread::sleep(QUICK);
    }
}

/// The same as [`never`] for what lasts once it has happened, for instance an event or another resource version. It looks less often, and
/// once more in the end.
///
/// # Panics
/// When `look` returns something.
pub fn never_lasting<T: Debug>(time: Duration, what: &str, mut look: impl FnMut() -> Option<T>) {
    let start = Instant::now();
    loop {
        let is_last = start.elapsed() >= time;
        if let Some(found) = look() {
            panic!("{what} must not happen: {found:?}");
        }
        if is_last {
            return;
        }
        thread::sleep(SLOW);
    }
}

/// Sets a flag when it is dropped, so that other threads end even if the test fails.
pub struct StopOnDrop<'f>(pub &'f AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "an end must not happen: 5")]
    fn what_lasts_is_seen_in_the_end() {
        let start = Instant::now();
        let time = Duration::from_millis(250);
        never_lasting(time, "an end", || (start.elapsed() >= time).then_some(5));
    }

    #[test]
    fn a_long_wait_looks_less_often() {
        let after = |millis| pace(Duration::from_millis(millis)).as_millis();
        assert_eq!([after(0), after(200), after(500), after(1000), after(60_000)], [20, 20, 50, 100, 100]);
    }
}
