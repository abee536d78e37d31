//! The open connections: how many there are, which peers have sent reviews before, and which one is closed to make room.
//!
//! The list is locked when a connection comes or goes, and never by a request.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use portcullis_process::eviction::Peer;
use portcullis_util::lock;
use prometheus::{IntCounter, IntGauge};
use tokio::sync::Notify;

use crate::http::connection::ConnectionState;
use crate::http::eviction::{self, Activity, Priority};
use crate::metrics::Metrics;

/// The longest time for a handshake and a request's head; and, from a peer that has sent no review yet, to its first byte.
const HEAD: Duration = Duration::from_secs(10);
/// The longest wait for a permit to shake hands. A body that waits for memory is refused before that.
const WAIT: Duration = Duration::from_secs(20);
/// The longest time between two requests. Clients should give up idle connections before the server does, or a request may
/// cross the close on its way; Go's do so after 90 s.
const IDLE: Duration = Duration::from_secs(300);
/// How often connections that take too long are looked for.
const SWEEP: Duration = Duration::from_millis(500);
/// How long a decision about which connections are closed next is used. Deciding takes longer the more connections there are, and a flood
/// would cause thousands of decisions a second.
const DECIDED: Duration = Duration::from_millis(250);
/// A decision names one in so many connections.
const ONE_OF: usize = 8;
/// How long a peer counts as known after its last review. API servers are silent at night.
const KNOWN: Duration = Duration::from_secs(3600);
/// The most peers that are remembered.
const MOST_KNOWN: usize = 1024;
/// The time without an eviction after which the connections no longer count as too many, and the next eviction is logged again.
const CALM: Duration = Duration::from_secs(10);

/// All connections of the admission port.
pub(crate) struct Connections {
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
    states: HashMap<u64, Arc<ConnectionState>>,
    known: Known,
    order: Order,
    /// When a connection was last closed to make room; none if not lately.
    crowded: Option<Instant>,
}

/// Which connections are closed next, as last decided.
#[derive(Default)]
struct Order {
    next: VecDeque<(u64, Priority)>,
    decided: Option<Instant>,
}

/// Peers whose reviews were answered, each with the time of the last one.
#[derive(Default)]
struct Known(HashMap<Peer, Instant>);

/// A connection in the list; dropping it takes it out.
pub(crate) struct Listed {
    connections: Arc<Connections>,
    key: u64,
    /// The connection's state.
    pub state: Arc<ConnectionState>,
}

