//! The open connections: how many, which sources have asked before, and who goes to make room.
//!
//! The list is locked when a connection comes or goes, and never by a request.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use portcullis_process::crowd::Source;
use prometheus::{IntCounter, IntGauge};
use tokio::sync::Notify;

use crate::eviction::{self, Doing};
use crate::metrics::Metrics;
use crate::place::Place;

/// Longest time for a handshake and a request's head.
const HEAD: Duration = Duration::from_secs(10);
/// Longest time between two requests. Clients should give up idle connections before the server does, or a request may
/// cross the close on its way; Go's do so after 90 s.
const IDLE: Duration = Duration::from_secs(300);
/// How often old ones are looked for.
const SWEEP: Duration = Duration::from_millis(500);
/// What goes at a time when there is no room: one in so many. To find out who goes takes longer the more there are, and a
/// flood would have it found out for each of its connections.
const BATCH: usize = 64;
/// For how long a source counts as one that has asked. API servers are silent at night.
const KNOWN: Duration = Duration::from_secs(3600);
/// Sources that are remembered.
const MOST_KNOWN: usize = 1024;
/// Time without anybody who had to go after which all is well again.
const CALM: Duration = Duration::from_secs(10);

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
    known: Known,
    /// When somebody had to go lately.
    crowded: Option<Instant>,
}

/// Sources of which a review was answered, and when last.
#[derive(Default)]
struct Known(HashMap<Source, Instant>);

/// A connection in the list, until it is dropped.
pub struct Listed {
    connections: Arc<Connections>,
    key: u64,
    /// Its state.
    pub place: Arc<Place>,
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

    /// Lists a new connection. When there are too many, those go that [`eviction::order`] says; when all are being answered, the new
    /// one is refused.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Listed> {
        let mut open = self.open();
        if open.places.len() >= self.limit && open.close_some(self.limit.div_ceil(BATCH), &self.closed) == 0 {
            self.closed.inc();
            return None;
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
    pub fn make_room(&self) {
        let mut open = self.open();
        let count = open.places.len().div_ceil(8);
        open.close_some(count, &self.closed);
    }

    /// Closes connections that take too long, for ever.
    pub async fn sweep(&self) {
        let mut ticks = tokio::time::interval(SWEEP);
        loop {
            ticks.tick().await;
            let mut open = self.open();
            let Open { places, known, crowded, .. } = &mut *open;
            let now = Instant::now();
            for place in places.values() {
                let (doing, age) = place.doing();
                if (doing == Doing::Opening && age > HEAD) || (doing == Doing::Idle && age > IDLE) {
                    place.close();
                }
                if place.is_proven() {
                    known.add(place.source(), now);
                }
            }
            known.forget(now);
            if crowded.take_if(|crowded| crowded.elapsed() > CALM).is_some() {
                tracing::info!("there is room for connections again");
            }
        }
    }

    /// Asks every connection to end after the request that is under way.
    pub fn finish(&self) {
        self.open().places.values().for_each(|place| place.finish());
    }

    /// Has every connection look at its requests again.
    pub fn wake(&self) {
        self.open().places.values().for_each(|place| place.wake());
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

impl Open {
    /// Closes up to `count`, and says how many.
    fn close_some(&mut self, count: usize, closed: &IntCounter) -> usize {
        let may_go = self.places.iter().filter(|(_, place)| !place.is_closing());
        let mut order = eviction::order(may_go.map(|(key, place)| (*key, place.seen())));
        order.truncate(count);
        if !order.is_empty() && self.crowded.replace(Instant::now()).is_none() {
            self.tell();
        }
        for place in order.iter().filter_map(|key| self.places.remove(key)) {
            place.close();
            closed.inc();
        }
        order.len()
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
    pub fn answered(&self, is_review: bool) {
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
    fn many_make_room_at_a_time() {
        let all = connections(128);
        let listed: Vec<_> = (0..128).map(|_| enter(&all, NEAR)).collect();
        let _newest = enter(&all, NEAR);
        assert_eq!(closing(&listed).iter().filter(|closing| **closing).count(), 2);
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
