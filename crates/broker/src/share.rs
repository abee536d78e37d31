//! How policies share the broker: a policy, a namespace and all together have a number of calls at the same time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use portcullis_contract::{PolicyId, Tenant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Calls of one policy at the same time.
const POLICY: usize = 8;
/// Calls of one namespace at the same time; ClusterPolicies together count as one.
const TENANT: usize = 24;
/// Calls of all at the same time.
const ALL: usize = 96;

/// A number of permits for each key. Keys of which nobody holds a permit are forgotten.
pub struct KeyedPermits<K> {
    keys: Mutex<HashMap<K, Arc<Semaphore>>>,
    permits: usize,
}

/// The shares.
pub(crate) struct Shares {
    policies: KeyedPermits<PolicyId>,
    tenants: KeyedPermits<Tenant>,
    all: Arc<Semaphore>,
}

/// The right to work on one call.
pub(crate) struct Share {
    _permits: [OwnedSemaphorePermit; 3],
}

impl Default for Shares {
    fn default() -> Self {
        Self {
            policies: KeyedPermits::new(POLICY),
            tenants: KeyedPermits::new(TENANT),
            all: Arc::new(Semaphore::new(ALL)),
        }
    }
}

impl Shares {
    /// Waits for a share. Who waits for its own policy or namespace keeps no other waiting.
    pub(crate) async fn take(&self, policy: &PolicyId) -> Share {
        let own = [self.policies.take(policy).await, self.tenants.take(&Tenant::of(policy)).await];
        let all = Arc::clone(&self.all).acquire_owned().await.expect("it is never closed");
        let [policy, tenant] = own;
        Share { _permits: [policy, tenant, all] }
    }
}

impl<K: Clone + Eq + Hash> KeyedPermits<K> {
    /// This many for each key.
    pub fn new(permits: usize) -> Self {
        Self { keys: Mutex::default(), permits }
    }

    /// Waits for a permit of a key.
    pub async fn take(&self, key: &K) -> OwnedSemaphorePermit {
        self.of(key).acquire_owned().await.expect("it is never closed")
    }

    fn of(&self, key: &K) -> Arc<Semaphore> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
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

    fn id(text: &str) -> PolicyId {
        text.parse().expect("an id")
    }

    fn take(shares: &Shares, policy: &str) -> Option<Share> {
        shares.take(&id(policy)).now_or_never()
    }

    #[test]
    fn a_flood_of_one_policy_or_namespace_leaves_room_for_others() {
        let shares = Shares::default();
        let flood: Vec<_> = (0..POLICY).map(|_| take(&shares, "namespaced/a/flood").expect("room")).collect();
        assert!(take(&shares, "namespaced/a/flood").is_none());
        let more: Vec<_> = (0..100).filter_map(|n| take(&shares, &format!("namespaced/a/p{n}"))).collect();
        assert_eq!(flood.len() + more.len(), TENANT);
        assert!(take(&shares, "namespaced/b/other").is_some() && take(&shares, "cluster/c").is_some());
        drop((flood, more));
        assert!(take(&shares, "namespaced/a/flood").is_some() && take(&shares, "cluster/new").is_some());
        assert!(shares.policies.keys.lock().expect("not poisoned").len() < 5, "what nobody holds is forgotten");
    }
}
