//! How the addresses of clients share what is scarce. Pure: no clock, no task, no lock.
//!
//! **The rule.** Peers take turns, and the claims of one peer are met in the order in which they came. Known and unknown peers
//! have queues of their own that take turns as well, so that neither waits behind a flood of the other. A peer that holds as much as
//! it may is passed over; a large claim is not, so that small ones never keep it waiting.

use std::collections::{BTreeMap, HashMap, VecDeque};

use portcullis_process::eviction::Peer;

use crate::fair::{Grant, Rule};

/// A stock, and the peers that hold it or wait for it. `T` is how a claim that waits is met.
pub(crate) struct ByPeer<T> {
    free: u64,
    /// The most that one peer may hold, so that others always find some.
    most: u64,
    held: HashMap<Peer, u64>,
    /// The queues of unknown peers and of known ones.
    lanes: [Lane<T>; 2],
    /// The queue that is served first.
    turn: usize,
    tickets: u64,
}

/// Claims that wait, by peer and in the order in which they came.
struct Lane<T> {
    peers: VecDeque<Peer>,
    waiting: HashMap<Peer, BTreeMap<u64, WaitingClaim<T>>>,
}

struct WaitingClaim<T> {
    amount: u64,
    waiter: T,
}

/// The place of a claim in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    peer: Peer,
    is_known: bool,
    number: u64,
}

/// A claim that is met.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MetClaim<T> {
    /// How the claim is met.
    pub waiter: T,
    /// Its peer.
    pub peer: Peer,
    /// How much it gets.
    pub amount: u64,
}

impl<T> ByPeer<T> {
    /// A stock of `total`, of which one peer may hold `most`.
    pub(super) fn new(total: u64, most: u64) -> Self {
        let lane = || Lane { peers: VecDeque::new(), waiting: HashMap::new() };
        let lanes = [lane(), lane()];
        Self { free: total, most, held: HashMap::new(), lanes, turn: 1, tickets: 0 }
    }

    /// Puts a claim into its queue; [`ByPeer::give_next`] says when it is met. A claim for more than one peer may hold gets that.
    pub(super) fn ask(&mut self, peer: Peer, is_known: bool, amount: u64, waiter: T) -> Ticket {
        let number = self.tickets;
        self.tickets += 1;
        let lane = &mut self.lanes[usize::from(is_known)];
        let waiting = lane.waiting.entry(peer).or_insert_with(|| {
            lane.peers.push_back(peer);
            BTreeMap::new()
        });
        waiting.insert(number, WaitingClaim { amount: amount.min(self.most), waiter });
        Ticket { peer, is_known, number }
    }

    /// Takes a claim out of its queue, if it still waits.
    pub(super) fn take_back(&mut self, ticket: Ticket) {
        // A peer without claims is forgotten when its turn comes.
        if let Some(waiting) = self.lanes[usize::from(ticket.is_known)].waiting.get_mut(&ticket.peer) {
            waiting.remove(&ticket.number);
        }
    }

    /// Takes back what a peer held.
    pub(super) fn give_back(&mut self, peer: Peer, amount: u64) {
        self.free += amount;
        if let Some(held) = self.held.get_mut(&peer) {
            *held = held.saturating_sub(amount);
            if *held == 0 {
                self.held.remove(&peer);
            }
        }
    }

    /// The next claim that is met, if there is enough for it.
    pub(super) fn give_next(&mut self) -> Option<MetClaim<T>> {
        for lane in [self.turn, 1 - self.turn] {
            for _ in 0..self.lanes[lane].peers.len() {
                let Some((peer, amount)) = self.lanes[lane].front() else { continue };
                if self.held.get(&peer).is_some_and(|held| held + amount > self.most) {
                    self.lanes[lane].peers.rotate_left(1);
                    continue;
                }
                if amount > self.free {
                    // No other claim overtakes it, or a large one would wait for ever.
                    return None;
                }
                let waiter = self.lanes[lane].pop()?;
                self.free -= amount;
                *self.held.entry(peer).or_default() += amount;
                self.turn = 1 - lane;
                return Some(MetClaim { waiter, peer, amount });
            }
        }
        None
    }

    /// Whether any claim waits.
    pub(super) fn is_waited_for(&self) -> bool {
        self.lanes.iter().flat_map(|lane| lane.waiting.values()).any(|waiting| !waiting.is_empty())
    }
}

impl<T> Lane<T> {
    /// The first claim of the peer whose turn it is. `None` if that peer has no claims; it is forgotten then.
    fn front(&mut self) -> Option<(Peer, u64)> {
        let peer = *self.peers.front()?;
        let first = self.waiting.get(&peer).and_then(|waiting| waiting.first_key_value());
        if let Some((_, claim)) = first {
            return Some((peer, claim.amount));
        }
        self.waiting.remove(&peer);
        self.peers.pop_front();
        None
    }

    /// Takes that claim out; its peer comes last now.
    fn pop(&mut self) -> Option<T> {
        let peer = *self.peers.front()?;
        let (_, claim) = self.waiting.get_mut(&peer)?.pop_first()?;
        self.peers.rotate_left(1);
        Some(claim.waiter)
    }
}

