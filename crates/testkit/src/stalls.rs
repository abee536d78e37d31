//! How long the machine itself stood still, which is not a fault of the tested programs.

use std::sync::{Arc, LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_util::lock;

/// How long the watching thread sleeps at a time.
const NAP: Duration = Duration::from_millis(20);
/// If the thread wakes up this late, that does not count as a stall.
const USUAL: Duration = Duration::from_millis(10);

/// The times in which this machine stood still or was busy with others: a thread that sleeps briefly again and again woke up too late.
/// Measurements of tests leave these times out ([`crate::Moment`]).
#[derive(Debug, Clone)]
pub struct Stalls(Arc<Mutex<Seen>>);

#[derive(Debug)]
struct Seen {
    /// When the watching thread should wake up next.
    due: Instant,
    /// Each time that it woke up too late: when it should have woken up, and when it did.
    late: Vec<(Instant, Instant)>,
}

impl Stalls {
    /// The stalls of this machine, which is watched from the first call on.
    ///
    /// # Panics
    /// When no thread can be started.
    pub fn watch() -> &'static Self {
        static STALLS: LazyLock<Stalls> = LazyLock::new(|| {
            let seen = Arc::new(Mutex::new(Seen { due: Instant::now() + NAP, late: Vec::new() }));
            let kept = Arc::clone(&seen);
            thread::Builder::new().name("stalls".into()).spawn(move || keep_watch(&kept)).expect("a thread");
            Stalls(seen)
        });
        &STALLS
    }

    /// How much of the time between two moments the machine stood still.
    pub fn lost(&self, from: Instant, to: Instant) -> Duration {
        lock(&self.0).lost(from, to, Instant::now())
    }
}

/// Sleeps and wakes up for as long as the test runs.
fn keep_watch(seen: &Mutex<Seen>) {
    loop {
        thread::sleep(NAP);
        lock(seen).woke(Instant::now());
    }
}

impl Seen {
    fn woke(&mut self, now: Instant) {
        if now.saturating_duration_since(self.due) > USUAL {
            self.late.push((self.due, now));
        }
        self.due = now + NAP;
    }

    fn lost(&self, from: Instant, to: Instant, now: Instant) -> Duration {
        // A stall may still go on, or may be over for the caller but not yet for the watching thread.
        let current = Some((self.due, now)).filter(|(due, now)| now.saturating_duration_since(*due) > USUAL);
        // The newest stalls are at the end.
        let late = self.late.iter().rev().copied().take_while(|(_, woke)| *woke > from);
        late.chain(current).map(|(due, woke)| woke.min(to).saturating_duration_since(due.max(from))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_of_a_stall_counts_that_lies_within_what_is_measured() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut seen = Seen { due: at(20), late: Vec::new() };
        seen.woke(at(25));
        assert_eq!(seen.lost(at(0), at(30), at(30)), Duration::ZERO, "a little late is usual");
        seen.woke(at(1045));
        assert_eq!(seen.lost(at(0), at(1045), at(1045)), Duration::from_secs(1));
        assert_eq!(seen.lost(at(545), at(645), at(1045)), Duration::from_millis(100));
        assert_eq!(seen.lost(at(1045), at(1060), at(1060)), Duration::ZERO);
        assert_eq!(seen.lost(at(1060), at(3065), at(3065)), Duration::from_secs(2), "a stall that goes on");
        seen.woke(at(3065));
        assert_eq!(seen.lost(at(0), at(4000), at(3070)), Duration::from_secs(3));
    }
}
