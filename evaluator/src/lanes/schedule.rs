//! Which evaluation has the next turn in the slow lane. Pure.
//!
//! A turn is a tick of processor time. The next one goes to the tenant that has had the least of it, there to the policy that has had the
//! least, there to the evaluation that has waited longest. So `n` tenants with something to do get one part in `n` each, however many
//! evaluations or policies one of them has; ClusterPolicies together count as two tenants. A newcomer begins with the least time that
//! any of those present has had: no tenant saves up turns, and none gets rid of its time by leaving for a moment while others of its
//! policies are present.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use portcullis_contract::{PolicyId, Tenant};
use portcullis_engine::TICK;

use super::width::{TurnUsage, Width};
use crate::fair::claimant::Claimant;

/// The schedule of the turns. `W` is how an evaluation gets its turn.
pub(crate) struct Schedule<W> {
    width: Width,
    running: usize,
    tenants: HashMap<Tenant, TenantTime<W>>,
}

struct TenantTime<W> {
    /// Processor time in nanoseconds, divided by the tenant's weight.
    had: u64,
    policies: HashMap<PolicyId, PolicyTime<W>>,
}

struct PolicyTime<W> {
    had: u64,
    present: usize,
    queue: VecDeque<W>,
}

impl<W: PartialEq> Schedule<W> {
    /// A schedule of at most `most` turns at the same time.
    pub(crate) fn new(most: usize) -> Self {
        Self { width: Width::new(most), running: 0, tenants: HashMap::new() }
    }

    /// Adds an evaluation.
    pub(crate) fn enter(&mut self, who: &Claimant) {
        let least = self.tenants.values().map(|tenant| tenant.had).min().unwrap_or(0);
        let tenant = self
            .tenants
            .entry(who.tenant.clone())
            .or_insert_with(|| TenantTime { had: least, policies: HashMap::new() });
        let least = tenant.policies.values().map(|policy| policy.had).min().unwrap_or(0);
        let policy = tenant.policies.entry(who.policy.clone()).or_insert_with(|| PolicyTime {
            had: least,
            present: 0,
            queue: VecDeque::new(),
        });
        policy.present += 1;
    }

    /// Removes an evaluation that has no turn.
    pub(crate) fn leave(&mut self, who: &Claimant, waiter: &W) {
        let Some(tenant) = self.tenants.get_mut(&who.tenant) else { return };
        if let Some(policy) = tenant.policies.get_mut(&who.policy) {
            policy.queue.retain(|other| other != waiter);
            policy.present -= 1;
            if policy.present == 0 {
                tenant.policies.remove(&who.policy);
            }
        }
        if tenant.policies.is_empty() {
            self.tenants.remove(&who.tenant);
        }
    }

    /// Queues an evaluation for a turn.
    pub(crate) fn ask(&mut self, who: &Claimant, waiter: W) {
        if let Some((_, policy)) = self.account(who) {
            policy.queue.push_back(waiter);
        }
    }

    /// Takes the evaluation whose turn is next. Call it until it returns `None`.
    pub(crate) fn next(&mut self) -> Option<W> {
        if self.running >= self.width.now() {
            return None;
        }
        let waits = |policy: &PolicyTime<W>| !policy.queue.is_empty();
        let tenants = self.tenants.iter_mut().filter(|(_, tenant)| tenant.policies.values().any(waits));
        let (name, tenant) = tenants.min_by_key(|(_, tenant)| tenant.had)?;
        let policies = tenant.policies.values_mut().filter(|policy| waits(policy));
        let policy = policies.min_by_key(|policy| policy.had)?;
        let waiter = policy.queue.pop_front()?;
        // A whole tick is counted in advance, so that turns which run now count as well; the end of the turn corrects it.
        policy.had += nanoseconds(TICK);
        tenant.had += nanoseconds(TICK) / name.weight();
        self.running += 1;
        Some(waiter)
    }

    /// Ends a turn.
    pub(crate) fn end(&mut self, who: &Claimant, turn: TurnUsage) {
        self.end_unused(who, turn.used);
        self.width.learn(turn);
    }

