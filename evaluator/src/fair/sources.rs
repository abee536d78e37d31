//! How the addresses of clients share what is scarce. Pure: no clock, no task, no lock.
//!
//! **The rule.** Sources take turns, and the claims of one source are met in the order in which they came. Known and unknown sources
//! have queues of their own that take turns as well, so that neither waits behind a flood of the other. A source that holds as much as
//! it may is passed over; a large claim is not, so that small ones never keep it waiting.

use std::collections::{BTreeMap, HashMap, VecDeque};

use portcullis_process::eviction::Source;

use crate::fair::{Grant, Rule};

/// A stock, and the sources that hold it or wait for it. `T` is how a claim that waits is met.
pub(crate) struct BySource<T> {
    free: u64,
    /// The most that one source may hold, so that others always find some.
    most: u64,
    held: HashMap<Source, u64>,
    /// The queues of unknown sources and of known ones.
    lanes: [Lane<T>; 2],
    /// The queue that is served first.
    turn: usize,
    tickets: u64,
}

/// Claims that wait, by source and in the order in which they came.
struct Lane<T> {
    sources: VecDeque<Source>,
    waiting: HashMap<Source, BTreeMap<u64, WaitingClaim<T>>>,
}

struct WaitingClaim<T> {
    amount: u64,
    waiter: T,
}

/// The place of a claim in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    source: Source,
    is_known: bool,
    number: u64,
}

/// A claim that is met.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MetClaim<T> {
    /// How the claim is met.
    pub waiter: T,
    /// Its source.
    pub source: Source,
    /// How much it gets.
    pub amount: u64,
}

impl<T> BySource<T> {
    /// A stock of `total`, of which one source may hold `most`.
    pub(super) fn new(total: u64, most: u64) -> Self {
        let lane = || Lane { sources: VecDeque::new(), waiting: HashMap::new() };
        let lanes = [lane(), lane()];
        Self { free: total, most, held: HashMap::new(), lanes, turn: 1, tickets: 0 }
    }

    /// Puts a claim into its queue; [`BySource::give_next`] says when it is met. A claim for more than one source may hold gets that.
    pub(super) fn ask(&mut self, source: Source, is_known: bool, amount: u64, waiter: T) -> Ticket {
        let number = self.tickets;
        self.tickets += 1;
        let lane = &mut self.lanes[usize::from(is_known)];
        let waiting = lane.waiting.entry(source).or_insert_with(|| {
            lane.sources.push_back(source);
            BTreeMap::new()
        });
        waiting.insert(number, WaitingClaim { amount: amount.min(self.most), waiter });
        Ticket { source, is_known, number }
    }

    /// Takes a claim out of its queue, if it still waits.
    pub(super) fn take_back(&mut self, ticket: Ticket) {
        // A source without claims is forgotten when its turn comes.
        if let Some(waiting) = self.lanes[usize::from(ticket.is_known)].waiting.get_mut(&ticket.source) {
            waiting.remove(&ticket.number);
        }
    }

    /// Takes back what a source held.
    pub(super) fn give_back(&mut self, source: Source, amount: u64) {
        self.free += amount;
        if let Some(held) = self.held.get_mut(&source) {
            *held = held.saturating_sub(amount);
            if *held == 0 {
                self.held.remove(&source);
            }
        }
    }

