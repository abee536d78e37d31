//! How many requests may be under way: a limit for the replica, which policies and their tenants share.

use std::sync::Arc;

use crate::fair::claimant::Claimant;
use crate::fair::policies::Claim;
use crate::fair::pool::{PolicyPermit, PolicyPool};

/// Counts the requests under way. A request that waits for an instance or sleeps in its guest counts as well, so without shares one tenant
/// could keep out the requests of all others.
pub(crate) struct UnderWay {
    requests: Arc<PolicyPool>,
    limit: u32,
}

impl UnderWay {
    /// A count of at most `limit` requests.
    pub(crate) fn new(limit: u32) -> Self {
        // There is no queue: a request that finds no room is answered at once.
        Self { requests: PolicyPool::new(limit.into(), 1, 0), limit }
    }

    /// Counts a request for `who` until the permit is dropped. `None` if its policy, its tenant or the replica has no room for one more.
    pub(crate) fn enter(&self, who: &Arc<Claimant>) -> Option<PolicyPermit> {
        self.requests.try_take(&Claim { who: Arc::clone(who), amount: 1, has: 0 })
    }

    /// The limit of the replica.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(id: &str) -> Arc<Claimant> {
        Claimant::new(&id.parse().expect("an id"))
    }

    /// The permits of as many requests as get in, of these policies in turn.
    fn flood(under_way: &UnderWay, ids: &[impl AsRef<str>]) -> Vec<PolicyPermit> {
        let claimants: Vec<_> = ids.iter().map(|id| who(id.as_ref())).collect();
        (0..10_000).filter_map(|number: usize| under_way.enter(&claimants[number % claimants.len()])).collect()
    }

    #[test]
    fn a_count_ends_with_its_permit() {
        let under_way = UnderWay::new(1);
        let first = under_way.enter(&who("cluster/a"));
        assert!(first.is_some());
        assert!(under_way.enter(&who("cluster/a")).is_none() && under_way.enter(&who("cluster/b")).is_none());
        drop(first);
        assert!(under_way.enter(&who("cluster/b")).is_some());
    }

    #[test]
    fn z22_a_namespace_that_floods_leaves_room_for_all_others() {
        let under_way = UnderWay::new(2048);
        let policies: Vec<_> = (0..20).map(|number| format!("namespaced/team-a/{number}")).collect();
        let held = flood(&under_way, &policies);
        assert_eq!(held.len(), 1024, "as many as stay free");
        // Those who come later get in, also when they flood.
        let cluster = flood(&under_way, &["cluster/a", "cluster/b"]);
        assert_eq!(cluster.len(), 682, "ClusterPolicies have the share of two namespaces");
        assert!(under_way.enter(&who("namespaced/team-b/a")).is_some());
        assert!(under_way.enter(&who("namespaced/team-a/0")).is_none());
        drop((held, cluster));
        assert_eq!(flood(&under_way, &["namespaced/team-a/0"]).len(), 1024, "all came back");
    }

    #[test]
    fn z22_requests_of_many_namespaces_that_flood_leave_room_for_one_more() {
        let under_way = UnderWay::new(2048);
        let policies: Vec<_> = (0..100).map(|number| format!("namespaced/team-{number}/a")).collect();
        let _held = flood(&under_way, &policies);
        assert!(under_way.enter(&who("namespaced/new/a")).is_some());
        assert!(under_way.enter(&who("cluster/a")).is_some());
    }
}