    /// Ends a turn that does not show how many processors there are.
    pub(crate) fn end_unused(&mut self, who: &Claimant, used: Duration) {
        self.running -= 1;
        let weight = who.tenant.weight();
        if let Some((tenant, policy)) = self.account(who) {
            let settle = |had: u64, weight: u64| {
                had.saturating_add(nanoseconds(used) / weight).saturating_sub(nanoseconds(TICK) / weight)
            };
            policy.had = settle(policy.had, 1);
            *tenant = settle(*tenant, weight);
        }
    }

    fn account(&mut self, who: &Claimant) -> Option<(&mut u64, &mut PolicyTime<W>)> {
        let tenant = self.tenants.get_mut(&who.tenant)?;
        Some((&mut tenant.had, tenant.policies.get_mut(&who.policy)?))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    type Evaluation = (usize, usize);

    /// Runs `turns` turns of endless evaluations on one processor, with as many evaluations as `ids` says for each policy; gives the turns that
    /// each policy had.
    fn share(ids: &[(&str, usize)], turns: usize) -> Vec<usize> {
        let who: Vec<Arc<Claimant>> = ids.iter().map(|(id, _)| Claimant::new(&id.parse().expect("an id"))).collect();
        let mut order: Schedule<Evaluation> = Schedule::new(1);
        for (i, (_, loops)) in ids.iter().enumerate() {
            for n in 0..*loops {
                order.enter(&who[i]);
                order.ask(&who[i], (i, n));
            }
        }
        let mut had = vec![0; ids.len()];
        for _ in 0..turns {
            let (i, n) = order.next().expect("there is one");
            assert!(order.next().is_none(), "one at a time");
            had[i] += 1;
            order.end_unused(&who[i], TICK);
            order.ask(&who[i], (i, n));
        }
        had
    }

    #[test]
    fn the_number_of_evaluations_counts_for_nothing() {
        assert_eq!(share(&[("namespaced/a/x", 64), ("namespaced/b/x", 1)], 100), [50, 50]);
        assert_eq!(share(&[("namespaced/a/x", 200), ("namespaced/a/y", 1)], 100), [50, 50]);
    }

    #[test]
    fn nor_does_the_number_of_policies() {
        let mut ids = vec![("namespaced/b/x", 1), ("cluster/x", 1)];
        let names: Vec<_> = (0..30).map(|n| format!("namespaced/a/p{n}")).collect();
        ids.extend(names.iter().map(|id| (id.as_str(), 2)));
        let had = share(&ids, 4000);
        assert_eq!(had[..2], [1000, 2000], "ClusterPolicies count as two");
        assert!(had[2..].iter().all(|turns| (33..=34).contains(turns)), "{had:?}");
    }

    #[test]
    fn a_newcomer_is_next_and_has_saved_up_nothing() {
        let [a, b] = ["namespaced/a/x", "namespaced/b/x"].map(|id| Claimant::new(&id.parse().expect("an id")));
        let mut order: Schedule<&str> = Schedule::new(1);
        for _ in 0..10 {
            order.enter(&a);
            order.ask(&a, "a");
        }
        for _ in 0..1000 {
            assert_eq!(order.next(), Some("a"));
            order.end_unused(&a, TICK);
            order.ask(&a, "a");
        }
        order.enter(&b);
        order.ask(&b, "b");
        let mut turns = Vec::new();
        for _ in 0..6 {
            let who = order.next().expect("there is one");
            turns.push(who);
            order.end_unused(if who == "a" { &a } else { &b }, TICK);
            order.ask(if who == "a" { &a } else { &b }, who);
        }
        turns.sort_unstable();
        assert_eq!(turns, ["a", "a", "a", "b", "b", "b"]);
    }

    #[test]
    fn who_goes_leaves_nothing() {
        let a = Claimant::new(&"cluster/a".parse().expect("an id"));
        let mut order: Schedule<u32> = Schedule::new(4);
        for n in 0..3 {
            order.enter(&a);
            order.ask(&a, n);
        }
        assert_eq!((order.next(), order.next(), order.next()), (Some(0), Some(1), None), "it begins narrow");
        order.leave(&a, &2);
        order.end_unused(&a, Duration::ZERO);
        assert_eq!(order.next(), None);
        order.leave(&a, &0);
        order.end_unused(&a, Duration::ZERO);
        order.leave(&a, &1);
        assert!(order.tenants.is_empty());
        assert_eq!(order.running, 0);
    }
}
