//! The open connections: how many, which sources have asked before, and who goes to make room.
//!
//! The list is locked when a connection comes or goes, and never by a request.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use portcullis_process::crowd::Source;
use prometheus::{IntCounter, IntGauge};
use tokio::sync::Notify;

use crate::http::connection::Place;
use crate::http::eviction::{self, Doing, Standing};
use crate::metrics::Metrics;

/// Longest time for a handshake and a request's head; also to the first byte of that, from a source that has not asked yet.
const HEAD: Duration = Duration::from_secs(10);
/// Longest time to wait for a turn, in which nobody is told; bodies that wait for memory are told before.
const WAIT: Duration = Duration::from_secs(20);
/// Longest time between two requests. Clients should give up idle connections before the server does, or a request may
/// cross the close on its way; Go's do so after 90 s.
const IDLE: Duration = Duration::from_secs(300);
/// How often old ones are looked for.
const SWEEP: Duration = Duration::from_millis(500);
/// For how long it stays decided who goes next. To decide takes longer the more connections there are, and a flood would have
/// it decided thousands of times a second.
const DECIDED: Duration = Duration::from_millis(250);
/// Of so many connections one is decided to go at a time.
const ONE_OF: usize = 8;
/// For how long a source counts as one that has asked. API servers are silent at night.
const KNOWN: Duration = Duration::from_secs(3600);
/// Sources that are remembered.
const MOST_KNOWN: usize = 1024;
/// Time without anybody who had to go after which all is well again.
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
    places: HashMap<u64, Arc<Place>>,
    known: Known,
    order: Order,
    /// When somebody had to go lately.
    crowded: Option<Instant>,
}

/// Who goes next, as it was decided lately.
#[derive(Default)]
struct Order {
    next: VecDeque<(u64, Standing)>,
    decided: Option<Instant>,
}

/// Sources of which a review was answered, and when last.
#[derive(Default)]
struct Known(HashMap<Source, Instant>);

/// A connection in the list, until it is dropped.
pub(crate) struct Listed {
    connections: Arc<Connections>,
    key: u64,
    /// Its state.
    pub place: Arc<Place>,
}

impl Connections {
    /// At most `limit`.
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

