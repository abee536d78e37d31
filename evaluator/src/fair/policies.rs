//! How policies and tenants share what is scarce, permits or bytes. Pure: no clock, no task, no lock.
//!
//! **The rule.** A policy, and all policies of one tenant together, may hold as much as stays free. So the first one gets half at most,
//! and `n` tenants that take all they can leave one part in `n + 1` to the next one, whose request then goes on at once. Nothing is
//! reserved for tenants that ask for nothing, and there is no number to configure. (Network switches share their buffers in this way
//! and call it "dynamic thresholds".) ClusterPolicies together count as two tenants.
//!
//! **The queue** is served in this order: the tenant that would hold the least, then the one whose last turn is longest ago, then the
//! policy that would hold the least, then the oldest claim. So a tenant with hundreds of claims in the queue is one of several that
//! take turns. A claim that does not fit yet is passed over: the largest one is the one that waits.
//!
//! **No claim waits for ever.** Each has a deadline of its own. And where all that hold something wait for more, none of them could go
//! on before that: then the claim that holds the most, of the policy and the tenant that hold the most, is refused, and what it holds
//! comes back.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use portcullis_contract::{PolicyId, Tenant};

use crate::fair::claimant::Claimant;
use crate::fair::{Grant, Rule};

/// A stock of permits or bytes, and the policies that hold it or wait for it. `W` is how a claim that waits is met.
pub(crate) struct ByPolicy<W> {
    capacity: u64,
    /// What a policy that holds nothing gets even where the rule would give it less.
    quantum: u64,
    /// The most claims that may wait.
    queue: usize,
    held: u64,
    waiting: usize,
    /// What the evaluations behind the waiting claims hold already.
    waiting_hold: u64,
    next_ticket: u64,
    /// How often something was taken.
    turns: u64,
    tenants: HashMap<Tenant, TenantAccount<W>>,
}

/// A claim of one evaluation.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    /// The policy that it is for.
    pub(crate) who: Arc<Claimant>,
    /// How much is asked for.
    pub(crate) amount: u64,
    /// How much the same evaluation holds already.
    pub(crate) has: u64,
}

struct TenantAccount<W> {
    held: u64,
    /// The last time that it took something.
    turn: u64,
    policies: HashMap<PolicyId, PolicyAccount<W>>,
}

struct PolicyAccount<W> {
    held: u64,
    queue: VecDeque<Waiter<W>>,
}

struct Waiter<W> {
    ticket: u64,
    claim: Claim,
    waiter: W,
}

/// The order of the queue, lowest first: what the tenant would hold by its weight, its last turn, what the policy would hold, and the
/// ticket.
type Rank = (u64, u64, u64, u64);

impl<W> ByPolicy<W> {
    /// A stock of `capacity`, where at most `queue` claims may wait.
    pub(super) fn new(capacity: u64, quantum: u64, queue: usize) -> Self {
        Self {
            capacity,
            quantum,
            queue,
            held: 0,
            waiting: 0,
            waiting_hold: 0,
            next_ticket: 0,
            turns: 0,
            tenants: HashMap::new(),
        }
    }

    /// Whether any claim waits.
    pub(super) fn is_waited_for(&self) -> bool {
        self.waiting > 0
    }

    /// Takes what is asked for, if the rule allows it now.
    pub(super) fn take(&mut self, claim: &Claim) -> bool {
        let allowed = self.allows(claim);
        if allowed {
            let (tenant, policy) = self.account(&claim.who);
            *policy += claim.amount;
            *tenant += claim.amount;
            self.held += claim.amount;
            self.turns += 1;
            let turn = self.turns;
            self.tenants.entry(claim.who.tenant.clone()).or_default().turn = turn;
        }
        allowed
    }

