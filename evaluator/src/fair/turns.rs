//! How those who ask take turns at what is scarce: the addresses of clients, or the tenants of policies. Pure: no clock, no task, no lock.
//!
//! **The rule.** Owners take turns, and the claims of one owner are met in the order in which they came. Preferred owners, like known peers and
//! ClusterPolicies, and all others have queues of their own that take turns as well, so that neither waits behind a flood of the other. An
//! owner that holds as much as it may is passed over; a large claim is not, so that small ones never keep it waiting.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;

use crate::fair::{Grant, Rule};

/// A stock, and the owners that hold it or wait for it. `T` is how a claim that waits is met.
pub(crate) struct ByTurn<K, T> {
    free: u64,
    /// The most that one owner may hold, so that others always find some.
    most: u64,
    held: HashMap<K, u64>,
    /// The queues of other owners and of preferred ones.
    queues: [Queue<K, T>; 2],
    /// The queue that is served first.
    turn: usize,
    tickets: u64,
}

/// Claims that wait, by owner and in the order in which they came.
struct Queue<K, T> {
    owners: VecDeque<K>,
    waiting: HashMap<K, BTreeMap<u64, WaitingClaim<T>>>,
}

struct WaitingClaim<T> {
    amount: u64,
    waiter: T,
}

impl<K: Clone + Eq + Hash, T> ByTurn<K, T> {
    /// A stock of `total`, of which one owner may hold `most`.
    pub(super) fn new(total: u64, most: u64) -> Self {
        let queue = || Queue { owners: VecDeque::new(), waiting: HashMap::new() };
        Self { free: total, most, held: HashMap::new(), queues: [queue(), queue()], turn: 1, tickets: 0 }
    }

    /// Whether any claim waits.
    pub(super) fn is_waited_for(&self) -> bool {
        self.queues.iter().flat_map(|queue| queue.waiting.values()).any(|waiting| !waiting.is_empty())
    }
}

impl<K: Clone + Eq + Hash, T> Queue<K, T> {
    /// The first claim of the owner whose turn it is. `None` if that owner has no claims; it is forgotten then.
    fn front(&mut self) -> Option<(K, u64)> {
        let owner = self.owners.front()?;
        let first = self.waiting.get(owner).and_then(|waiting| waiting.first_key_value());
        if let Some((_, claim)) = first {
            return Some((owner.clone(), claim.amount));
        }
        self.waiting.remove(owner);
        self.owners.pop_front();
        None
    }

    /// Takes that claim out; its owner comes last now.
    fn pop(&mut self) -> Option<T> {
        let (_, claim) = self.waiting.get_mut(self.owners.front()?)?.pop_first()?;
        self.owners.rotate_left(1);
        Some(claim.waiter)
    }
}

/// A claim of one owner.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TurnClaim<K> {
    /// The owner: the address of a client, or a tenant.
    pub(crate) owner: K,
    /// Whether it waits in the queue of preferred owners.
    pub(crate) is_preferred: bool,
    /// How much is asked for.
    pub(crate) amount: u64,
}

impl<K: Clone + Eq + Hash, T> Rule for ByTurn<K, T> {
    type Owner = K;
    type Claim = TurnClaim<K>;
    type Ticket = u64;
    type Waiter = T;

    /// Gives nothing at once: every claim goes through the queue, even if that is empty.
    fn take(&mut self, _: &TurnClaim<K>) -> Option<Grant<K>> {
        None
    }

    /// A claim for more than one owner may hold gets that.
    fn wait(&mut self, claim: &TurnClaim<K>, waiter: T) -> Result<u64, T> {
        let number = self.tickets;
        self.tickets += 1;
        let TurnClaim { owner, is_preferred, amount } = claim;
        let queue = &mut self.queues[usize::from(*is_preferred)];
        let waiting = queue.waiting.entry(owner.clone()).or_insert_with(|| {
            queue.owners.push_back(owner.clone());
            BTreeMap::new()
        });
        waiting.insert(number, WaitingClaim { amount: (*amount).min(self.most), waiter });
        Ok(number)
    }

    fn leave(&mut self, claim: &TurnClaim<K>, ticket: u64) -> bool {
        // An owner without claims is forgotten when its turn comes.
        let waiting = self.queues[usize::from(claim.is_preferred)].waiting.get_mut(&claim.owner);
        waiting.is_some_and(|waiting| waiting.remove(&ticket).is_some())
    }

    fn give_back(&mut self, owner: &K, amount: u64) {
        self.free += amount;
        if let Some(held) = self.held.get_mut(owner) {
            *held = held.saturating_sub(amount);
            if *held == 0 {
                self.held.remove(owner);
            }
        }
    }

