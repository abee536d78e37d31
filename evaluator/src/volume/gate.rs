//! The start gate, which keeps a fresh replica out of rotation until its first manifest is served as well as it can be.
//!
//! Its limit is one on the time without progress: a pod that fetches and compiles one module after the other replaces no pod that serves
//! them all, and a source that is down holds up no rollout. Each tenant's progress counts for its own policies. A namespace that is the
//! last one is not waited for beyond the limit, or its hundreds of slow modules would keep all others from a new replica.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use portcullis_contract::{PolicyId, Tenant};
use portcullis_process::Latch;

/// How many times its limit the gate stays closed at most, whatever progress there is.
const MOST: u32 = 10;
/// The same where only namespaces are waited for: a tenant may have several, whose slow modules would keep all others from a new replica for long.
const MOST_OF_NAMESPACES: u32 = 3;

/// The gate.
pub(super) struct Gate {
    ready: Latch,
    limit: Duration,
    first: Option<Awaited>,
}

/// What the gate waits for.
struct Awaited {
    policies: HashSet<PolicyId>,
    begun: Instant,
    tenants: HashMap<Tenant, Progress>,
}

/// How far the policies of one tenant are.
struct Progress {
    /// The fewest that were not settled.
    left: usize,
    /// How long they are waited for.
    until: Instant,
}

impl Gate {
    pub(super) fn new(ready: Latch, limit: Duration) -> Self {
        Self { ready, limit, first: None }
    }

    /// Notes the policies of a manifest to wait for. Only those of the first manifest count.
    pub(super) fn first_manifest(&mut self, now: Instant, policies: impl FnOnce() -> HashSet<PolicyId>) {
        let until = now + self.limit;
        self.first.get_or_insert_with(|| {
            let policies = policies();
            let tenants = by_tenant(policies.iter()).into_iter();
            let tenants = tenants.map(|(tenant, left)| (tenant, Progress { left, until })).collect();
            Awaited { policies, begun: now, tenants }
        });
    }

    /// Opens the gate when its time has come, and says whether it is open. `waiting` says which of these policies may still load.
    pub(super) fn is_open<'p>(
        &mut self,
        now: Instant,
        waiting: impl FnOnce(&HashSet<PolicyId>) -> Vec<&'p PolicyId>,
    ) -> bool {
        if self.ready.is_released() {
            return true;
        }
        let Some(first) = &mut self.first else { return false };
        let left = by_tenant(waiting(&first.policies).into_iter());
        if first.waits(now, self.limit, &left) {
            return false;
        }
        self.ready.release();
        true
    }
}

impl Awaited {
    /// Whether the gate stays closed, where so many policies of each tenant may still load.
    fn waits(&mut self, now: Instant, limit: Duration, left: &HashMap<Tenant, usize>) -> bool {
        let (mut cluster, mut namespaces) = (false, 0);
        for (tenant, progress) in &mut self.tenants {
            let left = left.get(tenant).copied().unwrap_or(0);
            if left < progress.left {
                *progress = Progress { left, until: now + limit };
            }
            let waits = left > 0 && now < progress.until;
            match tenant {
                Tenant::Cluster => cluster = waits,
                Tenant::Namespace(_) => namespaces += usize::from(waits),
            }
        }
        let most = match (cluster, namespaces) {
            (true, _) => MOST,
            (false, 2..) => MOST_OF_NAMESPACES,
            _ => 1,
        };
        (cluster || namespaces > 0) && now < self.begun + limit * most
    }
}