    /// Puts a claim that could not be met into the queue; gives its ticket.
    ///
    /// # Errors
    /// When the queue is full.
    pub(super) fn wait(&mut self, claim: &Claim, waiter: W) -> Result<u64, W> {
        if self.waiting >= self.queue {
            return Err(waiter);
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let who = &claim.who;
        let policy = self.entry(who);
        policy.queue.push_back(Waiter { ticket, claim: claim.clone(), waiter });
        self.waiting += 1;
        self.waiting_hold += claim.has;
        Ok(ticket)
    }

    /// Takes a claim out of the queue, if it still waits.
    pub(super) fn leave(&mut self, who: &Claimant, ticket: u64) -> Option<W> {
        let policy = self.tenants.get_mut(&who.tenant)?.policies.get_mut(&who.policy)?;
        let place = policy.queue.iter().position(|waiter| waiter.ticket == ticket)?;
        self.remove(who, place).map(|waiter| waiter.waiter)
    }

    /// Takes back what was held.
    pub(super) fn give_back(&mut self, who: &Claimant, amount: u64) {
        let (tenant, policy) = self.account(who);
        *policy -= amount;
        *tenant -= amount;
        self.held -= amount;
        self.tidy(who);
    }

    /// Takes the next claim that can be met out of the queue. Call it until it returns `None`.
    pub(super) fn next(&mut self) -> Option<(Claim, W)> {
        if self.waiting == 0 {
            return None;
        }
        let mut best: Option<(Rank, Arc<Claimant>, usize)> = None;
        for (name, tenant) in &self.tenants {
            for policy in tenant.policies.values() {
                // A claim for at least as much as one that does not fit does not fit either.
                let mut too_much = u64::MAX;
                for (place, waiter) in policy.queue.iter().enumerate() {
                    let claim = &waiter.claim;
                    if claim.amount >= too_much {
                        continue;
                    }
                    if !self.allows(claim) {
                        too_much = claim.amount;
                        continue;
                    }
                    let share = (tenant.held + claim.amount) / name.weight();
                    let rank = (share, tenant.turn, policy.held + claim.amount, waiter.ticket);
                    if best.as_ref().is_none_or(|(least, ..)| rank < *least) {
                        best = Some((rank, Arc::clone(&claim.who), place));
                    }
                    break;
                }
            }
        }
        let (_, who, place) = best?;
        let waiter = self.remove(&who, place)?;
        let taken = self.take(&waiter.claim);
        debug_assert!(taken, "it was allowed a moment ago");
        Some((waiter.claim, waiter.waiter))
    }

    /// Where no claim in the queue can be met before another gives up: takes that one out of the queue.
    pub(super) fn give_up(&mut self) -> Option<W> {
        // An evaluation that holds something and does not wait will give it back.
        if self.waiting == 0 || self.waiting_hold < self.held {
            return None;
        }
        let waiters = |(name, tenant): (&Tenant, &TenantAccount<W>)| {
            let tenant_held = tenant.held / name.weight();
            let of_policy = move |policy: &PolicyAccount<W>| {
                let one = |(place, waiter): (usize, &Waiter<W>)| {
                    let rank = (tenant_held, policy.held, waiter.claim.has, Reverse(waiter.ticket));
                    (rank, Arc::clone(&waiter.claim.who), place)
                };
                policy.queue.iter().enumerate().map(one).max_by_key(|(rank, ..)| *rank)
            };
            tenant.policies.values().filter_map(of_policy).max_by_key(|(rank, ..)| *rank)
        };
        let (_, who, place) = self.tenants.iter().filter_map(waiters).max_by_key(|(rank, ..)| *rank)?;
        self.remove(&who, place).map(|waiter| waiter.waiter)
    }

    fn allows(&self, claim: &Claim) -> bool {
        let Claim { who, amount, has } = claim;
        let Some(free) = (self.capacity - self.held).checked_sub(*amount) else { return false };
        // It is alone: there is no other yet to leave room for, and a single evaluation must be able to take all of the stock.
        if self.held == *has {
            return true;
        }
        let tenant = self.tenants.get(&who.tenant);
        let policy = tenant.and_then(|tenant| tenant.policies.get(&who.policy));
        let leaves_room = |held: u64, free: u64| held + amount <= free || held == 0 && *amount <= self.quantum;
        leaves_room(tenant.map_or(0, |tenant| tenant.held), free.saturating_mul(who.tenant.weight()))
            && leaves_room(policy.map_or(0, |policy| policy.held), free)
    }

    fn remove(&mut self, who: &Claimant, place: usize) -> Option<Waiter<W>> {
        let waiter = self.tenants.get_mut(&who.tenant)?.policies.get_mut(&who.policy)?.queue.remove(place)?;
        self.waiting -= 1;
        self.waiting_hold -= waiter.claim.has;
        self.tidy(who);
        Some(waiter)
    }

    fn entry(&mut self, who: &Claimant) -> &mut PolicyAccount<W> {
        let tenant = self.tenants.entry(who.tenant.clone()).or_default();
        tenant.policies.entry(who.policy.clone()).or_default()
    }

    /// What tenant and policy hold.
    fn account(&mut self, who: &Claimant) -> (&mut u64, &mut u64) {
        let tenant = self.tenants.entry(who.tenant.clone()).or_default();
        let policy = tenant.policies.entry(who.policy.clone()).or_default();
        (&mut tenant.held, &mut policy.held)
    }

    /// Removes accounts that neither hold nor wait for anything; names of past policies would pile up otherwise.
    fn tidy(&mut self, who: &Claimant) {
        let Some(tenant) = self.tenants.get_mut(&who.tenant) else { return };
        if tenant.policies.get(&who.policy).is_some_and(|policy| policy.held == 0 && policy.queue.is_empty()) {
            tenant.policies.remove(&who.policy);
        }
        if tenant.policies.is_empty() {
            self.tenants.remove(&who.tenant);
        }
    }
}

impl<W> Rule for ByPolicy<W> {
    type Owner = Arc<Claimant>;
    type Claim = Claim;
    type Ticket = u64;
    type Waiter = W;

