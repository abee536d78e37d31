//! How policies share the broker: there is a limit of questions that go to the network at the same time for a policy, for a namespace, and for
//! all together, and half of each for one registry. What is in memory needs no share. The same goes, without registries, for the part of a call
//! that takes a processor.

use std::collections::HashSet;
use std::hash::Hash;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use portcullis_contract::{PolicyId, Tenant};
use portcullis_process::KeyedPermits;
use tokio::sync::{OwnedSemaphorePermit, watch};

/// The most questions that go to the network at the same time.
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

impl Limits {
    /// The part of them for what goes to one registry: one that never answers leaves the rest to others.
    pub(crate) const fn of_host(self) -> Self {
        Self { policy: self.policy.div_ceil(2), tenant: self.tenant.div_ceil(2), all: self.all.div_ceil(2) }
    }
}

/// The shares.
pub(crate) struct Shares {
    whole: Permits<()>,
    of_hosts: Permits<String>,
}

/// The right to work on one question, or on a part of it.
pub(crate) struct Share {
    _permits: Vec<OwnedSemaphorePermit>,
}

/// The permits for each of something.
struct Permits<K> {
    policies: KeyedPermits<(PolicyId, K)>,
    tenants: KeyedPermits<(Tenant, K)>,
    all: KeyedPermits<K>,
}

impl<K: Clone + Eq + Hash> Permits<K> {
    fn new(limits: Limits) -> Self {
        Self {
            policies: KeyedPermits::new(limits.policy),
            tenants: KeyedPermits::new(limits.tenant),
            all: KeyedPermits::new(limits.all),
        }
    }

    /// Waits for the permits of a policy and of its namespace.
    async fn take_own(&self, policy: &PolicyId, key: &K) -> [OwnedSemaphorePermit; 2] {
        [
            self.policies.take(&(policy.clone(), key.clone())).await,
            self.tenants.take(&(Tenant::of(policy), key.clone())).await,
        ]
    }

    /// Waits for the common permit.
    async fn take_common(&self, key: &K) -> OwnedSemaphorePermit {
        self.all.take(key).await
    }
}

impl Shares {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { whole: Permits::new(limits), of_hosts: Permits::new(limits.of_host()) }
    }

    /// Waits for a share, for a question to a registry or to something else. Who waits for a permit of its policy or namespace holds none of the
    /// common ones, also none of a registry, so it does not hold up the others. All take in the same order, so no two wait for each other. What
    /// waits for a registry that others have filled holds a part of the share of its own policy and namespace: half of it at most, and when two
    /// registries are full, nothing is left anyway.
    pub(crate) async fn take(&self, policy: &PolicyId, registry: Option<&str>) -> Share {
        let registry = registry.map(str::to_owned);
        let mut permits = Vec::with_capacity(6);
        if let Some(registry) = &registry {
            permits.extend(self.of_hosts.take_own(policy, registry).await);
        }
        permits.extend(self.whole.take_own(policy, &()).await);
        if let Some(registry) = &registry {
            permits.push(self.of_hosts.take_common(registry).await);
        }
        permits.push(self.whole.take_common(&()).await);
        Share { _permits: permits }
    }

    /// As [`Self::take`], for any of the policies that ask, including those that begin to ask meanwhile.
    pub(crate) async fn take_of_any(&self, askers: &Askers, registry: Option<&str>) -> Share {
        let mut askers = askers.0.clone();
        let (mut known, mut shares) = (HashSet::new(), FuturesUnordered::new());
        loop {
            for policy in askers.borrow_and_update().iter() {
                if known.insert(policy.clone()) {
                    let policy = policy.clone();
                    shares.push(async move { self.take(&policy, registry).await });
                }
            }
            tokio::select! {
                Some(share) = shares.next() => return share,
                // The policy that asked last may be gone; another one that asked is left.
                Ok(()) = askers.changed() => {}
            }
        }
    }
}

/// The policies that ask the same question: at least one.
#[derive(Debug, Clone)]
pub(crate) struct Askers(watch::Receiver<Vec<PolicyId>>);

impl Askers {
    /// A list that may grow.
    pub(crate) fn of(policies: watch::Receiver<Vec<PolicyId>>) -> Self {
        Self(policies)
    }

    /// One policy alone.
    pub(crate) fn only(policy: &PolicyId) -> Self {
        Self(watch::channel(vec![policy.clone()]).1)
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
        shares.take(&id(policy), None).now_or_never()
    }

    fn take_of(shares: &Shares, policy: &str, registry: &str) -> Option<Share> {
        shares.take(&id(policy), Some(registry)).now_or_never()
    }

    #[test]
    fn a_registry_that_never_answers_leaves_shares_to_others() {
        let shares = Shares::new(CALLS);
        let silent: Vec<_> = (0..CALLS.policy).filter_map(|_| take_of(&shares, "cluster/a", "silent")).collect();
        assert_eq!(silent.len(), CALLS.policy / 2);
        assert!(take_of(&shares, "cluster/a", "healthy").is_some() && take(&shares, "cluster/a").is_some());
        let more: Vec<_> = (0..100).filter_map(|n| take_of(&shares, &format!("cluster/p{n}"), "silent")).collect();
        assert_eq!(silent.len() + more.len(), CALLS.tenant / 2, "and leaves shares to other ClusterPolicies");
        assert!(take_of(&shares, "cluster/new", "healthy").is_some() && take(&shares, "cluster/new").is_some());
        drop(silent);
        assert!(take_of(&shares, "cluster/a", "silent").is_some());
    }

    #[test]
    fn who_waits_for_the_share_of_its_own_namespace_holds_none_that_others_need() {
        let shares = Shares::new(Limits { policy: 2, tenant: 2, all: 4 });
        let _taken = ["h1", "h2"].map(|host| take_of(&shares, "namespaced/x/a", host).expect("free"));
        let policy = id("namespaced/x/b");
        let mut waiting = Box::pin(shares.take(&policy, Some("popular")));
        assert!(waiting.as_mut().now_or_never().is_none(), "the namespace has two");
        let others = ["namespaced/y/a", "namespaced/z/a"].map(|policy| take_of(&shares, policy, "popular"));
        assert!(others.iter().all(Option::is_some), "half of four are for one registry");
    }

    #[test]
    fn a_share_of_any_who_asks_will_do() {
        let shares = Shares::new(Limits { policy: 1, tenant: 1, all: 2 });
        let taken = take(&shares, "namespaced/a/x").expect("free");
        let (asking, asked) = watch::channel(vec![id("namespaced/a/x"), id("namespaced/a/y")]);
        let askers = Askers::of(asked);
        let mut share = Box::pin(shares.take_of_any(&askers, None));
        assert!(share.as_mut().now_or_never().is_none(), "the namespace has one");
        asking.send_modify(|askers| askers.push(id("namespaced/b/z")));
        assert!(share.now_or_never().is_some(), "another namespace asks the same");
        drop(taken);
        assert!(shares.take_of_any(&Askers::only(&id("namespaced/a/y")), None).now_or_never().is_some());
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