impl Connections {
    /// A list of at most `limit` connections.
    pub(crate) fn new(limit: usize, metrics: &Metrics) -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            limit,
            open: Mutex::default(),
            empty: Notify::new(),
            gauge: metrics.connections.clone(),
            closed: metrics.connections_closed.clone(),
        })
    }

    /// Lists a new connection. If there are too many, [`eviction::order`] says which one goes; if all are being answered, the new one is
    /// refused.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Listed> {
        let mut open = lock(&self.open);
        if open.states.len() >= self.limit {
            self.closed.inc();
            if !open.close_one() {
                return None;
            }
        }
        let peer = Peer::of(address);
        let state = Arc::new(ConnectionState::new(self.start, peer, open.known.0.contains_key(&peer)));
        let key = open.next;
        open.next += 1;
        open.states.insert(key, Arc::clone(&state));
        self.gauge.inc();
        Some(Listed { connections: Arc::clone(self), key, state })
    }

    /// Closes an eighth of the connections, in the same order, to free descriptors.
    pub(crate) fn make_room(&self) {
        let mut open = lock(&self.open);
        for _ in 0..open.states.len().div_ceil(8) {
            if open.close_one() {
                self.closed.inc();
            }
        }
    }

    /// Closes connections that take too long. Never returns.
    pub(crate) async fn sweep(&self) {
        let mut ticks = tokio::time::interval(SWEEP);
        loop {
            ticks.tick().await;
            let mut open = lock(&self.open);
            let Open { states, known, crowded, .. } = &mut *open;
            let now = Instant::now();
            for state in states.values() {
                if state.is_proven() {
                    known.add(state.peer(), now);
                }
                let (activity, age) = state.activity();
                let longest = match activity {
                    Activity::Opening => HEAD,
                    // Clients dial ahead: an API server opens a connection and does not use it if another one becomes free meanwhile. Go does not
                    // repeat a request that crosses the close of a connection on its first use, so those of known peers stay as long as used ones.
                    Activity::Idle if state.is_proven() || known.0.contains_key(&state.peer()) => IDLE,
                    Activity::Idle => HEAD,
                    Activity::Waiting => WAIT,
                    // Bodies have a minimum rate, and policies have limits of their own.
                    Activity::Sending | Activity::Asking => continue,
                };
                if age > longest {
                    state.close();
                }
            }
            known.forget(now);
            if crowded.take_if(|crowded| crowded.elapsed() > CALM).is_some() {
                tracing::info!("there is room for connections again");
            }
        }
    }

    /// Asks every connection to end after the request that is under way.
    pub(crate) fn finish(&self) {
        lock(&self.open).states.values().for_each(|state| state.finish());
    }

    /// Wakes the tasks of all connections.
    pub(crate) fn wake(&self) {
        lock(&self.open).states.values().for_each(|state| state.wake());
    }

    /// Waits until no connection is left.
    pub(crate) async fn gone(&self) {
        loop {
            let empty = self.empty.notified();
            if lock(&self.open).states.is_empty() {
                return;
            }
            empty.await;
        }
    }
}

impl Open {
    /// Closes the connection that comes first in the order. False if all are being answered.
    fn close_one(&mut self) -> bool {
        if self.order.decided.is_none_or(|decided| decided.elapsed() > DECIDED) {
            self.order.next.clear();
        }
        let Some(state) = self.next_to_go().or_else(|| {
            self.decide();
            self.next_to_go()
        }) else {
            return false;
        };
        if self.crowded.replace(Instant::now()).is_none() {
            self.warn();
        }
        state.close();
        true
    }

    /// The next connection whose priority has not risen since the decision.
    fn next_to_go(&mut self) -> Option<Arc<ConnectionState>> {
        while let Some((key, priority)) = self.order.next.pop_front() {
            let now = self.states.get(&key).and_then(|state| state.snapshot().priority());
            if now.is_some_and(|now| now <= priority) {
                return self.states.remove(&key);
            }
        }
        None
    }

    fn decide(&mut self) {
        let may_go = self.states.iter().filter(|(_, state)| !state.is_closing());
        let mut order = eviction::order(may_go.map(|(key, state)| (*key, state.snapshot())));
        order.truncate(self.states.len().div_ceil(ONE_OF));
        self.order = Order { next: order.into(), decided: Some(Instant::now()) };
    }

    fn warn(&self) {
        let mut peers = HashMap::<_, usize>::new();
        for state in self.states.values() {
            *peers.entry(state.peer()).or_default() += 1;
        }
        if let Some((peer, count)) = peers.iter().max_by_key(|(_, count)| **count) {
            let (open, peers) = (self.states.len(), peers.len());
            tracing::warn!(
                open, peers, most_from = %peer, of_these = count,
                "too many connections; those that send slowly or nothing are closed to make room"
            );
        }
    }
}

impl Known {
    fn add(&mut self, peer: Peer, now: Instant) {
        self.0.insert(peer, now);
        if self.0.len() > MOST_KNOWN
            && let Some(oldest) = self.0.iter().min_by_key(|(_, last)| **last).map(|(peer, _)| *peer)
        {
            self.0.remove(&oldest);
        }
    }

    fn forget(&mut self, now: Instant) {
        self.0.retain(|_, last| now.saturating_duration_since(*last) < KNOWN);
    }
}

