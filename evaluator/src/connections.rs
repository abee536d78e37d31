//! The open connections: how many, since when each is idle, and which one goes to make room.
//!
//! A request touches its own connection's atomics and no lock; the list is locked when a connection comes or goes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;
use prometheus::{IntCounter, IntGauge};
use tokio::sync::Notify;

use crate::metrics::Metrics;

/// Longest time for a handshake and a request's head.
const HEAD: Duration = Duration::from_secs(10);
/// Longest time between two requests. Clients should give up idle connections before the server does, or a request may
/// cross the close on its way; Go's do so after 90 s.
const IDLE: Duration = Duration::from_secs(300);
/// How often old ones are looked for.
const SWEEP: Duration = Duration::from_millis(500);

/// All connections of the admission port.
pub struct Connections {
    start: Instant,
    limit: usize,
    open: Mutex<Open>,
    empty: Notify,
    gauge: IntGauge,
    closed: IntCounter,
}

#[derive(Default)]
struct Open {
    next: u64,
    places: HashMap<u64, Arc<Place>>,
}

/// One connection's state, shared by its task and the list.
pub struct Place {
    start: Instant,
    /// Milliseconds since the start, times four, plus the [`Doing`].
    state: AtomicU64,
    /// Whether it ever sent a request.
    has_asked: AtomicBool,
    close: AtomicBool,
    finish: AtomicBool,
    waker: AtomicWaker,
}

/// What a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// Shakes hands or sends a head.
    Opening,
    /// Nothing, between two requests.
    Idle,
    /// A request is under way.
    Busy,
}

/// A connection in the list, until it is dropped.
pub struct Listed {
    connections: Arc<Connections>,
    key: u64,
    /// Its state.
    pub place: Arc<Place>,
}

/// What a connection is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// To go on.
    Nothing,
    /// To end after the request that is under way.
    Finish,
    /// To end now.
    Close,
}

