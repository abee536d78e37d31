//! Which connections of the admission port are closed first when there is no room. Pure.
//!
//! A connection is judged by what it has done: if a review was answered on it, its client is an API server, or knows as much as one.

use std::cmp::Reverse;
use std::time::Duration;

use portcullis_process::eviction::{Candidate, Peer, first_to_go};

use crate::http::pace::Progress;

/// How long a connection from an unknown peer may be silent and still count as about to send.
const FRESH: Duration = Duration::from_secs(1);
/// The same for a known peer: this program may read its bytes late when it is short of CPU.
const FRESH_KNOWN: Duration = Duration::from_secs(2);

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Shaking hands or sending a request's head.
    Opening,
    /// Nothing: it is between two requests.
    Idle,
    /// Waiting for a permit to shake hands, or for memory for a request's body.
    Waiting,
    /// Sending the body of a request.
    Sending,
    /// Waiting for this program's answer.
    Asking,
}

/// What is known about a connection at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Where it comes from.
    pub peer: Peer,
    /// What it is doing.
    pub activity: Activity,
    /// How long it has been doing that.
    pub elapsed: Duration,
    /// The announced size of the body, in bytes.
    pub announced: u64,
    /// The part of the body that has come, in bytes.
    pub received: u64,
    /// Whether a review was answered on it.
    pub is_proven: bool,
    /// Whether its peer is known: a review from there was answered lately.
    pub is_known: bool,
}

/// How long a connection is kept: those with the lowest priority are closed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// Silent or too slow for longer than a working client would be.
    Stalled,
    /// New or sending in good time, from an unknown peer.
    Stranger,
    /// New or sending in good time, from a known peer.
    Newcomer,
    /// Idle or sending in good time, after a review was answered on it.
    Proven,
}

/// The order within one peer and priority: the slowest is closed first, then the oldest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    rate: u64,
    age: Reverse<Duration>,
}

/// The connections that may be closed, each with its priority, in the order in which they are closed. One that is being answered has
/// done its part and stays.
pub(super) fn order(connections: impl Iterator<Item = (u64, Snapshot)>) -> Vec<(u64, Priority)> {
    let candidate = |(key, seen): (u64, Snapshot)| {
        let (priority, rank) = seen.judged()?;
        Some(Candidate { key: (key, priority), peer: seen.peer, priority, rank })
    };
    first_to_go(connections.filter_map(candidate).collect())
}

impl Snapshot {
    /// The priority of the connection; none if it may not be closed at all.
    pub(crate) fn priority(&self) -> Option<Priority> {
        self.judged().map(|(priority, _)| priority)
    }

    fn judged(&self) -> Option<(Priority, Rank)> {
        let Self { announced, received, elapsed, .. } = *self;
        let progress = Progress { announced, received, elapsed };
        let fresh = if self.is_known || self.is_proven { FRESH_KNOWN } else { FRESH };
        let (is_stalled, rate) = match self.activity {
            Activity::Asking => return None,
            Activity::Sending => (progress.lags(), progress.rate()),
            Activity::Waiting => (false, 0),
            Activity::Opening => (elapsed > fresh, 0),
            Activity::Idle => (elapsed > fresh && !self.is_proven, 0),
        };
        let priority = match (is_stalled, self.is_proven, self.is_known) {
            (true, _, _) => Priority::Stalled,
            (false, true, _) => Priority::Proven,
            (false, false, true) => Priority::Newcomer,
            (false, false, false) => Priority::Stranger,
        };
        Some((priority, Rank { rate, age: Reverse(elapsed) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A silent connection from `10.0.0.<last>`.
    fn seen(last: u8, activity: Activity, millis: u64) -> Snapshot {
        Snapshot {
            peer: Peer::of([10, 0, 0, last].into()),
            activity,
            elapsed: Duration::from_millis(millis),
            announced: 0,
            received: 0,
            is_proven: false,
            is_known: false,
        }
    }

    fn sending(last: u8, millis: u64, announced: u64, received: u64) -> Snapshot {
        Snapshot { announced, received, ..seen(last, Activity::Sending, millis) }
    }

    fn proven(seen: Snapshot) -> Snapshot {
        Snapshot { is_proven: true, is_known: true, ..seen }
    }

    fn order_of(connections: &[Snapshot]) -> Vec<u64> {
        order((0..).zip(connections.iter().copied())).into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn who_is_being_answered_stays() {
        assert_eq!(order_of(&[seen(1, Activity::Asking, 99_000), proven(seen(1, Activity::Asking, 1))]), [0_u64; 0]);
    }

    #[test]
    fn idle_ones_that_have_asked_are_the_last_to_go() {
        let idle = proven(seen(1, Activity::Idle, 200_000));
        let known = Snapshot { is_known: true, ..seen(1, Activity::Opening, 10) };
        let stranger = seen(2, Activity::Opening, 10);
        let silent = seen(2, Activity::Opening, 2000);
        assert_eq!(order_of(&[idle, known, stranger, silent]), [3, 2, 1, 0]);
        let late = Snapshot { elapsed: Duration::from_millis(1900), ..known };
        assert_eq!(order_of(&[late, stranger]), [1, 0], "it may only have been read late");
    }

    #[test]
    fn of_slow_bodies_the_slowest_goes_first() {
        let slow = [sending(1, 2000, 4000, 500), sending(1, 2000, 4000, 10), sending(1, 4000, 4000, 30)];
        assert_eq!(order_of(&slow), [1, 2, 0]);
    }

    #[test]
    fn having_asked_before_does_not_help_who_trickles() {
        let trickles = proven(sending(1, 2000, 4000, 10));
        let stranger = seen(2, Activity::Opening, 500);
        assert_eq!(order_of(&[trickles, stranger]), [0, 1]);
        let in_good_time = proven(sending(1, 2000, 4 << 20, 3 << 20));
        assert_eq!(order_of(&[in_good_time, stranger]), [1, 0]);
    }

    #[test]
    fn who_waits_for_us_is_not_slow() {
        let waiting = seen(1, Activity::Waiting, 5000);
        let silent = seen(2, Activity::Opening, 2000);
        assert_eq!(order_of(&[waiting, silent]), [1, 0]);
    }

    #[test]
    fn idle_without_an_answer_is_silent() {
        // A client that asked for what does not exist, and one that has just connected.
        assert_eq!(order_of(&[seen(1, Activity::Opening, 10), seen(2, Activity::Idle, 2000)]), [1, 0]);
    }

    #[test]
    fn a_flood_from_one_source_leaves_the_newcomer_of_another() {
        let mut all: Vec<_> = (0..50).map(|age| seen(1, Activity::Opening, age)).collect();
        all.push(seen(2, Activity::Opening, 900));
        let found = order_of(&all);
        assert_eq!(found[0], 49, "the oldest of the flood");
        assert_eq!(found.iter().position(|key| *key == 50), Some(49), "after all of the flood but the newest");
    }
}