    /// Lists a new connection. When there are too many, those go that [`eviction::order`] says; when all are being answered, the new
    /// one is refused.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Listed> {
        let mut open = self.open();
        if open.places.len() >= self.limit {
            self.closed.inc();
            if !open.close_one() {
                return None;
            }
        }
        let source = Source::of(address);
        let place = Arc::new(Place::new(self.start, source, open.known.0.contains_key(&source)));
        let key = open.next;
        open.next += 1;
        open.places.insert(key, Arc::clone(&place));
        self.gauge.inc();
        Some(Listed { connections: Arc::clone(self), key, place })
    }

    /// Closes an eighth of the connections, in the same order, to free descriptors.
    pub(crate) fn make_room(&self) {
        let mut open = self.open();
        for _ in 0..open.places.len().div_ceil(8) {
            if open.close_one() {
                self.closed.inc();
            }
        }
    }

    /// Closes connections that take too long, for ever.
    pub(crate) async fn sweep(&self) {
        let mut ticks = tokio::time::interval(SWEEP);
        loop {
            ticks.tick().await;
            let mut open = self.open();
            let Open { places, known, crowded, .. } = &mut *open;
            let now = Instant::now();
            for place in places.values() {
                if place.is_proven() {
                    known.add(place.source(), now);
                }
                let (doing, age) = place.doing();
                let longest = match doing {
                    Doing::Opening => HEAD,
                    // Clients dial ahead: an API server whenever another connection becomes free meanwhile. Go repeats no request that
                    // crosses the close of a connection on its first use, so those of sources that ask wait as long as used ones.
                    Doing::Idle if place.is_proven() || known.0.contains_key(&place.source()) => IDLE,
                    Doing::Idle => HEAD,
                    Doing::Waiting => WAIT,
                    // A body has a pace to keep, and policies have limits of their own.
                    Doing::Sending | Doing::Asking => continue,
                };
                if age > longest {
                    place.close();
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
        self.open().places.values().for_each(|place| place.finish());
    }

    /// Has every connection look at its requests again.
    pub(crate) fn wake(&self) {
        self.open().places.values().for_each(|place| place.wake());
    }

    /// Waits until none is left.
    pub(crate) async fn gone(&self) {
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

impl Open {
    /// Closes the one that is missed least, unless all are being answered.
    fn close_one(&mut self) -> bool {
        if self.order.decided.is_none_or(|decided| decided.elapsed() > DECIDED) {
            self.order.next.clear();
        }
        let Some(place) = self.next_to_go().or_else(|| {
            self.decide();
            self.next_to_go()
        }) else {
            return false;
        };
        if self.crowded.replace(Instant::now()).is_none() {
            self.tell();
        }
        place.close();
        true
    }

    /// The next that stands no better than it did when that was decided.
    fn next_to_go(&mut self) -> Option<Arc<Place>> {
        while let Some((key, standing)) = self.order.next.pop_front() {
            let now = self.places.get(&key).and_then(|place| place.seen().standing());
            if now.is_some_and(|now| now <= standing) {
                return self.places.remove(&key);
            }
        }
        None
    }

    fn decide(&mut self) {
        let may_go = self.places.iter().filter(|(_, place)| !place.is_closing());
        let mut order = eviction::order(may_go.map(|(key, place)| (*key, place.seen())));
        order.truncate(self.places.len().div_ceil(ONE_OF));
        self.order = Order { next: order.into(), decided: Some(Instant::now()) };
    }

    fn tell(&self) {
        let mut sources = HashMap::<_, usize>::new();
        for place in self.places.values() {
            *sources.entry(place.source()).or_default() += 1;
        }
        if let Some((source, count)) = sources.iter().max_by_key(|(_, count)| **count) {
            let (open, sources) = (self.places.len(), sources.len());
            tracing::warn!(
                open, sources, most_from = %source, of_these = count,
                "too many connections; those that send slowly or nothing are closed to make room"
            );
        }
    }
}

impl Known {
    fn add(&mut self, source: Source, now: Instant) {
        self.0.insert(source, now);
        if self.0.len() > MOST_KNOWN
            && let Some(oldest) = self.0.iter().min_by_key(|(_, last)| **last).map(|(source, _)| *source)
        {
            self.0.remove(&oldest);
        }
    }

    fn forget(&mut self, now: Instant) {
        self.0.retain(|_, last| now.saturating_duration_since(*last) < KNOWN);
    }
}

impl Listed {
    /// A request is answered; `is_review` says whether it was one, and not something that anybody can send.
    pub(crate) fn answered(&self, is_review: bool) {
        self.place.idle();
        if is_review && self.place.proven() {
            self.connections.open().known.add(self.place.source(), Instant::now());
        }
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

    const NEAR: [u8; 4] = [10, 0, 0, 1];
    const FAR: [u8; 4] = [10, 0, 0, 2];

    fn connections(limit: usize) -> Arc<Connections> {
        Connections::new(limit, &Metrics::new().expect("registers"))
    }

    fn enter(all: &Arc<Connections>, address: [u8; 4]) -> Listed {
        all.enter(address.into()).expect("there is room")
    }

    fn closing(listed: &[Listed]) -> Vec<bool> {
        listed.iter().map(|one| one.place.is_closing()).collect()
    }

    #[test]
    fn the_oldest_idle_one_makes_room() {
        let all = connections(3);
        let listed: Vec<_> = (0..3).map(|_| enter(&all, NEAR)).collect();
        listed[0].place.asking();
        listed[1].place.state_at(Doing::Idle, 3);
        listed[2].place.state_at(Doing::Opening, 2);
        std::thread::sleep(Duration::from_millis(5));
        let newest = enter(&all, NEAR);
        newest.place.state_at(Doing::Opening, 9);
        assert_eq!(closing(&listed), [false, false, true]);
        let next = enter(&all, NEAR);
        assert_eq!(closing(&listed), [false, true, true]);
        newest.place.asking();
        next.place.asking();
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
        assert!(!enter(&all, NEAR).place.is_known());
        first.answered(false);
        assert!(!enter(&all, NEAR).place.is_known());
        first.answered(true);
        drop(first);
        assert!(enter(&all, NEAR).place.is_known());
        assert!(!enter(&all, FAR).place.is_known());
    }

    #[test]
    fn sources_are_remembered_for_a_time_and_up_to_a_number() {
        let (mut known, start) = (Known::default(), Instant::now());
        let source = |number: u32| Source::of(IpAddr::from(number.to_be_bytes()));
        for number in 0..=1024 {
            known.add(source(number), start + Duration::from_millis(number.into()));
        }
        assert_eq!(known.0.len(), MOST_KNOWN);
        assert!(!known.0.contains_key(&source(0)), "the oldest is forgotten");
        known.forget(start + KNOWN + Duration::from_millis(1023));
        assert_eq!(known.0.len(), 1);
    }

    #[test]
    fn who_has_said_something_since_it_was_decided_stays() {
        let all = connections(16);
        let listed: Vec<_> = (0..16).map(|_| enter(&all, NEAR)).collect();
        listed.iter().zip(0..).for_each(|(one, millis)| one.place.state_at(Doing::Opening, millis));
        std::thread::sleep(Duration::from_millis(20));
        let _first = enter(&all, NEAR);
        // Two were decided on, of which one has gone.
        listed[1].place.asking();
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