fn by_tenant<'p>(policies: impl Iterator<Item = &'p PolicyId>) -> HashMap<Tenant, usize> {
    let mut counts = HashMap::new();
    for id in policies {
        *counts.entry(Tenant::of(id)).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);
    const SOON: Duration = Duration::from_secs(59);

    fn gate() -> Gate {
        Gate::new(Latch::default(), LIMIT)
    }

    fn ids(owner: &str, policies: usize) -> Vec<PolicyId> {
        (0..policies).map(|number| format!("{owner}/{number}").parse().expect("an id")).collect()
    }

    /// A gate that waits for these policies.
    fn waiting(now: Instant, policies: &[&[PolicyId]]) -> Gate {
        let mut gate = gate();
        gate.first_manifest(now, || policies.concat().into_iter().collect());
        gate
    }

    /// Whether it is open while these policies may still load.
    fn is_open(gate: &mut Gate, now: Instant, left: &[&[PolicyId]]) -> bool {
        gate.is_open(now, |_| left.iter().copied().flatten().collect())
    }

    #[test]
    fn never_open_without_a_manifest() {
        assert!(!is_open(&mut gate(), Instant::now() + LIMIT, &[]));
    }

    #[test]
    fn open_when_nothing_is_waited_for() {
        let (now, policies) = (Instant::now(), ids("cluster", 1));
        let mut gate = waiting(now, &[&policies]);
        assert!(!is_open(&mut gate, now, &[&policies]));
        assert!(is_open(&mut gate, now, &[]));
        assert!(is_open(&mut gate, now, &[&policies]), "a gate does not close again");
        assert!(is_open(&mut waiting(now, &[]), now, &[]));
    }

    #[test]
    fn open_after_its_time_whatever_is_missing() {
        let (now, policies) = (Instant::now(), ids("cluster", 1));
        let mut gate = waiting(now, &[&policies]);
        assert!(!is_open(&mut gate, now + SOON, &[&policies]));
        assert!(is_open(&mut gate, now + LIMIT, &[&policies]));
    }

    #[test]
    fn each_policy_that_is_settled_begins_the_time_again() {
        let (mut now, policies) = (Instant::now(), ids("cluster", 4));
        let mut gate = waiting(now, &[&policies]);
        for left in (1..4).rev() {
            now += SOON;
            assert!(!is_open(&mut gate, now, &[&policies[..left]]), "{left}");
        }
        // A policy that is not settled any longer, and is again, is no progress.
        assert!(!is_open(&mut gate, now + LIMIT / 2, &[&policies[..2]]));
        assert!(!is_open(&mut gate, now + LIMIT / 2, &[&policies[..1]]));
        assert!(is_open(&mut gate, now + LIMIT, &[&policies[..1]]));
    }

    #[test]
    fn it_is_not_closed_for_ever() {
        let (begun, policies) = (Instant::now(), ids("cluster", 100));
        let mut gate = waiting(begun, &[&policies]);
        let opened = (1..100).find(|&n| is_open(&mut gate, begun + SOON * n, &[&policies[..100 - n as usize]]));
        assert_eq!(opened, Some(11));
    }

    #[test]
    fn progress_of_one_tenant_is_not_that_of_another() {
        let (begun, stuck, moving) = (Instant::now(), ids("cluster", 1), ids("namespaced/a", 9));
        let mut gate = waiting(begun, &[&stuck, &moving]);
        assert!(!is_open(&mut gate, begun + SOON, &[&stuck, &moving[..8]]));
        assert!(is_open(&mut gate, begun + LIMIT, &[&stuck, &moving[..7]]), "and no namespace is waited for alone");
    }

    #[test]
    fn a_namespace_is_waited_for_as_long_as_others_are() {
        let (begun, one, other) = (Instant::now(), ids("namespaced/a", 9), ids("namespaced/b", 3));
        let mut gate = waiting(begun, &[&one, &other]);
        assert!(!is_open(&mut gate, begun + SOON, &[&one[..8], &other[..2]]));
        assert!(!is_open(&mut gate, begun + SOON * 2, &[&one[..7], &other[..1]]));
        assert!(is_open(&mut gate, begun + SOON * 2, &[&one[..7]]));
    }

    #[test]
    fn two_namespaces_are_not_waited_for_as_long_as_policies_of_the_cluster() {
        let (begun, one, other) = (Instant::now(), ids("namespaced/a", 9), ids("namespaced/b", 9));
        let mut gate = waiting(begun, &[&one, &other]);
        for n in 1..=3 {
            let left = 9 - n as usize;
            assert!(!is_open(&mut gate, begun + SOON * n, &[&one[..left], &other[..left]]), "{n}");
        }
        assert!(is_open(&mut gate, begun + LIMIT * 3, &[&one[..6], &other[..6]]));
    }
}
