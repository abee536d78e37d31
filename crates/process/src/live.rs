//! Liveness: a program is alive while its own loops turn.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use portcullis_util::lock;

/// The loops of a program, each with the longest time between two turns.
#[derive(Clone)]
pub struct Liveness {
    start: Instant,
    beats: Arc<Mutex<Vec<Watched>>>,
}

struct Watched {
    name: &'static str,
    limit: Duration,
    age: Box<dyn Fn() -> Duration + Send>,
}

/// One loop's heartbeat.
#[derive(Clone)]
pub struct Beat {
    start: Instant,
    last_millis: Arc<AtomicU64>,
}

impl Default for Liveness {
    fn default() -> Self {
        Self { start: Instant::now(), beats: Arc::default() }
    }
}

impl Liveness {
    /// Adds a loop that turns at least once every `limit`; it starts alive.
    pub fn beat(&self, name: &'static str, limit: Duration) -> Beat {
        let beat = Beat { start: self.start, last_millis: Arc::default() };
        beat.now();
        let watched = beat.clone();
        self.watch(name, limit, move || watched.age());
        beat
    }

    /// Adds a loop whose age is known elsewhere, for instance the engine's clock.
    pub fn watch(&self, name: &'static str, limit: Duration, age: impl Fn() -> Duration + Send + 'static) {
        let watched = Watched { name, limit, age: Box::new(age) };
        lock(&self.beats).push(watched);
    }

    /// Every loop with its name, whether it turns, and how long ago it last did.
    pub fn checks(&self) -> Vec<(&'static str, bool, Duration)> {
        let beats = lock(&self.beats);
        beats
            .iter()
            .map(|watched| {
                let age = (watched.age)();
                (watched.name, age <= watched.limit, age)
            })
            .collect()
    }
}

impl Beat {
    /// Notes that the loop has turned.
    pub fn now(&self) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_millis.store(millis, Ordering::Relaxed);
    }

    fn age(&self) -> Duration {
        self.start.elapsed().saturating_sub(Duration::from_millis(self.last_millis.load(Ordering::Relaxed)))
    }
}
