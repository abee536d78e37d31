//! How much policies may log: a share for each policy, and one for each tenant, so that a namespace does not get more by writing more
//! policies.
//!
//! A share belongs to the policy and not to a generation or a member of a policy group, and it is kept after the policy is gone until it would
//! be whole again. So neither edits nor checks of policies that somebody applies give a tenant more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use portcullis_contract::{PolicyId, Tenant};
use portcullis_util::lock;

/// The share of a policy.
const POLICY: Rate = Rate { lines: 100.0, bytes: 16.0 * 1024.0, burst: 64.0 * 1024.0 };
/// The share of a tenant is this many times the share of a policy, and as many more as its weight says.
const TENANT: f64 = 2.0;

/// What may be logged in a second. At once, as many lines as in a second may be logged, and `burst` bytes.
#[derive(Debug, Clone, Copy)]
struct Rate {
    lines: f64,
    bytes: f64,
    burst: f64,
}

impl Rate {
    fn times(self, factor: f64) -> Self {
        Self { lines: self.lines * factor, bytes: self.bytes * factor, burst: self.burst * factor }
    }

    fn of(tenant: &Tenant) -> Self {
        let weight = u32::try_from(tenant.weight()).unwrap_or(u32::MAX);
        POLICY.times(TENANT * f64::from(weight))
    }
}

/// How many lines and bytes may still be logged.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    rate: Rate,
    lines: f64,
    bytes: f64,
    at: Instant,
}

impl Bucket {
    fn full(rate: Rate, now: Instant) -> Self {
        Self { rate, lines: rate.lines, bytes: rate.burst, at: now }
    }

    fn refill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.lines = (self.lines + seconds * self.rate.lines).min(self.rate.lines);
        self.bytes = (self.bytes + seconds * self.rate.bytes).min(self.rate.burst);
    }

    /// Whether there is room for a line of `bytes` bytes.
    fn has_room(&mut self, now: Instant, bytes: f64) -> bool {
        self.refill(now);
        self.lines >= 1.0 && self.bytes >= bytes
    }

    fn take(&mut self, bytes: f64) {
        self.lines -= 1.0;
        self.bytes -= bytes;
    }

    fn is_full(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.lines >= self.rate.lines && self.bytes >= self.rate.burst
    }
}

/// The shares of all policies and tenants.
#[derive(Debug, Default)]
pub(crate) struct LogShares(Mutex<Shares>);

#[derive(Debug, Default)]
struct Shares {
    policies: HashMap<PolicyId, Arc<LogShare>>,
    tenants: HashMap<Tenant, Arc<Mutex<Bucket>>>,
}

/// The share of one policy.
#[derive(Debug)]
pub(crate) struct LogShare {
    tenant: Tenant,
    own: Mutex<Own>,
    tenants: Arc<Mutex<Bucket>>,
}

#[derive(Debug)]
struct Own {
    bucket: Bucket,
    dropped: Dropped,
}

/// Lines that were not logged.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// The number of lines.
    pub(crate) lines: u64,
    /// The bytes of these lines, as the guest wrote them.
    pub(crate) bytes: u64,
}

/// What a tenant's policies wanted to log beyond their share.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    /// The policy that lost the most bytes.
    pub(crate) policy: PolicyId,
    /// How many other policies of the tenant lost lines.
    pub(crate) others: usize,
    /// What all of them lost.
    pub(crate) dropped: Dropped,
}

impl LogShares {
    /// The share of a policy.
    pub(crate) fn of(&self, policy: &PolicyId, now: Instant) -> Arc<LogShare> {
        let mut shares = lock(&self.0);
        if let Some(share) = shares.policies.get(policy) {
            return Arc::clone(share);
        }
        let tenant = Tenant::of(policy);
        let bucket = || Arc::new(Mutex::new(Bucket::full(Rate::of(&tenant), now)));
        let tenants = Arc::clone(shares.tenants.entry(tenant.clone()).or_insert_with(bucket));
        let own = Own { bucket: Bucket::full(POLICY, now), dropped: Dropped::default() };
        let share = Arc::new(LogShare { tenant, own: Mutex::new(own), tenants });
        shares.policies.insert(policy.clone(), Arc::clone(&share));
        share
    }

    /// What was dropped since the last turn, one entry for each tenant, so that a tenant with many policies gets no more lines than others.
    /// Forgets the shares of policies that are gone.
    pub(crate) fn turn(&self, now: Instant) -> Vec<Excess> {
        let mut shares = lock(&self.0);
        let mut excess: HashMap<&Tenant, (Excess, u64)> = HashMap::new();
        for (policy, share) in &shares.policies {
            let dropped = std::mem::take(&mut lock(&share.own).dropped);
            if dropped.lines == 0 {
                continue;
            }
            let first = || (Excess { policy: policy.clone(), others: 0, dropped }, dropped.bytes);
            let add = |(excess, most): &mut (Excess, u64)| {
                excess.others += 1;
                excess.dropped.add(dropped);
                if dropped.bytes > *most {
                    (excess.policy, *most) = (policy.clone(), dropped.bytes);
                }
            };
            excess.entry(&share.tenant).and_modify(add).or_insert_with(first);
        }
        let excess = excess.into_values().map(|(excess, _)| excess).collect();
        shares.policies.retain(|_, share| Arc::strong_count(share) > 1 || !lock(&share.own).bucket.is_full(now));
        shares.tenants.retain(|_, bucket| Arc::strong_count(bucket) > 1 || !lock(bucket).is_full(now));
        excess
    }
}