    /// The next claim that is met, if there is enough for it.
    pub(super) fn give_next(&mut self) -> Option<MetClaim<T>> {
        for lane in [self.turn, 1 - self.turn] {
            for _ in 0..self.lanes[lane].sources.len() {
                let Some((source, amount)) = self.lanes[lane].front() else { continue };
                if self.held.get(&source).is_some_and(|held| held + amount > self.most) {
                    self.lanes[lane].sources.rotate_left(1);
                    continue;
                }
                if amount > self.free {
                    // No other claim overtakes it, or a large one would wait for ever.
                    return None;
                }
                let waiter = self.lanes[lane].pop()?;
                self.free -= amount;
                *self.held.entry(source).or_default() += amount;
                self.turn = 1 - lane;
                return Some(MetClaim { waiter, source, amount });
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
    /// The first claim of the source whose turn it is. A source without claims is forgotten, and there is none.
    fn front(&mut self) -> Option<(Source, u64)> {
        let source = *self.sources.front()?;
        let first = self.waiting.get(&source).and_then(|waiting| waiting.first_key_value());
        if let Some((_, claim)) = first {
            return Some((source, claim.amount));
        }
        self.waiting.remove(&source);
        self.sources.pop_front();
        None
    }

    /// Takes that claim out; its source comes last now.
    fn pop(&mut self) -> Option<T> {
        let source = *self.sources.front()?;
        let (_, claim) = self.waiting.get_mut(&source)?.pop_first()?;
        self.sources.rotate_left(1);
        Some(claim.waiter)
    }
}

/// A claim of one connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SourceClaim {
    /// Where the connection comes from.
    pub(crate) source: Source,
    /// Whether reviews from there were answered before.
    pub(crate) is_known: bool,
    /// How much is asked for.
    pub(crate) amount: u64,
}

impl<T> Rule for BySource<T> {
    type Owner = Source;
    type Claim = SourceClaim;
    type Ticket = Ticket;
    type Waiter = T;

    /// Gives nothing at once: every claim goes through the queue, even if that is empty.
    fn take(&mut self, _: &SourceClaim) -> Option<Grant<Source>> {
        None
    }

    fn wait(&mut self, claim: &SourceClaim, waiter: T) -> Result<Ticket, T> {
        Ok(self.ask(claim.source, claim.is_known, claim.amount, waiter))
    }

    fn leave(&mut self, _: &SourceClaim, ticket: Ticket) {
        self.take_back(ticket);
    }

    fn give_back(&mut self, owner: &Source, amount: u64) {
        Self::give_back(self, *owner, amount);
    }

    fn next(&mut self) -> Option<(Grant<Source>, T)> {
        let MetClaim { waiter, source, amount } = self.give_next()?;
        Some((Grant { owner: source, amount }, waiter))
    }

    /// Never takes a claim out: a connection that holds something does not ask for more, so no two claims wait for each other.
    fn give_up(&mut self) -> Option<T> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(last: u8) -> Source {
        Source::of([10, 0, 0, last].into())
    }

    /// The waiters of all claims that can be met now.
    fn given(shares: &mut BySource<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| shares.give_next().map(|given| given.waiter)).collect()
    }

    #[test]
    fn sources_take_turns() {
        let mut shares = BySource::new(1, 1);
        for waiter in ["a1", "a2", "a3"] {
            shares.ask(source(1), false, 1, waiter);
        }
        shares.ask(source(2), false, 1, "b1");
        let mut order = Vec::new();
        while let Some(given) = shares.give_next() {
            order.push(given.waiter);
            assert_eq!(shares.give_next(), None, "there is one only");
            shares.give_back(given.source, given.amount);
        }
        assert_eq!(order, ["a1", "b1", "a2", "a3"]);
    }

    #[test]
    fn known_sources_do_not_wait_behind_a_crowd_of_others() {
        let mut shares = BySource::new(1, 1);
        for (last, waiter) in (10..).zip(["s1", "s2", "s3", "s4"]) {
            shares.ask(source(last), false, 1, waiter);
        }
        shares.ask(source(1), true, 1, "k1");
        shares.ask(source(1), true, 1, "k2");
        let mut order = Vec::new();
        while let Some(given) = shares.give_next() {
            order.push(given.waiter);
            shares.give_back(given.source, given.amount);
        }
        assert_eq!(order, ["k1", "s1", "k2", "s2", "s3", "s4"]);
    }

    #[test]
    fn one_source_never_has_everything() {
        let mut shares = BySource::new(4, 3);
        for waiter in ["a1", "a2", "a3", "a4"] {
            shares.ask(source(1), false, 1, waiter);
        }
        assert_eq!(given(&mut shares), ["a1", "a2", "a3"]);
        shares.ask(source(2), false, 1, "b1");
        assert_eq!(given(&mut shares), ["b1"]);
        shares.give_back(source(1), 1);
        assert_eq!(given(&mut shares), ["a4"]);
    }

    #[test]
    fn who_wants_much_is_not_overtaken() {
        let mut shares = BySource::new(4, 4);
        shares.ask(source(1), false, 2, "a");
        shares.ask(source(2), false, 3, "large");
        shares.ask(source(3), false, 1, "small");
        assert_eq!(given(&mut shares), ["a"]);
        shares.give_back(source(1), 2);
        assert_eq!(given(&mut shares), ["large", "small"]);
        assert!(!shares.is_waited_for());
    }

    #[test]
    fn who_wants_more_than_there_is_gets_the_most_there_is() {
        let mut shares = BySource::new(4, 3);
        shares.ask(source(1), false, 9, "a");
        assert_eq!(shares.give_next(), Some(MetClaim { waiter: "a", source: source(1), amount: 3 }));
    }

    #[test]
    fn who_has_gone_is_passed_over() {
        let mut shares = BySource::new(1, 1);
        let gone = shares.ask(source(1), false, 1, "gone");
        shares.ask(source(2), false, 1, "b");
        shares.take_back(gone);
        assert_eq!(given(&mut shares), ["b"]);
        shares.give_back(source(2), 1);
        assert!(!shares.is_waited_for());
        shares.ask(source(1), false, 1, "again");
        assert_eq!(given(&mut shares), ["again"]);
        assert_eq!(shares.held.len(), 1);
        shares.give_back(source(1), 1);
        assert!(shares.give_next().is_none() && shares.held.is_empty());
        assert!(shares.lanes.iter().all(|lane| lane.sources.is_empty() && lane.waiting.is_empty()), "all is forgotten");
    }
}
