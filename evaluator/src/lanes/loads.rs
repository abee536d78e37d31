//! When a load may begin: there are permits for a part of the instances, and one turn for candidates that had too little processor time before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_contract::Tenant;

use super::{GRACE, InstancePermit, LaneError, Lanes, QUEUE};
use crate::fair::claimant::Claimant;
use crate::fair::policies::Claim;
use crate::fair::pool::{NothingLeft, Permit, PolicyPermit, PolicyPool, TurnPool};
use crate::fair::turns::TurnClaim;

/// What loads wait for. Stored policies and those that are only checked have one each.
pub(super) struct Loads {
    permits: Arc<PolicyPool>,
    /// Candidates that had too little processor time are tried again one at a time, in turns of their tenants: together they would take it from
    /// each other again.
    alone: Arc<TurnPool<Tenant>>,
}

/// What a load holds while it runs.
pub(super) struct LoadPermits {
    _instance: InstancePermit,
    _permit: Option<PolicyPermit>,
    _turn: Option<Permit<Tenant>>,
}

impl Loads {
    /// At most so many candidates at the same time, and one more that was starved before.
    pub(super) fn new(most: usize) -> Self {
        let permits = PolicyPool::new(u64::try_from(most).unwrap_or(u64::MAX), 1, QUEUE);
        Self { permits, alone: TurnPool::new(1, 1) }
    }
}

