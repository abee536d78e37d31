//! One connection's state, shared by its task and the list. A request touches its own connection's atomics and no lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Context;
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;
use portcullis_process::crowd::Source;

use crate::http::eviction::{Doing, Seen};

/// Bits of the state that say what the connection does.
const DOING_BITS: u32 = 3;

/// One connection's state.
pub(crate) struct Place {
    start: Instant,
    source: Source,
    /// Milliseconds since the start, shifted, plus the [`Doing`].
    state: AtomicU64,
    announced: AtomicU64,
    received: AtomicU64,
    is_proven: AtomicBool,
    is_known: bool,
    close: AtomicBool,
    finish: AtomicBool,
    waker: AtomicWaker,
}

/// What a connection is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// To go on.
    Nothing,
    /// To end after the request that is under way.
    Finish,
    /// To end now.
    Close,
}

impl Place {
    /// Of a connection that has just come, among others whose time is counted from `start`.
    pub(crate) fn new(start: Instant, source: Source, is_known: bool) -> Self {
        let place = Self {
            start,
            source,
            state: AtomicU64::new(0),
            announced: AtomicU64::new(0),
            received: AtomicU64::new(0),
            is_proven: AtomicBool::new(false),
            is_known,
            close: AtomicBool::new(false),
            finish: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        };
        place.set(Doing::Opening);
        place
    }

    /// Where it comes from.
    pub(crate) fn source(&self) -> Source {
        self.source
    }

    /// Whether its source had asked before it came.
    pub(crate) fn is_known(&self) -> bool {
        self.is_known
    }

    /// Whether a review was answered on it.
    pub(crate) fn is_proven(&self) -> bool {
        self.is_proven.load(Ordering::Relaxed)
    }

    /// It is the client's turn to go on with the handshake.
    pub(crate) fn opening(&self) {
        self.set(Doing::Opening);
    }

    /// A handshake waits for its turn, or a request's body for memory.
    pub(crate) fn waiting(&self) {
        self.set(Doing::Waiting);
    }

    /// A request's head is there, and a body of so many bytes may come.
    pub(crate) fn sending(&self, announced: u64) {
        self.announced.store(announced, Ordering::Relaxed);
        self.received.store(0, Ordering::Relaxed);
        self.set(Doing::Sending);
    }

    /// So many bytes of the body are there.
    pub(crate) fn received(&self, bytes: u64) {
        self.received.store(bytes, Ordering::Relaxed);
    }

    /// A request is whole.
    pub(crate) fn asking(&self) {
        self.set(Doing::Asking);
    }

    /// A request is answered.
    pub(crate) fn idle(&self) {
        self.set(Doing::Idle);
    }

    /// A review was answered. Says whether it is the first one.
    pub(crate) fn proven(&self) -> bool {
        !self.is_proven.swap(true, Ordering::Relaxed)
    }

    /// Bytes came; between two requests they are the beginning of a head.
    pub(crate) fn heard(&self) {
        if self.doing().0 == Doing::Idle {
            self.set(Doing::Opening);
        }
    }

    /// What the connection should do. Its task is woken when that changes.
    pub(crate) fn asked(&self, cx: &Context<'_>) -> Asked {
        self.waker.register(cx.waker());
        if self.is_closing() {
            // What came whole in the last moment is still answered.
            if self.doing().0 == Doing::Asking { Asked::Finish } else { Asked::Close }
        } else if self.finish.load(Ordering::SeqCst) {
            Asked::Finish
        } else {
            Asked::Nothing
        }
    }

    pub(crate) fn close(&self) {
        self.close.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.close.load(Ordering::SeqCst)
    }

    pub(crate) fn finish(&self) {
        self.finish.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// What it does, and for how long.
    pub(crate) fn doing(&self) -> (Doing, Duration) {
        let state = self.state.load(Ordering::Relaxed);
        let doing = match state & ((1 << DOING_BITS) - 1) {
            0 => Doing::Opening,
            1 => Doing::Idle,
            2 => Doing::Waiting,
            3 => Doing::Sending,
            _ => Doing::Asking,
        };
        (doing, self.start.elapsed().saturating_sub(Duration::from_millis(state >> DOING_BITS)))
    }

    /// What is to be known where somebody has to go.
    pub(crate) fn seen(&self) -> Seen {
        let (doing, elapsed) = self.doing();
        Seen {
            source: self.source,
            doing,
            elapsed,
            announced: self.announced.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            is_proven: self.is_proven(),
            is_known: self.is_known,
        }
    }

    fn set(&self, doing: Doing) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX >> DOING_BITS);
        self.state_at(doing, millis);
    }

    /// Since `millis` after the start.
    pub(crate) fn state_at(&self, doing: Doing, millis: u64) {
        let number = match doing {
            Doing::Opening => 0,
            Doing::Idle => 1,
            Doing::Waiting => 2,
            Doing::Sending => 3,
            Doing::Asking => 4,
        };
        self.state.store(millis << DOING_BITS | number, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn place() -> Place {
        Place::new(Instant::now(), Source::of([10, 0, 0, 1].into()), false)
    }

    #[test]
    fn each_state_is_read_as_it_was_written() {
        let place = place();
        for doing in [Doing::Opening, Doing::Idle, Doing::Waiting, Doing::Sending, Doing::Asking] {
            place.set(doing);
            assert_eq!(place.doing().0, doing);
        }
    }

    #[test]
    fn bytes_between_requests_begin_a_head() {
        let place = place();
        place.sending(10);
        place.heard();
        assert_eq!(place.doing().0, Doing::Sending);
        place.idle();
        place.heard();
        assert_eq!(place.doing().0, Doing::Opening);
    }

    #[test]
    fn what_is_whole_is_answered_before_the_connection_closes() {
        let place = place();
        let cx = Context::from_waker(Waker::noop());
        assert_eq!(place.asked(&cx), Asked::Nothing);
        place.sending(10);
        place.close();
        assert_eq!(place.asked(&cx), Asked::Close);
        place.asking();
        assert_eq!(place.asked(&cx), Asked::Finish);
    }
}