/// A claim of one connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerClaim {
    /// Where the connection comes from.
    pub(crate) peer: Peer,
    /// Whether reviews from there were answered before.
    pub(crate) is_known: bool,
    /// How much is asked for.
    pub(crate) amount: u64,
}

impl<T> Rule for ByPeer<T> {
    type Owner = Peer;
    type Claim = PeerClaim;
    type Ticket = Ticket;
    type Waiter = T;

    /// Gives nothing at once: every claim goes through the queue, even if that is empty.
    fn take(&mut self, _: &PeerClaim) -> Option<Grant<Peer>> {
        None
    }

    fn wait(&mut self, claim: &PeerClaim, waiter: T) -> Result<Ticket, T> {
        Ok(self.ask(claim.peer, claim.is_known, claim.amount, waiter))
    }

    fn leave(&mut self, _: &PeerClaim, ticket: Ticket) {
        self.take_back(ticket);
    }

    fn give_back(&mut self, owner: &Peer, amount: u64) {
        Self::give_back(self, *owner, amount);
    }

    fn next(&mut self) -> Option<(Grant<Peer>, T)> {
        let MetClaim { waiter, peer, amount } = self.give_next()?;
        Some((Grant { owner: peer, amount }, waiter))
    }

    /// Never takes a claim out: a connection that holds something does not ask for more, so no two claims wait for each other.
    fn give_up(&mut self) -> Option<T> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> Peer {
        Peer::of([10, 0, 0, last].into())
    }

    /// The waiters of all claims that can be met now.
    fn given(shares: &mut ByPeer<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| shares.give_next().map(|given| given.waiter)).collect()
    }

    #[test]
    fn sources_take_turns() {
        let mut shares = ByPeer::new(1, 1);
        for waiter in ["a1", "a2", "a3"] {
            shares.ask(peer(1), false, 1, waiter);
        }
        shares.ask(peer(2), false, 1, "b1");
        let mut order = Vec::new();
        while let Some(given) = shares.give_next() {
            order.push(given.waiter);
            assert_eq!(shares.give_next(), None, "there is one only");
            shares.give_back(given.peer, given.amount);
        }
        assert_eq!(order, ["a1", "b1", "a2", "a3"]);
    }

    #[test]
    fn known_sources_do_not_wait_behind_a_crowd_of_others() {
        let mut shares = ByPeer::new(1, 1);
        for (last, waiter) in (10..).zip(["s1", "s2", "s3", "s4"]) {
            shares.ask(peer(last), false, 1, waiter);
        }
        shares.ask(peer(1), true, 1, "k1");
        shares.ask(peer(1), true, 1, "k2");
        let mut order = Vec::new();
        while let Some(given) = shares.give_next() {
            order.push(given.waiter);
            shares.give_back(given.peer, given.amount);
        }
        assert_eq!(order, ["k1", "s1", "k2", "s2", "s3", "s4"]);
    }

    #[test]
    fn one_source_never_has_everything() {
        let mut shares = ByPeer::new(4, 3);
        for waiter in ["a1", "a2", "a3", "a4"] {
            shares.ask(peer(1), false, 1, waiter);
        }
        assert_eq!(given(&mut shares), ["a1", "a2", "a3"]);
        shares.ask(peer(2), false, 1, "b1");
        assert_eq!(given(&mut shares), ["b1"]);
        shares.give_back(peer(1), 1);
        assert_eq!(given(&mut shares), ["a4"]);
    }

    #[test]
    fn who_wants_much_is_not_overtaken() {
        let mut shares = ByPeer::new(4, 4);
        shares.ask(peer(1), false, 2, "a");
        shares.ask(peer(2), false, 3, "large");
        shares.ask(peer(3), false, 1, "small");
        assert_eq!(given(&mut shares), ["a"]);
        shares.give_back(peer(1), 2);
        assert_eq!(given(&mut shares), ["large", "small"]);
        assert!(!shares.is_waited_for());
    }

    #[test]
    fn who_wants_more_than_there_is_gets_the_most_there_is() {
        let mut shares = ByPeer::new(4, 3);
        shares.ask(peer(1), false, 9, "a");
        assert_eq!(shares.give_next(), Some(MetClaim { waiter: "a", peer: peer(1), amount: 3 }));
    }

    #[test]
    fn who_has_gone_is_passed_over() {
        let mut shares = ByPeer::new(1, 1);
        let gone = shares.ask(peer(1), false, 1, "gone");
        shares.ask(peer(2), false, 1, "b");
        shares.take_back(gone);
        assert_eq!(given(&mut shares), ["b"]);
        shares.give_back(peer(2), 1);
        assert!(!shares.is_waited_for());
        shares.ask(peer(1), false, 1, "again");
        assert_eq!(given(&mut shares), ["again"]);
        assert_eq!(shares.held.len(), 1);
        shares.give_back(peer(1), 1);
        assert!(shares.give_next().is_none() && shares.held.is_empty());
        assert!(shares.lanes.iter().all(|lane| lane.peers.is_empty() && lane.waiting.is_empty()), "all is forgotten");
    }
}