impl LogShare {
    /// Takes a line that has `bytes` bytes in the log, if policy and tenant have room for it.
    pub(super) fn take(&self, now: Instant, bytes: usize) -> bool {
        let bytes = as_f64(bytes);
        let mut own = lock(&self.own);
        if !own.bucket.has_room(now, bytes) {
            return false;
        }
        let mut tenants = lock(&self.tenants);
        let has_room = tenants.has_room(now, bytes);
        if has_room {
            own.bucket.take(bytes);
            tenants.take(bytes);
        }
        has_room
    }

    /// Whether the policy has room for no line at all.
    pub(super) fn is_used_up(&self, now: Instant) -> bool {
        !lock(&self.own).bucket.has_room(now, 0.0)
    }

    /// Whether policy and tenant have room for a line of `bytes` bytes.
    pub(super) fn has_room(&self, now: Instant, bytes: usize) -> bool {
        let bytes = as_f64(bytes);
        lock(&self.own).bucket.has_room(now, bytes) && lock(&self.tenants).has_room(now, bytes)
    }

    /// Notes a line that was not logged.
    pub(super) fn drop_line(&self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        lock(&self.own).dropped.add(Dropped { lines: 1, bytes });
    }
}

fn as_f64(bytes: usize) -> f64 {
    f64::from(u32::try_from(bytes).unwrap_or(u32::MAX))
}

impl Dropped {
    fn add(&mut self, more: Self) {
        self.lines = self.lines.saturating_add(more.lines);
        self.bytes = self.bytes.saturating_add(more.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn share(shares: &LogShares, id: &str, now: Instant) -> Arc<LogShare> {
        shares.of(&id.parse().expect("an id"), now)
    }

    /// How many of many lines of this many bytes are taken at once.
    fn taken(share: &LogShare, now: Instant, bytes: usize) -> usize {
        (0..1000).filter(|_| share.take(now, bytes)).count()
    }

    #[test]
    fn lines_and_bytes_are_limited_and_come_back_with_time() {
        let (shares, start) = (LogShares::default(), Instant::now());
        let [short, long] = ["cluster/short", "cluster/long"].map(|id| share(&shares, id, start));
        assert_eq!(taken(&short, start, 10), 100);
        assert_eq!(taken(&long, start, 2 << 10), 32);
        assert!(short.is_used_up(start) && !long.is_used_up(start) && !long.has_room(start, 1));
        let later = start + Duration::from_millis(500);
        assert_eq!((taken(&short, later, 10), taken(&long, later, 2 << 10)), (50, 4));
        let late = start + Duration::from_secs(3600);
        assert_eq!((taken(&short, late, 10), taken(&long, late, 2 << 10)), (100, 32), "no more than at first");
    }

    #[test]
    fn many_policies_give_a_namespace_no_more_and_take_nothing_from_others() {
        let (shares, now) = (LogShares::default(), Instant::now());
        let of = |prefix: &str| -> usize {
            (0..50).map(|number| taken(&share(&shares, &format!("{prefix}/{number}"), now), now, 2 << 10)).sum()
        };
        assert_eq!(of("namespaced/team-a"), 64);
        assert_eq!(of("check/team-a"), 0, "what is only checked counts for the namespace");
        assert_eq!(of("namespaced/team-b"), 64);
        assert_eq!(of("cluster"), 128, "as the weight of ClusterPolicies says");
    }

    #[test]
    fn a_line_that_the_namespace_has_no_room_for_takes_nothing_from_the_policy() {
        let (shares, now) = (LogShares::default(), Instant::now());
        let [a, b, c] = ["a", "b", "c"].map(|name| share(&shares, &format!("namespaced/team-a/{name}"), now));
        assert_eq!((taken(&a, now, 10), taken(&b, now, 10), taken(&c, now, 10)), (100, 100, 0));
        assert_eq!(lock(&c.own).bucket.lines, POLICY.lines);
        assert!(!c.has_room(now, 10));
    }

    #[test]
    fn what_is_dropped_is_reported_once_for_each_tenant() {
        let (shares, now) = (LogShares::default(), Instant::now());
        let [a, b, other] = ["namespaced/t/a", "namespaced/t/b", "namespaced/u/a"].map(|id| share(&shares, id, now));
        a.drop_line(10);
        b.drop_line(30);
        b.drop_line(5);
        other.drop_line(1);
        let mut excess = shares.turn(now);
        excess.sort_by_key(|excess| excess.policy.as_str().to_owned());
        let expected = |policy: &str, others, lines, bytes| Excess {
            policy: policy.parse().expect("an id"),
            others,
            dropped: Dropped { lines, bytes },
        };
        assert_eq!(excess, [expected("namespaced/t/b", 1, 3, 45), expected("namespaced/u/a", 0, 1, 1)]);
        assert_eq!(shares.turn(now), []);
    }

    #[test]
    fn a_share_goes_with_its_policy_once_it_would_be_whole_again() {
        let (shares, start) = (LogShares::default(), Instant::now());
        let count = || {
            let shares = lock(&shares.0);
            (shares.policies.len(), shares.tenants.len())
        };
        let used = share(&shares, "namespaced/t/used", start);
        assert_eq!(taken(&used, start, 2 << 10), 32);
        shares.turn(start);
        assert_eq!(count(), (1, 1));
        drop(used);
        shares.turn(start);
        assert_eq!(count(), (1, 1), "made again at once, it gets no second burst");
        assert_eq!(taken(&share(&shares, "namespaced/t/used", start), start, 2 << 10), 0);
        shares.turn(start + Duration::from_secs(3));
        assert_eq!(count(), (1, 1));
        shares.turn(start + Duration::from_secs(5));
        assert_eq!(count(), (0, 0));
    }
}
