//! Which connections of the admission port go first when there is no room. Pure.
//!
//! What a connection is worth is what it has done: one on which a review was answered is of an API server, or of somebody who knows as much.

use std::cmp::Reverse;
use std::time::Duration;

use portcullis_process::crowd::{Candidate, Source, first_to_go};

use crate::http::pace::Progress;

/// How long a stranger may say nothing and count as one that is just about to say something.
const FRESH: Duration = Duration::from_secs(1);
/// The same for who comes from a source that has asked before: when this program is short of CPU, what he says is read late.
const FRESH_KNOWN: Duration = Duration::from_secs(2);

/// What a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Shakes hands or sends a head.
    Opening,
    /// Nothing, between two requests.
    Idle,
    /// Waits for its turn in the handshake, or until there is memory for the body of its request.
    Waiting,
    /// Sends the body of its request.
    Sending,
    /// Is being answered.
    Asking,
}

/// What is known of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Where it comes from.
    pub source: Source,
    /// What it does.
    pub doing: Doing,
    /// Since when.
    pub elapsed: Duration,
    /// Bytes of the body that it announced.
    pub announced: u64,
    /// Bytes of the body that came.
    pub received: u64,
    /// Whether a review was answered on it.
    pub is_proven: bool,
    /// Whether one was answered lately on another connection from the same source.
    pub is_known: bool,
}

/// What keeps a connection: those with the lower one go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// Says nothing, or too slowly, for longer than it takes to say something.
    Stalled,
    /// Has only just come, or sends in good time.
    Stranger,
    /// The same, from a source that has asked before.
    Newcomer,
    /// Has asked before and is idle, or sends in good time.
    Proven,
}

/// Of one source and standing, those with less go first: the slower, then the older.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Merit {
    rate: u64,
    age: Reverse<Duration>,
}

/// Those that may be closed, and why, with the first to go first. Who is being answered has sent all and waits for us, so it
/// stays.
pub(super) fn order(connections: impl Iterator<Item = (u64, Seen)>) -> Vec<(u64, Standing)> {
    let candidate = |(key, seen): (u64, Seen)| {
        let (standing, merit) = seen.judged()?;
        Some(Candidate { key: (key, standing), source: seen.source, standing, merit })
    };
    first_to_go(connections.filter_map(candidate).collect())
}

impl Seen {
    /// What keeps it, if it may be closed at all.
    pub(crate) fn standing(&self) -> Option<Standing> {
        self.judged().map(|(standing, _)| standing)
    }

    fn judged(&self) -> Option<(Standing, Merit)> {
        let Self { announced, received, elapsed, .. } = *self;
        let progress = Progress { announced, received, elapsed };
        let fresh = if self.is_known || self.is_proven { FRESH_KNOWN } else { FRESH };
        let (is_stalled, rate) = match self.doing {
            Doing::Asking => return None,
            Doing::Sending => (progress.lags(), progress.rate()),
            Doing::Waiting => (false, 0),
            Doing::Opening => (elapsed > fresh, 0),
            Doing::Idle => (elapsed > fresh && !self.is_proven, 0),
        };
        let standing = match (is_stalled, self.is_proven, self.is_known) {
            (true, _, _) => Standing::Stalled,
            (false, true, _) => Standing::Proven,
            (false, false, true) => Standing::Newcomer,
            (false, false, false) => Standing::Stranger,
        };
        Some((standing, Merit { rate, age: Reverse(elapsed) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A silent connection from `10.0.0.<last>`.
    fn seen(last: u8, doing: Doing, millis: u64) -> Seen {
        Seen {
            source: Source::of([10, 0, 0, last].into()),
            doing,
            elapsed: Duration::from_millis(millis),
            announced: 0,
            received: 0,
            is_proven: false,
            is_known: false,
        }
    }

    fn sending(last: u8, millis: u64, announced: u64, received: u64) -> Seen {
        Seen { announced, received, ..seen(last, Doing::Sending, millis) }
    }

    fn proven(seen: Seen) -> Seen {
        Seen { is_proven: true, is_known: true, ..seen }
    }

    fn order_of(connections: &[Seen]) -> Vec<u64> {
        order((0..).zip(connections.iter().copied())).into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn who_is_being_answered_stays() {
        assert_eq!(order_of(&[seen(1, Doing::Asking, 99_000), proven(seen(1, Doing::Asking, 1))]), [0_u64; 0]);
    }

    #[test]
    fn idle_ones_that_have_asked_are_the_last_to_go() {
        let idle = proven(seen(1, Doing::Idle, 200_000));
        let known = Seen { is_known: true, ..seen(1, Doing::Opening, 10) };
        let stranger = seen(2, Doing::Opening, 10);
        let silent = seen(2, Doing::Opening, 2000);
        assert_eq!(order_of(&[idle, known, stranger, silent]), [3, 2, 1, 0]);
        let late = Seen { elapsed: Duration::from_millis(1900), ..known };
        assert_eq!(order_of(&[late, stranger]), [1, 0], "he may only have been read late");
    }

    #[test]
    fn of_slow_bodies_the_slowest_goes_first() {
        let slow = [sending(1, 2000, 4000, 500), sending(1, 2000, 4000, 10), sending(1, 4000, 4000, 30)];
        assert_eq!(order_of(&slow), [1, 2, 0]);
    }

    #[test]
    fn having_asked_before_does_not_help_who_trickles() {
        let trickles = proven(sending(1, 2000, 4000, 10));
        let stranger = seen(2, Doing::Opening, 500);
        assert_eq!(order_of(&[trickles, stranger]), [0, 1]);
        let in_good_time = proven(sending(1, 2000, 4 << 20, 3 << 20));
        assert_eq!(order_of(&[in_good_time, stranger]), [1, 0]);
    }

    #[test]
    fn who_waits_for_us_is_not_slow() {
        let waiting = seen(1, Doing::Waiting, 5000);
        let silent = seen(2, Doing::Opening, 2000);
        assert_eq!(order_of(&[waiting, silent]), [1, 0]);
    }

    #[test]
    fn idle_without_an_answer_is_silent() {
        // Somebody who asked for what is not there, and somebody who has just connected.
        assert_eq!(order_of(&[seen(1, Doing::Opening, 10), seen(2, Doing::Idle, 2000)]), [1, 0]);
    }

    #[test]
    fn a_flood_from_one_source_leaves_the_newcomer_of_another() {
        let mut all: Vec<_> = (0..50).map(|age| seen(1, Doing::Opening, age)).collect();
        all.push(seen(2, Doing::Opening, 900));
        let found = order_of(&all);
        assert_eq!(found[0], 49, "the oldest of the flood");
        assert_eq!(found.iter().position(|key| *key == 50), Some(49), "after all of the flood but the newest");
    }
}
