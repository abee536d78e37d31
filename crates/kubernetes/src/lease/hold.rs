//! Takes a Lease, keeps it, and gives it up.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};
use portcullis_util::Backoff;

use super::decide::{LeaseSettings, Seen, Step, given_up};
use super::leadership::LeadershipSender;
use super::{LOOK, RENEW, TRUSTED, TURN_LIMIT};
use crate::{CallError, Failures};

/// Longest time for giving up a Lease: a program that ends does not wait for an API server that is unavailable.
const GIVE_UP_LIMIT: Duration = Duration::from_secs(2);
/// Pauses after failures. They are short, so that the Lease does not end although the API server is available again.
const BACKOFF: Backoff = Backoff { shortest: Duration::from_millis(250), longest: Duration::from_secs(2) };

/// Takes the Lease, keeps it, and gives it up when `end` completes. `sender` gets the time until which this program
/// leads.
pub async fn hold_lease(
    client: Client,
    settings: LeaseSettings,
    sender: LeadershipSender,
    mut failures: Failures,
    end: impl Future<Output = ()>,
) {
    let leases = Api::namespaced(client, &settings.namespace);
    tokio::select! {
        () = keep(&leases, &settings, &sender, &mut failures) => {}
        () = end => {}
    }
    if sender.set(None).is_some() {
        let _ = tokio::time::timeout(GIVE_UP_LIMIT, give_up(&leases, &settings)).await;
    }
}

