//! A cluster for tests that disturb others, and each other: they have it one after the other.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard};
use std::thread;

use crate::{Cluster, Options, lock};

/// A cluster for a `static`, which one test has to itself at a time, and the next one gets when it has passed. It starts with the first
/// turn and ends with the process.
pub struct Turns {
    options: fn() -> Options,
    cluster: Mutex<Option<Cluster>>,
}

/// The turn of a test. Declare it before all that uses the cluster, so that it is dropped last. When the test fails, the cluster ends with
/// it, since much may be left in it, and the next test gets a new one.
pub struct Turn<'a>(MutexGuard<'a, Option<Cluster>>);

impl Turns {
    /// Turns on a cluster of this kind.
    pub const fn new(options: fn() -> Options) -> Self {
        Self { options, cluster: Mutex::new(None) }
    }

    /// Waits until no other test has the cluster.
    ///
    /// # Panics
    /// When the cluster cannot be started.
    pub fn take(&self) -> Turn<'_> {
        let mut cluster = lock(&self.cluster);
        if cluster.is_none() {
            *cluster = Some(Cluster::start(&(self.options)()).unwrap_or_else(|error| panic!("{error}")));
        }
        Turn(cluster)
    }
}

impl Deref for Turn<'_> {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.0.as_ref().expect("it is there until the turn is over")
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            *self.0 = None;
        }
    }
}
