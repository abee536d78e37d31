//! The state of one connection, shared by its task and the list of connections. A request touches the atomics of its own connection and no
//! lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Context;
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;
use portcullis_process::eviction::Peer;

use crate::http::eviction::{Activity, Snapshot};

/// The bits of the state that hold the [`Activity`].
const ACTIVITY_BITS: u32 = 3;

/// The state of one connection.
pub(crate) struct ConnectionState {
    start: Instant,
    peer: Peer,
    /// The time of the last change in milliseconds since `start`, shifted, plus the [`Activity`].
    state: AtomicU64,
    announced: AtomicU64,
    received: AtomicU64,
    is_proven: AtomicBool,
    is_known: bool,
    close: AtomicBool,
    finish: AtomicBool,
    waker: AtomicWaker,
}

/// What a connection's task should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Go on.
    GoOn,
    /// End after the request that is under way.
    Finish,
    /// End now.
    Close,
}

impl ConnectionState {
    /// The state of a connection that has just been accepted. All connections of a list count their time from the same `start`.
    pub(crate) fn new(start: Instant, peer: Peer, is_known: bool) -> Self {
        let created = Self {
            start,
            peer,
            state: AtomicU64::new(0),
            announced: AtomicU64::new(0),
            received: AtomicU64::new(0),
            is_proven: AtomicBool::new(false),
            is_known,
            close: AtomicBool::new(false),
            finish: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        };
        created.set(Activity::Opening);
        created
    }

    /// Where the connection comes from.
    pub(crate) fn peer(&self) -> Peer {
        self.peer
    }

    /// Whether its peer had sent a review before it connected.
    pub(crate) fn is_known(&self) -> bool {
        self.is_known
    }

    /// Whether a review was answered on this connection.
    pub(crate) fn is_proven(&self) -> bool {
        self.is_proven.load(Ordering::Relaxed)
    }

    /// Notes that the client has to go on with the handshake.
    pub(crate) fn opening(&self) {
        self.set(Activity::Opening);
    }

    /// Notes that a handshake waits for a permit, or a request's body for memory.
    pub(crate) fn waiting(&self) {
        self.set(Activity::Waiting);
    }

    /// Notes that a request's head has arrived, and that a body of `announced` bytes may come.
    pub(crate) fn sending(&self, announced: u64) {
        self.announced.store(announced, Ordering::Relaxed);
        self.received.store(0, Ordering::Relaxed);
        self.set(Activity::Sending);
    }

    /// Notes how many bytes of the body have arrived.
    pub(crate) fn received(&self, bytes: u64) {
        self.received.store(bytes, Ordering::Relaxed);
    }

    /// Notes that a request is complete and is being answered.
    pub(crate) fn asking(&self) {
        self.set(Activity::Asking);
    }

    /// Notes that a request is answered.
    pub(crate) fn idle(&self) {
        self.set(Activity::Idle);
    }

    /// Notes that a review was answered. True if it was the first one.
    pub(crate) fn proven(&self) -> bool {
        !self.is_proven.swap(true, Ordering::Relaxed)
    }

    /// Notes that bytes arrived; between two requests they are the beginning of a head.
    pub(crate) fn heard(&self) {
        if self.activity().0 == Activity::Idle {
            self.set(Activity::Opening);
        }
    }

    /// What the connection's task should do. It is woken when that changes.
    pub(crate) fn signal(&self, cx: &Context<'_>) -> Signal {
        self.waker.register(cx.waker());
        if self.is_closing() {
            // A request that became complete in the last moment is still answered.
            if self.activity().0 == Activity::Asking { Signal::Finish } else { Signal::Close }
        } else if self.finish.load(Ordering::SeqCst) {
            Signal::Finish
        } else {
            Signal::GoOn
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

    /// What the connection is doing, and for how long it has been doing that.
    pub(crate) fn activity(&self) -> (Activity, Duration) {
        let state = self.state.load(Ordering::Relaxed);
        let activity = match state & ((1 << ACTIVITY_BITS) - 1) {
            0 => Activity::Opening,
            1 => Activity::Idle,
            2 => Activity::Waiting,
            3 => Activity::Sending,
            _ => Activity::Asking,
        };
        (activity, self.start.elapsed().saturating_sub(Duration::from_millis(state >> ACTIVITY_BITS)))
    }

    /// What is needed to choose a connection to close.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let (activity, elapsed) = self.activity();
        Snapshot {
            peer: self.peer,
            activity,
            elapsed,
            announced: self.announced.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            is_proven: self.is_proven(),
            is_known: self.is_known,
        }
    }

    fn set(&self, activity: Activity) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX >> ACTIVITY_BITS);
        self.state_at(activity, millis);
    }

    /// Sets the activity as of `millis` after the start.
    pub(crate) fn state_at(&self, activity: Activity, millis: u64) {
        let number = match activity {
            Activity::Opening => 0,
            Activity::Idle => 1,
            Activity::Waiting => 2,
            Activity::Sending => 3,
            Activity::Asking => 4,
        };
        self.state.store(millis << ACTIVITY_BITS | number, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn state() -> ConnectionState {
        ConnectionState::new(Instant::now(), Peer::of([10, 0, 0, 1].into()), false)
    }

    #[test]
    fn each_state_is_read_as_it_was_written() {
        let state = state();
        for activity in [Activity::Opening, Activity::Idle, Activity::Waiting, Activity::Sending, Activity::Asking] {
            state.set(activity);
            assert_eq!(state.activity().0, activity);
        }
    }

    #[test]
    fn bytes_between_requests_begin_a_head() {
        let state = state();
        state.sending(10);
        state.heard();
        assert_eq!(state.activity().0, Activity::Sending);
        state.idle();
        state.heard();
        assert_eq!(state.activity().0, Activity::Opening);
    }

    #[test]
    fn what_is_whole_is_answered_before_the_connection_closes() {
        let state = state();
        let cx = Context::from_waker(Waker::noop());
        assert_eq!(state.signal(&cx), Signal::GoOn);
        state.sending(10);
        state.close();
        assert_eq!(state.signal(&cx), Signal::Close);
        state.asking();
        assert_eq!(state.signal(&cx), Signal::Finish);
    }
}
