//! A cluster for tests that disturb others, and each other: they have it one after the other.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard};
use std::thread;

use crate::{Cluster, Options, lock};

/// A cluster for a `static`, which one test has to itself at a time, and the next one gets when it has passed. It starts when it is locked
/// for the first time and ends with the process.
pub struct ExclusiveCluster {
    options: fn() -> Options,
    cluster: Mutex<Option<Cluster>>,
}

/// Keeps other tests from the cluster until it is dropped. Declare it before all that uses the cluster, so that it is dropped last. When the
/// test fails, the cluster ends with it, since much may be left in it, and the next test gets a new one.
pub struct ClusterGuard<'a>(MutexGuard<'a, Option<Cluster>>);

impl ExclusiveCluster {
    /// A cluster with these options, which is not started yet.
    pub const fn new(options: fn() -> Options) -> Self {
        Self { options, cluster: Mutex::new(None) }
    }

    /// Waits until no other test has the cluster.
    ///
    /// # Panics
    /// When the cluster cannot be started.
    pub fn lock(&self) -> ClusterGuard<'_> {
        let mut cluster = lock(&self.cluster);
        if cluster.is_none() {
            *cluster = Some(Cluster::start(&(self.options)()).unwrap_or_else(|error| panic!("{error}")));
        }
        ClusterGuard(cluster)
    }
}

impl Deref for ClusterGuard<'_> {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.0.as_ref().expect("it is there until the guard is dropped")
    }
}

impl Drop for ClusterGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            *self.0 = None;
        }
    }
}