impl Connections {
    /// At most `limit`.
    pub fn new(limit: usize, metrics: &Metrics) -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            limit,
            open: Mutex::default(),
            empty: Notify::new(),
            gauge: metrics.connections.clone(),
            closed: metrics.connections_closed.clone(),
        })
    }

    /// Lists a new connection. When there are too many, the one that does nothing for the longest time goes, and before all
    /// others one that never asked for anything; when all are busy, the new one is refused.
    pub fn enter(self: &Arc<Self>) -> Option<Listed> {
        let mut open = self.open();
        if open.places.len() >= self.limit {
            self.closed.inc();
            let key = oldest(&open.places)?;
            if let Some(place) = open.places.remove(&key) {
                place.close();
            }
        }
        let place = Arc::new(Place {
            start: self.start,
            state: AtomicU64::new(0),
            has_asked: AtomicBool::new(false),
            close: AtomicBool::new(false),
            finish: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
        place.set(Doing::Opening);
        let key = open.next;
        open.next += 1;
        open.places.insert(key, Arc::clone(&place));
        self.gauge.inc();
        Some(Listed { connections: Arc::clone(self), key, place })
    }

    /// Closes an eighth of the connections, in the same order, to free descriptors.
    pub fn make_room(&self) {
        let open = self.open();
        let mut idle: Vec<_> = open.places.values().filter_map(Place::rank).collect();
        idle.sort_by_key(|(rank, _)| *rank);
        for (_, place) in idle.iter().take(open.places.len().div_ceil(8)) {
            self.closed.inc();
            place.close();
        }
    }

    /// Closes connections that take too long, for ever.
    pub async fn sweep(&self) {
        let mut ticks = tokio::time::interval(SWEEP);
        loop {
            ticks.tick().await;
            for place in self.open().places.values() {
                let (doing, since) = place.doing();
                let age = self.start.elapsed().saturating_sub(since);
                if (doing == Doing::Opening && age > HEAD) || (doing == Doing::Idle && age > IDLE) {
                    place.close();
                }
            }
        }
    }

    /// Asks every connection to end after the request that is under way.
    pub fn finish(&self) {
        for place in self.open().places.values() {
            place.finish.store(true, Ordering::SeqCst);
            place.waker.wake();
        }
    }

    /// Has every connection look at its requests again.
    pub fn wake(&self) {
        for place in self.open().places.values() {
            place.waker.wake();
        }
    }

    /// Waits until none is left.
    pub async fn gone(&self) {
        loop {
            let empty = self.empty.notified();
            if self.open().places.is_empty() {
                return;
            }
            empty.await;
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The one that is not busy and is missed least.
fn oldest(places: &HashMap<u64, Arc<Place>>) -> Option<u64> {
    let idle = places.iter().filter_map(|(key, place)| Some((place.rank()?.0, *key)));
    // Of two that are equally old the one that came first has the smaller key.
    idle.min().map(|(_, key)| key)
}

impl Place {
    /// A request's head is there.
    pub fn busy(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
        self.set(Doing::Busy);
    }

    /// A request is answered.
    pub fn idle(&self) {
        self.set(Doing::Idle);
    }

    /// Bytes came; between two requests they are the beginning of a head.
    pub fn heard(&self) {
        if self.doing().0 == Doing::Idle {
            self.set(Doing::Opening);
        }
    }

    /// What the connection should do. Its task is woken when that changes.
    pub fn asked(&self, cx: &Context<'_>) -> Asked {
        self.waker.register(cx.waker());
        if self.close.load(Ordering::SeqCst) {
            Asked::Close
        } else if self.finish.load(Ordering::SeqCst) {
            Asked::Finish
        } else {
            Asked::Nothing
        }
    }

    fn close(&self) {
        self.close.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    fn set(&self, doing: Doing) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX >> 2);
        self.state.store(millis << 2 | doing as u64, Ordering::Relaxed);
    }

    /// Its rank among those that may be closed: whether it ever asked, then since when it does nothing, counted from the
    /// start. A flood of connections that never ask must not drive out who asks now and then. Nothing where it is busy or
    /// closes already.
    fn rank(self: &Arc<Self>) -> Option<((bool, Duration), &Arc<Self>)> {
        let (doing, since) = self.doing();
        let rank = (self.has_asked.load(Ordering::Relaxed), since);
        (doing != Doing::Busy && !self.close.load(Ordering::SeqCst)).then_some((rank, self))
    }

    /// What it does, and since when, counted from the start.
    fn doing(&self) -> (Doing, Duration) {
        let state = self.state.load(Ordering::Relaxed);
        let doing = match state & 3 {
            0 => Doing::Opening,
            1 => Doing::Idle,
            _ => Doing::Busy,
        };
        (doing, Duration::from_millis(state >> 2))
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut open = self.connections.open();
        open.places.remove(&self.key);
        if open.places.is_empty() {
            self.connections.empty.notify_waiters();
        }
        self.connections.gauge.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(limit: usize) -> Arc<Connections> {
        Connections::new(limit, &Metrics::new().expect("registers"))
    }

    fn is_closed(listed: &Listed) -> bool {
        listed.place.close.load(Ordering::SeqCst)
    }

    fn aged(listed: &Listed, millis: u64, doing: Doing) {
        listed.place.state.store(millis << 2 | doing as u64, Ordering::Relaxed);
    }

    #[test]
    fn the_oldest_idle_one_makes_room() {
        let all = connections(3);
        let listed: Vec<_> = (0..3).filter_map(|_| all.enter()).collect();
        aged(&listed[0], 1, Doing::Busy);
        aged(&listed[1], 3, Doing::Idle);
        aged(&listed[2], 2, Doing::Opening);
        let newest = all.enter().expect("there is room");
        aged(&newest, 9, Doing::Opening);
        assert_eq!(listed.iter().map(is_closed).collect::<Vec<_>>(), [false, false, true]);
        let next = all.enter().expect("there is room");
        assert_eq!(listed.iter().map(is_closed).collect::<Vec<_>>(), [false, true, true]);
        newest.place.busy();
        next.place.busy();
        assert!(all.enter().is_none());
    }

    #[test]
    fn who_never_asked_makes_room_for_who_did() {
        let all = connections(2);
        let (asked, silent) = (all.enter().expect("there is room"), all.enter().expect("there is room"));
        asked.place.busy();
        aged(&asked, 1, Doing::Idle);
        aged(&silent, 2, Doing::Opening);
        let _newest = all.enter().expect("there is room");
        assert!(is_closed(&silent) && !is_closed(&asked));
    }

    #[test]
    fn bytes_between_requests_begin_a_head() {
        let all = connections(1);
        let listed = all.enter().expect("there is room");
        listed.place.busy();
        listed.place.heard();
        assert_eq!(listed.place.doing().0, Doing::Busy);
        listed.place.idle();
        listed.place.heard();
        assert_eq!(listed.place.doing().0, Doing::Opening);
    }

    #[tokio::test]
    async fn the_last_one_is_waited_for() {
        let all = connections(2);
        let listed = all.enter();
        let waiting = tokio::spawn({
            let all = Arc::clone(&all);
            async move { all.gone().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(listed);
        waiting.await.expect("joins");
    }
}
