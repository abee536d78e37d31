//! A number of permits for each key, such as a user or a namespace.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use portcullis_util::lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A number of permits for each key. Keys without a permit in use are dropped.
pub struct KeyedPermits<K> {
    keys: Mutex<HashMap<K, Arc<Semaphore>>>,
    permits: usize,
}

impl<K: Clone + Eq + Hash> KeyedPermits<K> {
    /// This many permits for each key.
    pub fn new(permits: usize) -> Self {
        Self { keys: Mutex::default(), permits }
    }

    /// Waits for a permit of a key. Waiting tasks are served in the order in which they came.
    pub async fn take(&self, key: &K) -> OwnedSemaphorePermit {
        self.of(key).acquire_owned().await.expect("it is never closed")
    }

    /// A permit of a key, if one is free now.
    pub fn try_take(&self, key: &K) -> Option<OwnedSemaphorePermit> {
        self.of(key).try_acquire_owned().ok()
    }

    fn of(&self, key: &K) -> Arc<Semaphore> {
        let mut keys = lock(&self.keys);
        if let Some(found) = keys.get(key) {
            return Arc::clone(found);
        }
        keys.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
        Arc::clone(keys.entry(key.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.permits))))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn each_key_has_its_own_permits_and_idle_keys_are_forgotten() {
        let permits = KeyedPermits::new(2);
        let held: Vec<_> = (0..2).map(|_| permits.try_take(&"a").expect("free")).collect();
        assert!(permits.try_take(&"a").is_none() && permits.take(&"a").now_or_never().is_none());
        for key in ["b", "c", "d"] {
            assert!(permits.take(&key).now_or_never().is_some(), "{key} has permits of its own");
        }
        assert!(permits.keys.lock().expect("not poisoned").len() <= 2, "a, which is held, and the last of the others");
        drop(held);
        assert!(permits.try_take(&"a").is_some());
    }
}