    fn take(&mut self, claim: &Claim) -> Option<Grant<Arc<Claimant>>> {
        Self::take(self, claim).then(|| claim.grant())
    }

    fn wait(&mut self, claim: &Claim, waiter: W) -> Result<u64, W> {
        Self::wait(self, claim, waiter)
    }

    fn leave(&mut self, claim: &Claim, ticket: u64) -> bool {
        Self::leave(self, &claim.who, ticket).is_some()
    }

    fn give_back(&mut self, owner: &Arc<Claimant>, amount: u64) {
        Self::give_back(self, owner, amount);
    }

    fn next(&mut self) -> Option<(Grant<Arc<Claimant>>, W)> {
        Self::next(self).map(|(claim, waiter)| (claim.grant(), waiter))
    }

    fn give_up(&mut self) -> Option<W> {
        Self::give_up(self)
    }
}

impl Claim {
    fn grant(&self) -> Grant<Arc<Claimant>> {
        Grant { owner: Arc::clone(&self.who), amount: self.amount }
    }
}

impl<W> Default for TenantAccount<W> {
    fn default() -> Self {
        Self { held: 0, turn: 0, policies: HashMap::new() }
    }
}

impl<W> Default for PolicyAccount<W> {
    fn default() -> Self {
        Self { held: 0, queue: VecDeque::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(id: &str, amount: u64) -> Claim {
        Claim { who: Claimant::new(&id.parse().expect("an id")), amount, has: 0 }
    }

    fn more(id: &str, amount: u64, has: u64) -> Claim {
        Claim { has, ..claim(id, amount) }
    }

    /// Takes one for each id in turn until none of them gets any more; gives how many each one took.
    fn fill(fair: &mut ByPolicy<&str>, ids: &[&str]) -> Vec<u64> {
        let mut taken = vec![0; ids.len()];
        loop {
            let mut any = false;
            for (id, taken) in ids.iter().zip(&mut taken) {
                let got = fair.take(&claim(id, 1));
                *taken += u64::from(got);
                any |= got;
            }
            if !any {
                return taken;
            }
        }
    }

    #[test]
    fn who_takes_all_it_can_leaves_one_part_for_the_next() {
        for (ids, expected) in [
            (&["namespaced/a/x"] as &[&str], vec![32]),
            // Many policies of one namespace get no more together than a single one.
            (&["namespaced/a/x", "namespaced/a/y", "namespaced/a/z", "namespaced/a/w"], vec![8, 8, 8, 8]),
            (&["namespaced/a/x", "namespaced/b/x"], vec![21, 21]),
            (&["namespaced/a/x", "namespaced/b/x", "namespaced/c/x"], vec![16, 16, 16]),
            (&["cluster/x"], vec![32]),
            // All ClusterPolicies together get twice what a namespace gets.
            (&["cluster/x", "cluster/y", "cluster/z"], vec![14, 14, 14]),
        ] {
            assert_eq!(fill(&mut ByPolicy::new(64, 1, 0), ids), expected, "{ids:?}");
        }
    }

    #[test]
    fn a_newcomer_begins_at_once_however_many_are_greedy() {
        let mut fair = ByPolicy::new(64, 1, 0);
        let ids: Vec<_> = (0..30).map(|namespace| format!("namespaced/n{namespace}/x")).collect();
        fill(&mut fair, &ids.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(fair.take(&claim("namespaced/new/x", 1)));
        assert!(fair.take(&claim("cluster/new", 1)));
    }

    #[test]
    fn a_single_permit_can_be_had() {
        let mut fair = ByPolicy::<&str>::new(1, 1, 0);
        assert!(fair.take(&claim("cluster/a", 1)));
        assert!(!fair.take(&claim("cluster/b", 1)));
        fair.give_back(&claim("cluster/a", 1).who, 1);
        assert!(fair.take(&claim("cluster/b", 1)));
    }

    #[test]
    fn all_of_it_can_be_had_by_who_is_alone() {
        let mut fair = ByPolicy::<&str>::new(100, 1, 0);
        assert!(fair.take(&claim("cluster/a", 60)));
        assert!(!fair.take(&claim("cluster/a", 41)));
        assert!(fair.take(&more("cluster/a", 40, 60)), "the same evaluation");
    }

    #[test]
    fn who_holds_least_goes_first() {
        let mut fair = ByPolicy::new(8, 1, 10);
        // One namespace holds four, another one two, and two more hold one each.
        for (id, n) in [("namespaced/a/x", 4), ("namespaced/b/x", 2), ("namespaced/c/x", 1), ("namespaced/d/x", 1)] {
            for _ in 0..n {
                assert!(fair.take(&claim(id, 1)), "{id}");
            }
        }
        let waits = ["namespaced/a/y", "namespaced/b/x", "namespaced/b/y", "namespaced/e/x"];
        for id in waits {
            assert!(!fair.take(&claim(id, 1)));
            fair.wait(&claim(id, 1), id).expect("there is room");
        }
        assert!(fair.next().is_none());
        let mut next = |id: &str| {
            fair.give_back(&claim(id, 1).who, 1);
            fair.next().map(|(_, id)| id)
        };
        assert_eq!(next("namespaced/a/x"), Some("namespaced/e/x"), "its namespace holds nothing");
        assert_eq!(next("namespaced/a/x"), None, "who holds two leaves three");
        assert_eq!(next("namespaced/a/x"), None);
        assert_eq!(next("namespaced/a/x"), Some("namespaced/a/y"), "its namespace holds nothing any more");
        assert_eq!(next("namespaced/b/x"), Some("namespaced/b/y"), "before the other one of its namespace");
    }

    #[test]
    fn z09_tenants_with_many_who_wait_take_turns() {
        let mut fair = ByPolicy::new(1, 1, 10);
        let ids =
            ["namespaced/a/1", "namespaced/a/2", "namespaced/b/1", "namespaced/b/2", "namespaced/c/1", "cluster/x"];
        let mut holder = claim("namespaced/a/0", 1);
        assert!(fair.take(&holder));
        for id in ids {
            fair.wait(&claim(id, 1), id).expect("there is room");
        }
        let order: [&str; 6] = ids.map(|_| {
            fair.give_back(&holder.who, 1);
            let (next, id) = fair.next().expect("one waits");
            holder = next;
            id
        });
        assert_eq!(order[0], "cluster/x", "it has the share of two");
        assert_eq!(
            order[1..],
            ["namespaced/b/1", "namespaced/c/1", "namespaced/a/1", "namespaced/b/2", "namespaced/a/2"]
        );
    }

    #[test]
    fn the_queue_has_an_end() {
        let mut fair = ByPolicy::new(1, 1, 1);
        assert!(fair.take(&claim("cluster/a", 1)));
        let ticket = fair.wait(&claim("cluster/a", 1), "first").expect("there is room");
        assert_eq!(fair.wait(&claim("cluster/a", 1), "second"), Err("second"));
        assert_eq!(fair.leave(&claim("cluster/a", 1).who, ticket), Some("first"));
        assert_eq!(fair.leave(&claim("cluster/a", 1).who, ticket), None);
        assert!(fair.wait(&claim("cluster/a", 1), "second").is_ok());
    }

    #[test]
    fn a_large_claim_does_not_hold_up_small_ones() {
        let mut fair = ByPolicy::new(100, 4, 10);
        assert!(fair.take(&claim("namespaced/a/x", 40)));
        fair.wait(&claim("namespaced/a/x", 50), "large").expect("there is room");
        fair.wait(&claim("namespaced/a/x", 5), "small").expect("there is room");
        assert_eq!(fair.next().map(|(_, who)| who), Some("small"));
        fair.give_back(&claim("namespaced/a/x", 0).who, 45);
        assert_eq!(fair.next().map(|(_, who)| who), Some("large"));
    }

    #[test]
    fn those_who_wait_for_each_other_are_parted() {
        let mut fair = ByPolicy::new(100, 1, 10);
        assert!(fair.take(&claim("namespaced/a/x", 40)));
        assert!(fair.take(&claim("namespaced/b/x", 30)));
        let (one, other) = (more("namespaced/a/x", 40, 40), more("namespaced/b/x", 40, 30));
        fair.wait(&one, "one").expect("there is room");
        assert_eq!(fair.give_up(), None, "the other one still runs");
        fair.wait(&other, "other").expect("there is room");
        assert!(fair.next().is_none());
        assert_eq!(fair.give_up(), Some("one"), "its tenant holds the most");
        fair.give_back(&one.who, 40);
        assert_eq!(fair.next().map(|(_, who)| who), Some("other"));
    }

    #[test]
    fn what_nobody_could_ever_have_is_refused() {
        let mut fair = ByPolicy::new(10, 1, 10);
        assert!(!fair.take(&claim("cluster/a", 11)));
        fair.wait(&claim("cluster/a", 11), "too much").expect("there is room");
        assert_eq!(fair.give_up(), Some("too much"));
    }

    #[test]
    fn nothing_is_remembered_of_who_is_gone() {
        let mut fair = ByPolicy::new(10, 1, 10);
        assert!(fair.take(&claim("namespaced/a/x", 3)));
        let ticket = fair.wait(&claim("namespaced/b/x", 9), "b").expect("there is room");
        fair.give_back(&claim("namespaced/a/x", 0).who, 3);
        fair.leave(&claim("namespaced/b/x", 0).who, ticket);
        assert!(fair.tenants.is_empty());
        assert_eq!((fair.held, fair.waiting, fair.waiting_hold), (0, 0, 0));
    }
}