    fn next(&mut self) -> Option<(Grant<K>, T)> {
        for number in [self.turn, 1 - self.turn] {
            for _ in 0..self.queues[number].owners.len() {
                let Some((owner, amount)) = self.queues[number].front() else { continue };
                if self.held.get(&owner).is_some_and(|held| held + amount > self.most) {
                    self.queues[number].owners.rotate_left(1);
                    continue;
                }
                if amount > self.free {
                    // No other claim overtakes it, or a large one would wait for ever.
                    return None;
                }
                let waiter = self.queues[number].pop()?;
                self.free -= amount;
                *self.held.entry(owner.clone()).or_default() += amount;
                self.turn = 1 - number;
                return Some((Grant { owner, amount }, waiter));
            }
        }
        None
    }

    /// Never takes a claim out: one that holds something does not ask for more, so no two claims wait for each other.
    fn give_up(&mut self) -> Option<T> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(owner: u8, is_preferred: bool, amount: u64) -> TurnClaim<u8> {
        TurnClaim { owner, is_preferred, amount }
    }

    fn ask(shares: &mut ByTurn<u8, &'static str>, claim: &TurnClaim<u8>, waiter: &'static str) -> u64 {
        shares.wait(claim, waiter).expect("there is no limit")
    }

    /// The waiters of all claims that can be met now.
    fn given(shares: &mut ByTurn<u8, &'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| shares.next().map(|(_, waiter)| waiter)).collect()
    }

    #[test]
    fn owners_take_turns() {
        let mut shares = ByTurn::new(1, 1);
        for waiter in ["a1", "a2", "a3"] {
            ask(&mut shares, &claim(1, false, 1), waiter);
        }
        ask(&mut shares, &claim(2, false, 1), "b1");
        let mut order = Vec::new();
        while let Some((given, waiter)) = shares.next() {
            order.push(waiter);
            assert_eq!(shares.next(), None, "there is one only");
            shares.give_back(&given.owner, given.amount);
        }
        assert_eq!(order, ["a1", "b1", "a2", "a3"]);
    }

    #[test]
    fn preferred_owners_do_not_wait_behind_a_crowd_of_others() {
        let mut shares = ByTurn::new(1, 1);
        for (last, waiter) in (10..).zip(["s1", "s2", "s3", "s4"]) {
            ask(&mut shares, &claim(last, false, 1), waiter);
        }
        ask(&mut shares, &claim(1, true, 1), "k1");
        ask(&mut shares, &claim(1, true, 1), "k2");
        let mut order = Vec::new();
        while let Some((given, waiter)) = shares.next() {
            order.push(waiter);
            shares.give_back(&given.owner, given.amount);
        }
        assert_eq!(order, ["k1", "s1", "k2", "s2", "s3", "s4"]);
    }

    #[test]
    fn one_owner_never_has_everything() {
        let mut shares = ByTurn::new(4, 3);
        for waiter in ["a1", "a2", "a3", "a4"] {
            ask(&mut shares, &claim(1, false, 1), waiter);
        }
        assert_eq!(given(&mut shares), ["a1", "a2", "a3"]);
        ask(&mut shares, &claim(2, false, 1), "b1");
        assert_eq!(given(&mut shares), ["b1"]);
        shares.give_back(&1, 1);
        assert_eq!(given(&mut shares), ["a4"]);
    }

    #[test]
    fn who_wants_much_is_not_overtaken() {
        let mut shares = ByTurn::new(4, 4);
        ask(&mut shares, &claim(1, false, 2), "a");
        ask(&mut shares, &claim(2, false, 3), "large");
        ask(&mut shares, &claim(3, false, 1), "small");
        assert_eq!(given(&mut shares), ["a"]);
        shares.give_back(&1, 2);
        assert_eq!(given(&mut shares), ["large", "small"]);
        assert!(!shares.is_waited_for());
    }

    #[test]
    fn who_wants_more_than_there_is_gets_the_most_there_is() {
        let mut shares = ByTurn::new(4, 3);
        ask(&mut shares, &claim(1, false, 9), "a");
        assert_eq!(shares.next(), Some((Grant { owner: 1, amount: 3 }, "a")));
    }

    #[test]
    fn who_has_gone_is_passed_over() {
        let mut shares = ByTurn::new(1, 1);
        let gone = ask(&mut shares, &claim(1, false, 1), "gone");
        ask(&mut shares, &claim(2, false, 1), "b");
        shares.leave(&claim(1, false, 1), gone);
        assert_eq!(given(&mut shares), ["b"]);
        shares.give_back(&2, 1);
        assert!(!shares.is_waited_for());
        ask(&mut shares, &claim(1, false, 1), "again");
        assert_eq!(given(&mut shares), ["again"]);
        assert_eq!(shares.held.len(), 1);
        shares.give_back(&1, 1);
        assert!(shares.next().is_none() && shares.held.is_empty());
        assert!(
            shares.queues.iter().all(|queue| queue.owners.is_empty() && queue.waiting.is_empty()),
            "all is forgotten"
        );
    }
}
