//! How policies share the broker: there is a limit of calls at the same time for a policy, for a namespace, and for all
//! together. The same goes for the part of a call that takes a processor.

use std::sync::Arc;

use portcullis_contract::{PolicyId, Tenant};
use portcullis_process::KeyedPermits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most calls at the same time.
pub(crate) const CALLS: Limits = Limits { policy: 8, tenant: 24, all: 96 };

/// How many there may be at the same time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The most of one policy.
    pub(crate) policy: usize,
    /// The most of one namespace; ClusterPolicies together count as one namespace.
    pub(crate) tenant: usize,
    /// The most of all policies.
    pub(crate) all: usize,
}

/// The shares.
pub(crate) struct Shares {
    policies: KeyedPermits<PolicyId>,
    tenants: KeyedPermits<Tenant>,
    all: Arc<Semaphore>,
}

/// The right to work on one call, or on a part of it.
pub(crate) struct Share {
    _permits: [OwnedSemaphorePermit; 3],
}

impl Shares {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            policies: KeyedPermits::new(limits.policy),
            tenants: KeyedPermits::new(limits.tenant),
            all: Arc::new(Semaphore::new(limits.all)),
        }
    }

    /// Waits for a share. A call that waits for the share of its policy or namespace holds none of the common share, so
    /// it does not hold up the others.
    pub(crate) async fn take(&self, policy: &PolicyId) -> Share {
        let own = [self.policies.take(policy).await, self.tenants.take(&Tenant::of(policy)).await];
        let all = Arc::clone(&self.all).acquire_owned().await.expect("it is never closed");
        let [policy, tenant] = own;
        Share { _permits: [policy, tenant, all] }
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
        let shares = Shares::new(CALLS);
        let flood: Vec<_> = (0..CALLS.policy).map(|_| take(&shares, "namespaced/a/flood").expect("room")).collect();
        assert!(take(&shares, "namespaced/a/flood").is_none());
        let more: Vec<_> = (0..100).filter_map(|n| take(&shares, &format!("namespaced/a/p{n}"))).collect();
        assert_eq!(flood.len() + more.len(), CALLS.tenant);
        assert!(take(&shares, "namespaced/b/other").is_some() && take(&shares, "cluster/c").is_some());
        drop((flood, more));
        assert!(take(&shares, "namespaced/a/flood").is_some() && take(&shares, "cluster/new").is_some());
    }
}