impl Lanes {
    /// Waits until a load of one module, which then may take `timeout`, may begin. `was_starved` says whether an earlier try had too little
    /// processor time.
    pub(super) async fn admit_load(
        &self,
        who: &Arc<Claimant>,
        timeout: Duration,
        was_starved: bool,
    ) -> Result<LoadPermits, LaneError> {
        let one = Claim { who: Arc::clone(who), amount: 1, has: 0 };
        let full = |_| LaneError::Overloaded { text: "too many policies are being loaded on this replica".to_owned() };
        let loads = if who.policy.is_check() { &self.trying } else { &self.loading };
        // Without a deadline: the manifest limits the number of loads, and no request waits for them.
        let permit = loads.permits.take(&one, None).await.map_err(full)?;
        if !was_starved {
            let instance = self.instances.take(&one, None).await.map_err(full)?;
            return Ok(LoadPermits { _instance: self.in_use(instance), _permit: Some(permit), _turn: None });
        }
        // The permit was only its place behind the first tries of its tenant, which would take its processor time. Until its turn comes, which may
        // take long, it holds nothing: neither a permit, which first tries need, nor an instance, which requests need.
        drop(permit);
        let owner = who.tenant.clone();
        let claim = TurnClaim { is_preferred: owner == Tenant::Cluster, owner, amount: 1 };
        loop {
            let turn = loads.alone.take(&claim, None).await.map_err(full)?;
            // Requests of the same tenant may have all of its instances. Then the turn goes on to the next tenant, after no longer than a load may
            // take. So a load that has the turn waits for nothing without a limit, and no load that waits for the turn holds what it waits for.
            match self.instances.take(&one, Some(Instant::now() + timeout + GRACE)).await {
                Ok(instance) => {
                    return Ok(LoadPermits { _instance: self.in_use(instance), _permit: None, _turn: Some(turn) });
                }
                Err(NothingLeft::TooLate) => drop(turn),
                Err(error) => return Err(full(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::iter::from_fn;

    use portcullis_contract::PolicyId;
    use tokio::sync::Semaphore;
    use tokio::sync::mpsc::unbounded_channel;
    use tokio::task::yield_now;
    use tokio::time::timeout;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::lanes::LaneLimits;
    use crate::memory::MemoryPlan;
    use crate::metrics::Metrics;

    /// A time that nothing here takes.
    const LONG: Duration = Duration::from_secs(60);

    fn lanes(instances: usize) -> (Arc<Lanes>, Metrics) {
        let metrics = Metrics::new().expect("registers");
        let lanes = Lanes::new(LaneLimits::new(instances, 1), MemoryPlan::unlimited(), &metrics).expect("starts");
        (lanes, metrics)
    }

    fn id(id: &str) -> PolicyId {
        id.parse().expect("an id")
    }

    type Load = AbortOnDropHandle<Result<u8, LaneError>>;

    /// A load that never ends.
    fn hangs(lanes: &Arc<Lanes>, policy: PolicyId, was_starved: bool) -> Load {
        let (lanes, who) = (Arc::clone(lanes), Claimant::new(&policy));
        let load = async move { lanes.load(&who, LONG * 10, was_starved, |_| pending::<u8>()).await.0 };
        AbortOnDropHandle::new(tokio::spawn(load))
    }

    /// A load of a candidate that was starved, which ends at once when it has its turn.
    fn starved(lanes: &Arc<Lanes>, policy: PolicyId, limit: Duration) -> Load {
        let (lanes, who) = (Arc::clone(lanes), Claimant::new(&policy));
        AbortOnDropHandle::new(tokio::spawn(async move { lanes.load(&who, limit, true, |_| ready(7)).await.0 }))
    }

    /// Lets all tasks go on until they wait.
    async fn settle() {
        for _ in 0..100 {
            yield_now().await;
        }
    }

    async fn is_done(load: Load) -> bool {
        timeout(LONG, load).await.is_ok_and(|ended| ended.expect("no panic") == Ok(7))
    }

    #[tokio::test]
    async fn starved_candidates_are_loaded_one_at_a_time_in_turns_of_their_tenants() {
        let (lanes, _metrics) = lanes(64);
        let (began, mut begins) = unbounded_channel();
        let go_on = Arc::new(Semaphore::new(0));
        let ids = ["namespaced/a/1", "namespaced/a/2", "namespaced/a/3", "namespaced/b/1", "cluster/c"];
        let _loads = ids.map(|name| {
            let (lanes, began, go_on) = (Arc::clone(&lanes), began.clone(), Arc::clone(&go_on));
            AbortOnDropHandle::new(tokio::spawn(async move {
                let run = |_| async move {
                    began.send(name).expect("it is waited for");
                    go_on.acquire().await.expect("it stays open").forget();
                };
                lanes.load(&Claimant::new(&id(name)), LONG * 10, true, run).await.0
            }))
        });
        let mut order = Vec::new();
        for _ in ids {
            order.push(timeout(LONG, begins.recv()).await.expect("the next one begins"));
            settle().await;
            assert!(begins.try_recv().is_err(), "one is alone: {order:?}");
            go_on.add_permits(1);
        }
        let order: Vec<_> = order.into_iter().flatten().collect();
        assert_eq!(order, ["namespaced/a/1", "cluster/c", "namespaced/b/1", "namespaced/a/2", "namespaced/a/3"]);
    }

    #[tokio::test]
    async fn a_starved_candidate_that_waits_behind_its_own_tenant_keeps_no_other_from_its_turn() {
        let (lanes, metrics) = lanes(64);
        let flood: Vec<_> = (0..16).map(|n| hangs(&lanes, id(&format!("namespaced/a/{n}")), false)).collect();
        // Half of the permits are its share.
        while metrics.instances.get() < i64::try_from(lanes.limits.loading() / 2).expect("small") {
            yield_now().await;
        }
        let waits = starved(&lanes, id("namespaced/a/starved"), LONG);
        settle().await;
        assert!(is_done(starved(&lanes, id("cluster/x"), LONG)).await);
        assert!(!waits.is_finished());
        drop(flood);
        assert!(is_done(waits).await);
    }

    #[tokio::test]
    async fn who_waits_for_its_turn_holds_nothing() {
        let (lanes, metrics) = lanes(8);
        let _turn = hangs(&lanes, id("namespaced/a/hangs"), true);
        while metrics.instances.get() < 1 {
            yield_now().await;
        }
        let _waiting: Vec<_> = (0..64).map(|n| hangs(&lanes, id(&format!("namespaced/n{n}/a")), true)).collect();
        settle().await;
        assert_eq!(metrics.instances.get(), 1, "the others leave the instances to requests");
        let who = Claimant::new(&id("namespaced/b/first"));
        let first = lanes.load(&who, LONG, false, |_| ready(7));
        assert_eq!(timeout(LONG, first).await.expect("there is a permit").0, Ok(7));
    }

    #[tokio::test]
    async fn a_tenant_whose_requests_have_all_its_instances_keeps_no_other_from_its_turn() {
        let (lanes, _metrics) = lanes(8);
        let one = Claim { who: Claimant::new(&id("namespaced/a/busy")), amount: 1, has: 0 };
        let requests: Vec<_> = from_fn(|| lanes.instances.try_take(&one)).collect();
        assert_eq!(requests.len(), 4);
        let waits = starved(&lanes, id("namespaced/a/starved"), Duration::from_millis(1));
        // A policy that holds nothing would get one more.
        let more = Claim { who: Claimant::new(&id("namespaced/a/starved")), amount: 1, has: 0 };
        assert!(lanes.instances.try_take(&more).is_none());
        settle().await;
        assert!(is_done(starved(&lanes, id("cluster/x"), LONG)).await);
        assert!(!waits.is_finished());
        drop(requests);
        assert!(is_done(waits).await);
    }

    #[tokio::test]
    async fn a_starved_check_keeps_no_policy_of_the_installation_from_its_turn() {
        let (lanes, metrics) = lanes(64);
        let _check = hangs(&lanes, PolicyId::check(Some("a"), 1).expect("an id"), true);
        while metrics.instances.get() < 1 {
            yield_now().await;
        }
        assert!(is_done(starved(&lanes, id("namespaced/a/starved"), LONG)).await);
    }
}