async fn keep(leases: &Api<Lease>, settings: &LeaseSettings, sender: &LeadershipSender, failures: &mut Failures) {
    let LeaseSettings { namespace, name, identity } = settings;
    let (mut seen, mut failed, mut led) = (Seen::default(), 0, false);
    loop {
        let begun = Instant::now();
        let turn = tokio::time::timeout(TURN_LIMIT, turn(leases, settings, &mut seen)).await;
        let turn = turn.map_or(Err(CallError::TimedOut), |turn| turn.map_err(CallError::from));
        let until = match &turn {
            Ok(holds) => holds.then(|| begun + TRUSTED),
            // A Lease that is held stays held until its time is over.
            Err(_) => sender.until(),
        };
        sender.set(until);
        if until.is_some() != led {
            led = until.is_some();
            if led {
                tracing::info!(lease = name, namespace, identity, "leads: holds the Lease");
            } else {
                tracing::warn!(lease = name, namespace, identity, "lost the Lease, and no longer leads");
            }
        }
        let pause = match turn {
            Ok(holds) => {
                failures.over();
                failed = 0;
                match holds {
                    // Counted from the beginning of the turn, so that a slow API server does not make renewals rarer.
                    true => RENEW.saturating_sub(begun.elapsed()),
                    false => LOOK.mul_f64(0.8 + 0.2 * fastrand::f64()),
                }
            }
            Err(error) => {
                failures.failed(&error);
                failed += 1;
                BACKOFF.wait(failed, fastrand::f64())
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Reads the Lease, and creates, takes or renews it. Returns whether it is held then.
async fn turn(leases: &Api<Lease>, settings: &LeaseSettings, seen: &mut Seen) -> kube::Result<bool> {
    let found = leases.get_opt(&settings.name).await?;
    match seen.step(settings, found, Instant::now(), Timestamp::now()) {
        Step::Wait => Ok(false),
        Step::Create(lease) => is_written(leases.create(&PostParams::default(), &lease).await),
        // Replaces only the version that was read.
        Step::Replace(lease) => is_written(leases.replace(&settings.name, &PostParams::default(), &lease).await),
    }
}

/// Whether the write succeeded. False if another program was faster; the next turn shows which.
fn is_written(answer: kube::Result<Lease>) -> kube::Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

async fn give_up(leases: &Api<Lease>, settings: &LeaseSettings) {
    let Ok(Some(lease)) = leases.get_opt(&settings.name).await else { return };
    if let Some(lease) = given_up(lease, &settings.identity) {
        let is_given = leases.replace(&settings.name, &PostParams::default(), &lease).await.is_ok();
        tracing::debug!(lease = settings.name, is_given, "gave the Lease up");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response};
    use http_body_util::BodyExt as _;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::Leadership;
    use crate::client::{AnswerLimits, limited};

    /// One Lease, stored as an API server does. The tests in clusters use real ones.
    #[derive(Default)]
    struct Stored {
        lease: Option<Value>,
        version: u32,
        /// The status codes with which the next calls are refused.
        refusals: VecDeque<u16>,
        /// The labels of the failures.
        failed: Vec<String>,
    }

    #[derive(Clone, Default)]
    struct StubServer(Arc<Mutex<Stored>>);

    impl StubServer {
        fn with<T>(&self, act: impl FnOnce(&mut Stored) -> T) -> T {
            act(&mut self.0.lock().expect("no test panics in it"))
        }

        fn holder(&self) -> Option<String> {
            self.with(|stored| Some(stored.lease.as_ref()?["spec"]["holderIdentity"].as_str()?.to_owned()))
        }

        fn failures(&self) -> Failures {
            let server = self.clone();
            Failures::new("hold the Lease", move |error| server.with(|stored| stored.failed.push(error.label())))
        }

        fn client(&self) -> Client {
            let server = self.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let server = server.clone();
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await.expect("a body").to_bytes();
                    let (code, body) = server.answer(&parts.method, serde_json::from_slice(&body).unwrap_or_default());
                    let body = Body::from(body.to_string().into_bytes());
                    limited(
                        Response::builder().status(code).body(body).expect("an answer"),
                        false,
                        &AnswerLimits::default(),
                    )
                    .await
                }
            });
            Client::new(service, "default")
        }

        fn answer(&self, method: &Method, mut lease: Value) -> (u16, Value) {
            self.with(|stored| {
                let refused = |code: u16| (code, json!("refused"));
                if let Some(code) = stored.refusals.pop_front() {
                    return refused(code);
                }
                let found = stored.lease.clone().unwrap_or_default();
                if method == Method::GET {
                    return if found.is_null() { refused(404) } else { (200, found) };
                }
                if lease["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"] {
                    return refused(409);
                }
                stored.version += 1;
                lease["metadata"]["resourceVersion"] = json!(stored.version.to_string());
                stored.lease = Some(lease.clone());
                (200, lease)
            })
        }
    }

    fn settings(identity: &str) -> LeaseSettings {
        LeaseSettings { namespace: "portcullis".into(), name: "leader".into(), identity: identity.into() }
    }

    #[tokio::test]
    async fn it_is_held_after_a_refusal_and_given_up_at_the_end() {
        let server = StubServer::default();
        server.with(|stored| stored.refusals.push_back(403));
        let (sender, mut leadership) = Leadership::new();
        let (stop, end) = tokio::sync::oneshot::channel::<()>();
        let end = async move { drop(end.await) };
        let holding = tokio::spawn(hold_lease(server.client(), settings("pod-a"), sender, server.failures(), end));
        tokio::time::timeout(Duration::from_secs(60), leadership.held()).await.expect("leads");
        assert_eq!(server.holder().as_deref(), Some("pod-a"));
        stop.send(()).expect("still held");
        holding.await.expect("ends");
        assert!(!leadership.is_held());
        assert_eq!(server.holder().as_deref(), Some(""));
        assert_eq!(server.with(|stored| stored.failed.clone()), ["403"]);
    }

    #[tokio::test]
    async fn of_two_one_leads_and_the_other_follows_when_it_lets_go() {
        let server = StubServer::default();
        let (sender, mut first) = Leadership::new();
        let (stop, end) = tokio::sync::oneshot::channel::<()>();
        let end = async move { drop(end.await) };
        let holding = tokio::spawn(hold_lease(server.client(), settings("pod-a"), sender, server.failures(), end));
        tokio::time::timeout(Duration::from_secs(60), first.held()).await.expect("leads");
        let (sender, mut second) = Leadership::new();
        let end = std::future::pending();
        let other = tokio::spawn(hold_lease(server.client(), settings("pod-b"), sender, server.failures(), end));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(first.is_held() && !second.is_held());
        stop.send(()).expect("still held");
        holding.await.expect("ends");
        tokio::time::timeout(Duration::from_secs(60), second.held()).await.expect("the other leads");
        assert!(!first.is_held());
        other.abort();
    }

    #[test]
    fn a_renewal_that_takes_as_long_as_it_may_still_comes_in_time() {
        assert!(RENEW + TURN_LIMIT <= TRUSTED && TRUSTED < super::super::DURATION);
    }
}
