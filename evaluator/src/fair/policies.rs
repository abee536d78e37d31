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
//! **In order.** That suits evaluations whose memory grows: they hold something already, and one of them gives way at last. Bodies hold nothing
//! while they wait, and small ones would overtake a large one without end. So a stock may be shared in order ([`ByPolicy::in_order`]): of a
//! tenant, the policy that holds the least comes first, then the oldest claim, whatever it asks for, and all others that wait, wait for it.
//! Meanwhile nothing is given to its policy, nor to those of its tenant that hold as much or more, so that what it waits for comes back.
//!
//! **Audits come last.** They never wait. What a request would get at once they leave to requests that wait for what others hold, but not to
//! those of a tenant that waits for what it holds itself ([`ByPolicy::gives_way`]).
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
    /// Whether a claim that does not fit yet holds up those of its tenant that come after it.
    in_order: bool,
    held: u64,
    waiting: usize,
    /// What the requests behind the waiting claims hold already.
    waiting_hold: u64,
    next_ticket: u64,
    /// How often something was taken.
    turns: u64,
    tenants: HashMap<Tenant, TenantAccount<W>>,
}

/// A claim of one request, or of a load.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    /// The policy that it is for.
    pub(crate) who: Arc<Claimant>,
    /// How much is asked for.
    pub(crate) amount: u64,
    /// How much the same request holds already, which comes back when this claim is refused. It is in no other claim that waits.
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
            in_order: false,
            held: 0,
            waiting: 0,
            waiting_hold: 0,
            next_ticket: 0,
            turns: 0,
            tenants: HashMap::new(),
        }
    }

    /// A stock of `capacity` that each tenant gets in order.
    pub(super) fn in_order(capacity: u64, quantum: u64) -> Self {
        Self { in_order: true, ..Self::new(capacity, quantum, usize::MAX) }
    }

    /// Whether what this one holds keeps a claim waiting: one of the same owner, or one whose owner would not have more than its part with it,
    /// so that it waits because of what others hold. So does one that gets the quantum once it is free, however small the parts are. Of a
    /// tenant, the claim that comes first says that: all others wait for it.
    pub(super) fn is_in_the_way(&self, who: &Claimant) -> bool {
        if self.waiting == 0 {
            return false;
        }
        let is_own = |(name, policy): (&PolicyId, &PolicyAccount<W>)| {
            !policy.queue.is_empty() && (who.tenant != Tenant::Cluster || *name == who.policy)
        };
        let parts = self.parts(&who.tenant);
        let mut firsts = self.tenants.values().filter_map(TenantAccount::first);
        self.tenants.get(&who.tenant).is_some_and(|tenant| tenant.policies.iter().any(is_own))
            || firsts.any(|Waiter { claim, .. }| self.gets_quantum(claim) || self.is_within_part(claim, parts))
    }

    /// Whether an audit's claim, which never waits, has to leave what it asks for to a claim that waits: to one of the same policy, to one that
    /// the queue would serve first, and to one whose owner would not have more than its part with it, so that it waits because of what others
    /// hold. An owner that waits because of what it holds itself stops no audit of others.
    pub(super) fn gives_way(&self, claim: &Claim) -> bool {
        if self.waiting == 0 {
            return false;
        }
        let rank = self.rank(claim, self.next_ticket);
        let parts = self.parts(&claim.who.tenant);
        let mut waiters = self.tenants.values().flat_map(|tenant| tenant.policies.values()).flat_map(|one| &one.queue);
        waiters.any(|Waiter { ticket, claim: waiting, .. }| {
            waiting.who.policy == claim.who.policy
                || self.rank(waiting, *ticket) < rank
                || self.is_within_part(waiting, parts)
        })
    }

    /// The number of equal parts where everybody has the same, with this tenant, and one part stays free.
    fn parts(&self, with: &Tenant) -> u64 {
        let newcomer = if self.tenants.contains_key(with) { 0 } else { with.weight() };
        self.tenants.keys().map(Tenant::weight).sum::<u64>() + newcomer + 1
    }

    /// Whether a claim that has not waited would overtake one that holds it up.
    fn overtakes(&self, Claim { who, .. }: &Claim) -> bool {
        let first = || self.tenants.get(&who.tenant).and_then(TenantAccount::first);
        self.in_order && first().is_some_and(|first| self.held(&first.claim.who).1 <= self.held(who).1)
    }

    fn allows(&self, claim: &Claim) -> bool {
        let Claim { who, amount, has } = claim;
        let Some(free) = (self.capacity - self.held).checked_sub(*amount) else { return false };
        // It is alone: there is no other yet to leave room for, and a single evaluation must be able to take all of the stock.
        if self.held == *has {
            return true;
        }
        let (tenant_held, policy_held) = self.held(who);
        let leaves_room = |held: u64, free: u64| held + amount <= free || held == 0 && *amount <= self.quantum;
        leaves_room(tenant_held, free.saturating_mul(who.tenant.weight())) && leaves_room(policy_held, free)
    }

    fn rank(&self, claim: &Claim, ticket: u64) -> Rank {
        let Claim { who, amount, .. } = claim;
        let (tenant_held, policy_held) = self.held(who);
        let turn = self.tenants.get(&who.tenant).map_or(0, |tenant| tenant.turn);
        ((tenant_held + amount) / who.tenant.weight(), turn, policy_held + amount, ticket)
    }

    /// Whether the owner of a claim would not have more than its part with it, where everybody had the same of `parts` equal parts, of which one
    /// stays free. The owner is the namespace. ClusterPolicies have one part, but one of them does not wait because of what another one holds.
    /// Nobody gets more than half by the rule.
    fn is_within_part(&self, claim: &Claim, parts: u64) -> bool {
        let Claim { who, amount, .. } = claim;
        let (tenant_held, policy_held) = self.held(who);
        let held = if who.tenant == Tenant::Cluster { policy_held } else { tenant_held };
        let part = (self.capacity.saturating_mul(who.tenant.weight()) / parts).min(self.capacity / 2);
        held + amount <= part
    }

    /// Whether nothing but what others hold can keep a claim waiting.
    fn gets_quantum(&self, claim: &Claim) -> bool {
        claim.amount <= self.quantum && self.held(&claim.who).0 == 0
    }

    /// What tenant and policy hold.
    fn held(&self, who: &Claimant) -> (u64, u64) {
        let tenant = self.tenants.get(&who.tenant);
        let policy = tenant.and_then(|tenant| tenant.policies.get(&who.policy));
        (tenant.map_or(0, |tenant| tenant.held), policy.map_or(0, |policy| policy.held))
    }

    fn remove(&mut self, who: &Claimant, place: usize) -> Option<Waiter<W>> {
        let waiter = self.tenants.get_mut(&who.tenant)?.policies.get_mut(&who.policy)?.queue.remove(place)?;
        self.waiting -= 1;
        self.waiting_hold -= waiter.claim.has;
        self.tidy(who);
        Some(waiter)
    }

    /// Gives what a claim that is allowed asks for.
    fn book(&mut self, Claim { who, amount, .. }: &Claim) -> Grant<Arc<Claimant>> {
        let (tenant, policy) = self.account(who);
        *policy += amount;
        *tenant += amount;
        self.held += amount;
        self.turns += 1;
        let turn = self.turns;
        self.tenants.entry(who.tenant.clone()).or_default().turn = turn;
        Grant { owner: Arc::clone(who), amount: *amount }
    }

    /// The place in the queue of a policy of the oldest claim that fits.
    fn place(&self, policy: &PolicyAccount<W>) -> Option<usize> {
        // A claim for at least as much as one that does not fit does not fit either.
        let mut too_much = u64::MAX;
        policy.queue.iter().position(|Waiter { claim, .. }| {
            let fits = claim.amount < too_much && self.allows(claim);
            if !fits {
                too_much = too_much.min(claim.amount);
            }
            fits
        })
    }

    fn entry(&mut self, who: &Claimant) -> &mut PolicyAccount<W> {
        let tenant = self.tenants.entry(who.tenant.clone()).or_default();
        tenant.policies.entry(who.policy.clone()).or_default()
    }

    /// What tenant and policy hold, to be changed.
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
        (self.allows(claim) && !self.overtakes(claim)).then(|| self.book(claim))
    }

    fn wait(&mut self, claim: &Claim, waiter: W) -> Result<u64, W> {
        if self.waiting >= self.queue {
            return Err(waiter);
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let policy = self.entry(&claim.who);
        policy.queue.push_back(Waiter { ticket, claim: claim.clone(), waiter });
        self.waiting += 1;
        self.waiting_hold += claim.has;
        Ok(ticket)
    }

    fn leave(&mut self, claim: &Claim, ticket: u64) -> bool {
        let Claim { who, .. } = claim;
        let policy = self.tenants.get(&who.tenant).and_then(|tenant| tenant.policies.get(&who.policy));
        let place = policy.and_then(|policy| policy.queue.iter().position(|waiter| waiter.ticket == ticket));
        place.is_some_and(|place| self.remove(who, place).is_some())
    }

    fn give_back(&mut self, who: &Arc<Claimant>, amount: u64) {
        let (tenant, policy) = self.account(who);
        *policy -= amount;
        *tenant -= amount;
        self.held -= amount;
        self.tidy(who);
    }

    fn next(&mut self) -> Option<(Grant<Arc<Claimant>>, W)> {
        if self.waiting == 0 {
            return None;
        }
        let ranked =
            |waiter: &Waiter<W>, place| (self.rank(&waiter.claim, waiter.ticket), Arc::clone(&waiter.claim.who), place);
        let best = if self.in_order {
            let firsts = self.tenants.values().filter_map(TenantAccount::first);
            let fitting = firsts.filter(|first| self.allows(&first.claim));
            fitting.map(|first| ranked(first, 0)).min_by_key(|(rank, ..)| *rank)
        } else {
            let policies = self.tenants.values().flat_map(|tenant| tenant.policies.values());
            let fitting =
                policies.filter_map(|policy| self.place(policy).map(|place| ranked(&policy.queue[place], place)));
            fitting.min_by_key(|(rank, ..)| *rank)
        };
        let (_, who, place) = best?;
        let Waiter { claim, waiter, .. } = self.remove(&who, place)?;
        debug_assert!(self.allows(&claim), "it was allowed a moment ago");
        Some((self.book(&claim), waiter))
    }

    fn give_up(&mut self) -> Option<W> {
        // A request that holds something and does not wait will give it back.
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
}

impl<W> TenantAccount<W> {
    /// The claim that comes first where the tenant gets a stock in order; it is at the front of its policy's queue.
    fn first(&self) -> Option<&Waiter<W>> {
        let fronts = self.policies.values().filter_map(|policy| Some((policy.held, policy.queue.front()?)));
        fronts.min_by_key(|(held, front)| (*held, front.ticket)).map(|(_, front)| front)
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
mod tests;
