//! Asking for a Lease, keeping it, and letting go.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::calls::LeaseCalls;
use super::decide::{LeaseSettings, Seen, Step, given_up};
use super::leadership::Seat;
use super::{LOOK, RENEW, TRUSTED, TURN_LIMIT};
use crate::{Backoff, random};

/// Longest time for giving a Lease up: a program that ends does not wait for an API server that is away.
const GIVE_UP_LIMIT: Duration = Duration::from_secs(2);
/// Pauses after failures: short, as the Lease must not end while the API server is well again.
const BACKOFF: Backoff = Backoff { shortest: Duration::from_millis(250), longest: Duration::from_secs(2) };

/// Asks for the Lease, keeps it, and gives it up when `end` is over. `seat` is told until when this program leads.
pub async fn hold_lease(
    mut calls: impl LeaseCalls,
    settings: LeaseSettings,
    seat: Seat,
    end: impl Future<Output = ()>,
) {
    tokio::select! {
        () = keep(&mut calls, &settings, &seat) => {}
        () = end => {}
    }
    if seat.tell(None).is_some() {
        let _ = tokio::time::timeout(GIVE_UP_LIMIT, give_up(&calls, &settings)).await;
    }
}

async fn keep(calls: &mut impl LeaseCalls, settings: &LeaseSettings, seat: &Seat) {
    let LeaseSettings { namespace, name, identity } = settings;
    let (mut seen, mut failures, mut led) = (Seen::default(), 0, false);
    loop {
        let begun = Instant::now();
        let turn = tokio::time::timeout(TURN_LIMIT, turn(calls, settings, &mut seen)).await;
        let until = match &turn {
            Ok(Ok(holds)) => holds.then(|| begun + TRUSTED),
            // What is held stays held until its own time is over.
            Ok(Err(_)) | Err(_) => seat.until(),
        };
        seat.tell(until);
        if until.is_some() != led {
            led = until.is_some();
            if led {
                tracing::info!(lease = name, namespace, identity, "leads: holds the Lease");
            } else {
                tracing::warn!(lease = name, namespace, identity, "leads no more: the Lease is lost");
            }
        }
        let pause = match turn {
            Ok(Ok(holds)) => {
                calls.works();
                failures = 0;
                match holds {
                    // Counted from the begin, so that a slow API server makes renewals no rarer.
                    true => RENEW.saturating_sub(begun.elapsed()),
                    false => LOOK.mul_f64(0.8 + 0.2 * random()),
                }
            }
            failed => {
                calls.failed(failed.ok().and_then(Result::err));
                failures += 1;
                BACKOFF.wait(failures, random())
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Looks at the Lease, and makes, takes or renews it. Whether it is held then.
async fn turn<C: LeaseCalls>(calls: &C, settings: &LeaseSettings, seen: &mut Seen) -> Result<bool, C::Error> {
    let found = calls.get(&settings.name).await?;
    match seen.step(settings, found, Instant::now(), Timestamp::now()) {
        Step::Wait => Ok(false),
        Step::Create(lease) => calls.create(&lease).await,
        Step::Replace(lease) => calls.replace(&lease).await,
    }
}

async fn give_up(calls: &impl LeaseCalls, settings: &LeaseSettings) {
    let Ok(Some(lease)) = calls.get(&settings.name).await else { return };
    if let Some(lease) = given_up(lease, &settings.identity) {
        let is_given = calls.replace(&lease).await.is_ok();
        tracing::debug!(lease = settings.name, is_given, "gave the Lease up");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use k8s_openapi::api::coordination::v1::Lease;

    use super::*;
    use crate::Leadership;

    /// One Lease, as an API server keeps it, and what the next calls are answered instead.
    #[derive(Default)]
    struct Shelf {
        lease: Option<Lease>,
        version: u32,
        refusals: VecDeque<&'static str>,
        told: Vec<&'static str>,
    }

    #[derive(Clone, Default)]
    struct Calls(Arc<Mutex<Shelf>>);

    impl Calls {
        fn with<T>(&self, act: impl FnOnce(&mut Shelf) -> T) -> T {
            act(&mut self.0.lock().expect("no test panics in it"))
        }

        fn holder(&self) -> Option<String> {
            self.with(|shelf| shelf.lease.as_ref()?.spec.as_ref()?.holder_identity.clone())
        }

        fn put(&self, lease: &Lease, expected: Option<String>) -> Result<bool, &'static str> {
            self.with(|shelf| {
                if let Some(refusal) = shelf.refusals.pop_front() {
                    return Err(refusal);
                }
                let found = shelf.lease.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
                if found != expected {
                    return Ok(false);
                }
                shelf.version += 1;
                let mut lease = lease.clone();
                lease.metadata.resource_version = Some(shelf.version.to_string());
                shelf.lease = Some(lease);
                Ok(true)
            })
        }
    }

    impl LeaseCalls for Calls {
        type Error = &'static str;

        async fn get(&self, _: &str) -> Result<Option<Lease>, &'static str> {
            self.with(|shelf| shelf.refusals.pop_front().map_or(Ok(shelf.lease.clone()), Err))
        }

        async fn create(&self, lease: &Lease) -> Result<bool, &'static str> {
            self.put(lease, None)
        }

        async fn replace(&self, lease: &Lease) -> Result<bool, &'static str> {
            self.put(lease, lease.metadata.resource_version.clone())
        }

        fn failed(&mut self, error: Option<&'static str>) {
            self.with(|shelf| shelf.told.push(error.unwrap_or("silence")));
        }

        fn works(&mut self) {
            self.with(|shelf| shelf.told.push("works"));
        }
    }

    fn settings(identity: &str) -> LeaseSettings {
        LeaseSettings { namespace: "portcullis".into(), name: "leader".into(), identity: identity.into() }
    }

    #[tokio::test]
    async fn it_is_held_after_a_refusal_and_given_up_at_the_end() {
        let calls = Calls::default();
        calls.with(|shelf| shelf.refusals.push_back("refused"));
        let (seat, mut leadership) = Leadership::new();
        let (stop, end) = tokio::sync::oneshot::channel::<()>();
        let holding = tokio::spawn(hold_lease(calls.clone(), settings("pod-a"), seat, async move {
            let _ = end.await;
        }));
        tokio::time::timeout(Duration::from_secs(10), leadership.held()).await.expect("leads");
        assert_eq!(calls.holder().as_deref(), Some("pod-a"));
        stop.send(()).expect("still held");
        holding.await.expect("ends");
        assert!(!leadership.is_held());
        assert_eq!(calls.holder().as_deref(), Some(""));
        assert_eq!(calls.with(|shelf| shelf.told.clone()), ["refused", "works"]);
    }

    #[tokio::test]
    async fn of_two_one_leads_and_the_other_follows_when_it_lets_go() {
        let calls = Calls::default();
        let (seat, mut first) = Leadership::new();
        let (stop, end) = tokio::sync::oneshot::channel::<()>();
        let holding = tokio::spawn(hold_lease(calls.clone(), settings("pod-a"), seat, async move {
            let _ = end.await;
        }));
        first.held().await;
        let (seat, mut second) = Leadership::new();
        let other = tokio::spawn(hold_lease(calls.clone(), settings("pod-b"), seat, std::future::pending()));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(first.is_held() && !second.is_held());
        stop.send(()).expect("still held");
        holding.await.expect("ends");
        tokio::time::timeout(Duration::from_secs(10), second.held()).await.expect("the other leads");
        assert!(!first.is_held());
        other.abort();
    }

    #[test]
    fn a_renewal_that_takes_as_long_as_it_may_still_comes_in_time() {
        assert!(RENEW + TURN_LIMIT <= TRUSTED && TRUSTED < super::super::DURATION);
    }
}
