//! Whose turn it is, where several sources want more of something than there is. Pure; [`crate::http::turns`] has the effects.
//!
//! Sources have their turns one after the other, and within a source who came first. Sources that are known and those that
//! are not take turns as well, so that neither waits behind a crowd of the others.

use std::collections::{BTreeMap, HashMap, VecDeque};

use portcullis_process::crowd::Source;

/// Something that is shared out in whole numbers.
pub(crate) struct Shares<T> {
    free: u32,
    /// The most that one source has at the same time, so that there is always something for others.
    most: u32,
    held: HashMap<Source, u32>,
    /// Those who are not known, and those who are.
    lanes: [Lane<T>; 2],
    /// The lane that is asked first.
    turn: usize,
    tickets: u64,
}

/// Those who wait, by source and in the order of their coming.
struct Lane<T> {
    sources: VecDeque<Source>,
    waiting: HashMap<Source, BTreeMap<u64, Wish<T>>>,
}

struct Wish<T> {
    amount: u32,
    waiter: T,
}

/// Who waits, for taking it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    source: Source,
    is_known: bool,
    number: u64,
}

/// What somebody gets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Given<T> {
    /// Who.
    pub waiter: T,
    /// From where.
    pub source: Source,
    /// How much.
    pub amount: u32,
}

impl<T> Shares<T> {
    /// `total`, of which one source has `most` at the same time.
    pub(crate) fn new(total: u32, most: u32) -> Self {
        let lane = || Lane { sources: VecDeque::new(), waiting: HashMap::new() };
        let lanes = [lane(), lane()];
        Self { free: total, most, held: HashMap::new(), lanes, turn: 1, tickets: 0 }
    }

    /// Somebody wants something; [`Shares::give_next`] says when he gets it. Who wants more than one source may have gets that.
    pub(crate) fn ask(&mut self, source: Source, is_known: bool, amount: u32, waiter: T) -> Ticket {
        let number = self.tickets;
        self.tickets += 1;
        let lane = &mut self.lanes[usize::from(is_known)];
        let waiting = lane.waiting.entry(source).or_insert_with(|| {
            lane.sources.push_back(source);
            BTreeMap::new()
        });
        waiting.insert(number, Wish { amount: amount.min(self.most), waiter });
        Ticket { source, is_known, number }
    }

    /// He does not want it any more. Nothing happens when he has got it meanwhile.
    pub(crate) fn take_back(&mut self, ticket: Ticket) {
        // A source without anybody who waits is forgotten when its turn comes.
        if let Some(waiting) = self.lanes[usize::from(ticket.is_known)].waiting.get_mut(&ticket.source) {
            waiting.remove(&ticket.number);
        }
    }

    /// Something is free again.
    pub(crate) fn give_back(&mut self, source: Source, amount: u32) {
        self.free += amount;
        if let Some(held) = self.held.get_mut(&source) {
            *held = held.saturating_sub(amount);
            if *held == 0 {
                self.held.remove(&source);
            }
        }
    }

    /// The next who gets something, if there is enough for him.
    pub(crate) fn give_next(&mut self) -> Option<Given<T>> {
        for lane in [self.turn, 1 - self.turn] {
            for _ in 0..self.lanes[lane].sources.len() {
                let Some((source, amount)) = self.lanes[lane].front() else { continue };
                if self.held.get(&source).is_some_and(|held| held + amount > self.most) {
                    self.lanes[lane].sources.rotate_left(1);
                    continue;
                }
                if amount > self.free {
                    // Nobody overtakes him, or who wants much would wait for ever.
                    return None;
                }
                let waiter = self.lanes[lane].pop()?;
                self.free -= amount;
                *self.held.entry(source).or_default() += amount;
                self.turn = 1 - lane;
                return Some(Given { waiter, source, amount });
            }
        }
        None
    }

    /// Whether anybody waits.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.lanes.iter().flat_map(|lane| lane.waiting.values()).any(|waiting| !waiting.is_empty())
    }
}

impl<T> Lane<T> {
    /// What the first of the source whose turn it is wants. Nothing where nobody of that source waits, which is then
    /// forgotten.
    fn front(&mut self) -> Option<(Source, u32)> {
        let source = *self.sources.front()?;
        let first = self.waiting.get(&source).and_then(|waiting| waiting.first_key_value());
        if let Some((_, wish)) = first {
            return Some((source, wish.amount));
        }
        self.waiting.remove(&source);
        self.sources.pop_front();
        None
    }

    /// Takes him out; his source comes last now.
    fn pop(&mut self) -> Option<T> {
        let source = *self.sources.front()?;
        let (_, wish) = self.waiting.get_mut(&source)?.pop_first()?;
        self.sources.rotate_left(1);
        Some(wish.waiter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(last: u8) -> Source {
        Source::of([10, 0, 0, last].into())
    }

    /// Everybody who gets something now.
    fn given(shares: &mut Shares<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| shares.give_next().map(|given| given.waiter)).collect()
    }

    #[test]
    fn sources_take_turns() {
        let mut shares = Shares::new(1, 1);
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
        let mut shares = Shares::new(1, 1);
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
        let mut shares = Shares::new(4, 3);
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
        let mut shares = Shares::new(4, 4);
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
        let mut shares = Shares::new(4, 3);
        shares.ask(source(1), false, 9, "a");
        assert_eq!(shares.give_next(), Some(Given { waiter: "a", source: source(1), amount: 3 }));
    }

    #[test]
    fn who_has_gone_is_passed_over() {
        let mut shares = Shares::new(1, 1);
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