impl Listed {
    /// Notes that a request is answered; `is_review` if it was a review of a known policy, which not every client can send.
    pub(crate) fn answered(&self, is_review: bool) {
        self.state.idle();
        if is_review && self.state.proven() {
            lock(&self.connections.open).known.add(self.state.peer(), Instant::now());
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut open = lock(&self.connections.open);
        open.states.remove(&self.key);
        if open.states.is_empty() {
            self.connections.empty.notify_waiters();
        }
        self.connections.gauge.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: [u8; 4] = [10, 0, 0, 1];
    const FAR: [u8; 4] = [10, 0, 0, 2];

    fn connections(limit: usize) -> Arc<Connections> {
        Connections::new(limit, &Metrics::new().expect("registers"))
    }

    fn enter(all: &Arc<Connections>, address: [u8; 4]) -> Listed {
        all.enter(address.into()).expect("there is room")
    }

    fn closing(listed: &[Listed]) -> Vec<bool> {
        listed.iter().map(|one| one.state.is_closing()).collect()
    }

    #[test]
    fn the_oldest_idle_one_makes_room() {
        let all = connections(3);
        let listed: Vec<_> = (0..3).map(|_| enter(&all, NEAR)).collect();
        listed[0].state.asking();
        listed[1].state.state_at(Activity::Idle, 3);
        listed[2].state.state_at(Activity::Opening, 2);
        std::thread::sleep(Duration::from_millis(5));
        let newest = enter(&all, NEAR);
        newest.state.state_at(Activity::Opening, 9);
        assert_eq!(closing(&listed), [false, false, true]);
        let next = enter(&all, NEAR);
        assert_eq!(closing(&listed), [false, true, true]);
        newest.state.asking();
        next.state.asking();
        assert!(all.enter(NEAR.into()).is_none(), "all are being answered");
    }

    #[test]
    fn who_never_asked_makes_room_for_who_did() {
        let all = connections(2);
        let listed = [enter(&all, NEAR), enter(&all, NEAR)];
        listed[0].answered(true);
        listed[1].answered(false);
        let _newest = enter(&all, NEAR);
        assert_eq!(closing(&listed), [false, true]);
    }

    #[test]
    fn a_source_that_has_asked_is_known_to_those_who_come_after() {
        let all = connections(9);
        let first = enter(&all, NEAR);
        assert!(!enter(&all, NEAR).state.is_known());
        first.answered(false);
        assert!(!enter(&all, NEAR).state.is_known());
        first.answered(true);
        drop(first);
        assert!(enter(&all, NEAR).state.is_known());
        assert!(!enter(&all, FAR).state.is_known());
    }

    #[test]
    fn sources_are_remembered_for_a_time_and_up_to_a_number() {
        let (mut known, start) = (Known::default(), Instant::now());
        let peer = |number: u32| Peer::of(IpAddr::from(number.to_be_bytes()));
        for number in 0..=1024 {
            known.add(peer(number), start + Duration::from_millis(number.into()));
        }
        assert_eq!(known.0.len(), MOST_KNOWN);
        assert!(!known.0.contains_key(&peer(0)), "the oldest is forgotten");
        known.forget(start + KNOWN + Duration::from_millis(1023));
        assert_eq!(known.0.len(), 1);
    }

    #[test]
    fn who_has_said_something_since_it_was_decided_stays() {
        let all = connections(16);
        let listed: Vec<_> = (0..16).map(|_| enter(&all, NEAR)).collect();
        listed.iter().zip(0..).for_each(|(one, millis)| one.state.state_at(Activity::Opening, millis));
        std::thread::sleep(Duration::from_millis(20));
        let _first = enter(&all, NEAR);
        // The decision named two connections, and one of them is closed.
        listed[1].state.asking();
        let _second = enter(&all, NEAR);
        assert_eq!(closing(&listed)[..4], [true, false, true, false]);
    }

    #[tokio::test]
    async fn the_last_one_is_waited_for() {
        let all = connections(2);
        let listed = all.enter(NEAR.into());
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
