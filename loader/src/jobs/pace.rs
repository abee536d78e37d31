//! How often hosts are asked: limits on attempts a second, and on downloads at the same time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_util::lock;
use tokio::time::Instant;

use super::JobContext;
use super::slots::{Slot, Slots};

/// Downloads from one host at the same time. A host that hangs does not delay downloads from others.
const FETCHES_A_HOST: usize = 4;

/// The turns of all hosts.
pub(super) struct Hosts {
    /// Shortest time from one attempt to the next.
    pause: Duration,
    known: Mutex<HashMap<String, Host>>,
}

struct Host {
    slots: Arc<Slots>,
    /// When the next attempt may begin. The job whose turn is next holds the lock until then, and the others wait for it in order.
    next: Arc<tokio::sync::Mutex<Instant>>,
}

/// Locks by key, for work that several tasks need and only one should do.
pub(super) struct Turns<K>(Mutex<HashMap<K, Arc<tokio::sync::Mutex<()>>>>);

impl Hosts {
    /// At most `attempts` a second at one host.
    pub(super) fn new(attempts: u32) -> Self {
        Self { pause: Duration::from_secs(1) / attempts.max(1), known: Mutex::default() }
    }

    /// Waits for a job's turn at a host, and marks the job as running. The turn ends when the slot is dropped.
    pub(super) async fn turn(&self, host: String, context: &Arc<JobContext>) -> Slot {
        let (slots, next) = self.host(host);
        let slot = slots.turn(context).await;
        {
            let mut next = next.lock().await;
            tokio::time::sleep_until(*next).await;
            // Only a job that begins puts the others off: one that is dropped while it waits has asked for nothing.
            *next = Instant::now() + self.pause;
        }
        context.runs.store(true, Ordering::Relaxed);
        slot
    }

    fn host(&self, host: String) -> (Arc<Slots>, Arc<tokio::sync::Mutex<Instant>>) {
        let mut known = lock(&self.known);
        let now = Instant::now();
        // Forgets hosts that no job uses or waits for, and that were not asked a moment ago.
        known.retain(|_, host| {
            Arc::strong_count(&host.slots) > 1 || host.next.try_lock().map_or(true, |next| *next > now)
        });
        let host = known.entry(host).or_insert_with(|| Host {
            slots: Slots::new(FETCHES_A_HOST),
            next: Arc::new(tokio::sync::Mutex::new(now)),
        });
        (Arc::clone(&host.slots), Arc::clone(&host.next))
    }

    /// Orders waiting jobs again, after the tenants that need them have changed.
    pub(super) fn renew(&self) {
        let slots: Vec<Arc<Slots>> = lock(&self.known).values().map(|host| Arc::clone(&host.slots)).collect();
        slots.iter().for_each(Slots::renew);
    }
}

impl<K: Hash + Eq> Default for Turns<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq> Turns<K> {
    /// The lock for a key. It is forgotten when no task holds it or waits for it.
    pub(super) fn turn(&self, key: K) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = lock(&self.0);
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(key).or_default())
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use portcullis_contract::Tenant;

    use super::*;
    use crate::claims::{Claims, Need};

    fn cluster() -> Arc<JobContext> {
        let mut claims = Claims::default();
        claims.add(&Tenant::Cluster, Need::New);
        Arc::new(JobContext::new(claims))
    }

    #[tokio::test]
    async fn l24_attempts_at_one_host_keep_their_distance_and_hold_up_no_other() {
        let (mut hosts, context) = (Hosts::new(10), cluster());
        let start = Instant::now();
        for _ in 0..11 {
            drop(hosts.turn("a".into(), &context).await);
        }
        assert!(start.elapsed() >= Duration::from_secs(1));
        // The next distance is so long that no delay of the machine makes up for it.
        hosts.pause = Duration::from_secs(60);
        drop(hosts.turn("a".into(), &context).await);
        tokio::select! {
            biased;
            _ = hosts.turn("a".into(), &context) => panic!("the other host is held up"),
            _ = hosts.turn("b".into(), &context) => {}
        }
    }

    #[tokio::test]
    async fn jobs_that_are_dropped_while_they_wait_put_nobody_off() {
        let (hosts, context) = (Hosts::new(10), cluster());
        drop(hosts.turn("a".into(), &context).await);
        for _ in 0..100 {
            // On a slow machine its turn may have come.
            let _ = hosts.turn("a".into(), &context).now_or_never();
            tokio::task::yield_now().await;
        }
        // If each of them had kept its place, this would take ten seconds.
        tokio::time::timeout(Duration::from_secs(5), hosts.turn("a".into(), &context)).await.expect("its turn comes");
    }

    #[tokio::test]
    async fn one_key_has_one_lock_as_long_as_somebody_holds_it() {
        let turns = Turns::default();
        let first = turns.turn(1);
        assert!(Arc::ptr_eq(&first, &turns.turn(1)) && !Arc::ptr_eq(&first, &turns.turn(2)));
    }
}
