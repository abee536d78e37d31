//! Waits for conditions, with time limits that are long enough for a busy machine.

use std::iter;
use std::sync::{Mutex, MutexGuard, Once};
use std::thread;
use std::time::Duration;

use portcullis_testkit::lock;
use rustix::process::{Resource, Rlimit};

use crate::Moment;

/// Longest wait for anything that should happen soon. It is long, because debug builds of several pods may share two slow cores;
/// a wait ends as soon as the condition holds.
pub const LIMIT: Duration = Duration::from_secs(120);

/// How many times longer than [`LIMIT`] a wait may take on a machine that is busy or stands still.
const LONGER: u32 = 3;

/// The interval at which a condition is checked.
const PACE: Duration = Duration::from_millis(20);

/// A number of descriptors that is enough for every test.
const MANY: u64 = 1 << 16;

/// Looks until `look` returns something, for at most [`LIMIT`], and longer if the machine is busy.
///
/// # Panics
/// When the limit passes; `what` completes "waited in vain for …".
pub fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    eventually_or(what, look, String::new)
}

/// The same; `instead` describes for a failed test what was seen instead.
pub(crate) fn eventually_or<T>(what: &str, mut look: impl FnMut() -> Option<T>, instead: impl FnOnce() -> String) -> T {
    let since = Moment::now(iter::empty());
    loop {
        if let Some(found) = look() {
            return found;
        }
        let waited = since.age();
        if waited > LIMIT && waited > since.allowed(LIMIT, &Moment::now(iter::empty())).min(LONGER * LIMIT) {
            panic!("waited in vain for {what}, {waited:?} long{}", instead());
        }
        thread::sleep(PACE);
    }
}

/// A lock for tests that use most of the machine: only one of them runs at a time, beside light ones.
pub fn heavy() -> MutexGuard<'static, ()> {
    static HEAVY: Mutex<()> = Mutex::new(());
    allow_many_connections();
    lock(&HEAVY)
}

/// Lets the test, and the programs that it starts, open thousands of connections.
pub fn allow_many_connections() {
    static DESCRIPTORS: Once = Once::new();
    DESCRIPTORS.call_once(|| {
        let limit = rustix::process::getrlimit(Resource::Nofile);
        let current = limit.maximum.map_or(MANY, |maximum| maximum.min(MANY));
        // If this is refused, a test that needs more descriptors fails with its own message.
        let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit });
    });
}
