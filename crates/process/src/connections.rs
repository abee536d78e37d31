//! The connections of one probe or state port: how many are allowed, and which one is closed for a new one.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use portcullis_util::lock;
use prometheus::IntCounter;
use tokio::sync::Notify;

use crate::eviction::{Candidate, Peer, first_to_go};

/// The connections of a port.
pub(crate) struct Connections {
    start: Instant,
    limit: usize,
    closed: IntCounter,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    connections: HashMap<u64, Arc<Connection>>,
}

/// The state of one connection, shared by its task and the list.
struct Connection {
    peer: Peer,
    /// Whether a request is being answered. Otherwise the server waits for the client.
    is_answering: AtomicBool,
    /// The time of the last change of that, in microseconds since the start.
    since: AtomicU64,
    close: Notify,
}

/// A connection's place in the list, until this is dropped.
pub(crate) struct OpenConnection {
    connections: Arc<Connections>,
    connection: Arc<Connection>,
    key: u64,
}

/// The order in which connections are closed: those with a lower priority go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Priority {
    /// No request is in progress. A connection that has sent a request before is not better than a new one: each probe of the kubelet is
    /// a new connection, and must not give way to clients that ask once and stay connected.
    Silent,
    /// A request is under way, which may be a long poll.
    Answering,
}

impl Connections {
    /// At most `limit` connections, which is not zero. `closed` counts those that were closed to make room.
    pub(crate) fn new(limit: usize, closed: IntCounter) -> Arc<Self> {
        Arc::new(Self { start: Instant::now(), limit, closed, open: Mutex::default() })
    }

    /// Lists a new connection. There is always room for it: at the limit, another connection is closed.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> OpenConnection {
        let mut open = lock(&self.open);
        if open.connections.len() >= self.limit
            && let Some(key) = first_to_go(open.connections.iter().map(Connection::candidate).collect()).first()
            && let Some(connection) = open.connections.remove(key)
        {
            connection.close.notify_one();
            self.closed.inc();
        }
        let connection = Arc::new(Connection {
            peer: Peer::of(address),
            is_answering: AtomicBool::new(false),
            since: AtomicU64::new(self.now()),
            close: Notify::new(),
        });
        let key = open.next;
        open.next += 1;
        open.connections.insert(key, Arc::clone(&connection));
        OpenConnection { connections: Arc::clone(self), connection, key }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

impl Connection {
    fn candidate((key, connection): (&u64, &Arc<Self>)) -> Candidate<u64, Priority, u64> {
        let priority =
            if connection.is_answering.load(Ordering::Relaxed) { Priority::Answering } else { Priority::Silent };
        Candidate { key: *key, peer: connection.peer, priority, rank: connection.since.load(Ordering::Relaxed) }
    }
}

impl OpenConnection {
    /// Notes that a request has come, or has been answered.
    pub(crate) fn answering(&self, is_answering: bool) {
        self.connection.is_answering.store(is_answering, Ordering::Relaxed);
        self.connection.since.store(self.connections.now(), Ordering::Relaxed);
    }

    /// Waits until this connection must be closed.
    pub(crate) async fn over(&self) {
        self.connection.close.notified().await;
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        lock(&self.connections.open).connections.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn connections(limit: usize) -> Arc<Connections> {
        Connections::new(limit, IntCounter::new("closed", "closed").expect("a counter"))
    }

    fn from(connections: &Arc<Connections>, last: u8) -> OpenConnection {
        let open = connections.enter([10, 0, 0, last].into());
        // The test needs the order in which the connections came, even if they all come in the same microsecond.
        open.connection.since.store(open.key, Ordering::Relaxed);
        open
    }

    fn over(open: &[OpenConnection]) -> Vec<bool> {
        open.iter().map(|open| open.over().now_or_never().is_some()).collect()
    }

    #[test]
    fn the_oldest_silent_one_goes() {
        let all = connections(3);
        let open: Vec<_> = (0..3).map(|_| from(&all, 1)).collect();
        open[0].answering(true);
        let _newest = from(&all, 1);
        assert_eq!(over(&open), [false, true, false]);
        assert_eq!(all.closed.get(), 1);
    }

    #[test]
    fn who_has_many_makes_room_for_who_has_none() {
        let all = connections(3);
        let probe = from(&all, 2);
        let flood: Vec<_> = (0..20).map(|_| from(&all, 1)).collect();
        assert!(probe.over().now_or_never().is_none());
        assert_eq!(over(&flood).iter().filter(|over| !**over).count(), 2);
    }

    #[test]
    fn where_all_are_being_answered_the_oldest_goes() {
        let all = connections(2);
        let open = [from(&all, 1), from(&all, 1)];
        open.iter().for_each(|open| open.answering(true));
        open[0].connection.since.store(0, Ordering::Relaxed);
        let _newest = from(&all, 1);
        assert_eq!(over(&open), [true, false]);
    }

    #[test]
    fn who_leaves_makes_room() {
        let all = connections(1);
        drop(from(&all, 1));
        let _open = from(&all, 1);
        assert_eq!(all.closed.get(), 0);
    }
}
