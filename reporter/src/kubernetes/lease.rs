//! The Lease: which of the reporters leads (status-api section 2.3).
//!
//! Age is judged by the monotonic time at which a change was seen here, and never by the times in the object, so that clocks may
//! differ. Who leads has a deadline of its own, that long after it last *began* a renewal that worked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Method;
use jiff::Timestamp;
use portcullis_process::Shutdown;
use prometheus::IntGauge;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::args::Identity;
use super::backoff::{Backoff, dice};
use super::call::{CallError, Content, Server};
use super::trouble::Trouble;

/// How long a Lease counts after its last renewal, whatever the object says.
const DURATION: Duration = Duration::from_secs(15);
/// How often the holder renews it.
const RENEW: Duration = Duration::from_secs(5);
/// How often the others look: a dead leader is noticed so much later than the Lease ends.
const LOOK: Duration = Duration::from_millis(1800);
/// Longest pause after a failure: the Lease must not end while the API server is well again.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Longest time for a call.
const CALL_LIMIT: Duration = Duration::from_secs(8);

/// Takes part until the shutdown begins, and then lets go. `held` is told until when this process leads.
pub(crate) async fn stand(
    server: Arc<Server>,
    identity: Identity,
    name: String,
    mut trouble: Trouble,
    leads: IntGauge,
    held: watch::Sender<Option<Instant>>,
    shutdown: Shutdown,
) {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", identity.namespace);
    let mut candidate = Candidate { me: identity.pod, seen: None };
    let mut backoff = Backoff::default();
    let mut deadline: Option<Instant> = None;
    loop {
        let begun = Instant::now();
        let turn = turn(&server, &path, &name, &mut candidate);
        let result = tokio::time::timeout(CALL_LIMIT, turn).await.unwrap_or(Err(CallError::TimedOut));
        let pause = match result {
            Ok(holds) => {
                trouble.over();
                backoff.reset();
                deadline = holds.then(|| begun + DURATION);
                if holds { RENEW } else { LOOK.mul_f64(0.8 + 0.2 * dice()) }
            }
            Err(error) => {
                trouble.is(&error);
                backoff.pause(&error, dice()).min(LONGEST_PAUSE)
            }
        };
        deadline = deadline.filter(|deadline| *deadline > Instant::now());
        if deadline.is_some() != held.borrow().is_some() {
            tracing::info!(
                "{}",
                if deadline.is_some() { "leads: holds the Lease" } else { "leads no more: the Lease is lost" }
            );
        }
        leads.set(i64::from(deadline.is_some()));
        held.send_if_modified(|last| std::mem::replace(last, deadline) != deadline);
        let lost = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = lost => {}
            () = shutdown.begun() => break,
        }
    }
    held.send_replace(None);
    if deadline.is_some() {
        let release = release(&server, &path, &name, &candidate);
        let _ = tokio::time::timeout(Duration::from_secs(2), release).await;
    }
}

/// Looks at the Lease, and makes, takes or renews it. Whether it is held then.
async fn turn(server: &Server, path: &str, name: &str, candidate: &mut Candidate) -> Result<bool, CallError> {
    let found = match server.get(&format!("{path}/{name}")).await {
        Ok(found) => Some(found),
        Err(error) if error.code() == Some(404) => None,
        Err(error) => return Err(error),
    };
    let now = Timestamp::now();
    let answer = match (candidate.judge(found.as_ref(), Instant::now()), found) {
        (Judgement::Wait, _) => return Ok(false),
        (Judgement::Make, _) | (_, None) => {
            server.send(Method::POST, path, Content::Json, &lease(None, name, &candidate.me, now)).await
        }
        (Judgement::Take | Judgement::Keep, Some(found)) => {
            let body = lease(Some(found), name, &candidate.me, now);
            server.send(Method::PUT, &format!("{path}/{name}"), Content::Json, &body).await
        }
    };
    match answer {
        Ok(_) => Ok(true),
        // Somebody was faster. The next look tells who.
        Err(error) if error.code() == Some(409) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Lets go, so that another takes it at once.
async fn release(server: &Server, path: &str, name: &str, candidate: &Candidate) {
    let path = format!("{path}/{name}");
    let Ok(mut found) = server.get(&path).await else { return };
    if holder(&found) == Some(candidate.me.as_str()) {
        found["spec"]["holderIdentity"] = json!("");
        if let Err(error) = server.send(Method::PUT, &path, Content::Json, &found).await {
            tracing::debug!(%error, "failed to let go of the Lease");
        }
    }
}

/// The object with this holder; `found` is what is there.
fn lease(found: Option<Value>, name: &str, me: &str, now: Timestamp) -> Value {
    let time = format!("{now:.6}");
    let mut lease = found.unwrap_or_else(
        || json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": name } }),
    );
    let spec = lease["spec"].take();
    let is_kept = spec["holderIdentity"].as_str() == Some(me);
    let transitions = spec["leaseTransitions"].as_i64().unwrap_or(0);
    let acquired = if is_kept { spec["acquireTime"].as_str() } else { None };
    lease["spec"] = json!({
        "holderIdentity": me,
        "leaseDurationSeconds": DURATION.as_secs(),
        "acquireTime": acquired.unwrap_or(&time),
        "renewTime": time,
        "leaseTransitions": if is_kept { transitions } else { transitions.saturating_add(1) },
    });
    lease
}

/// Who holds it, if anybody does.
fn holder(lease: &Value) -> Option<&str> {
    lease["spec"]["holderIdentity"].as_str().filter(|holder| !holder.is_empty())
}

/// What to do about the Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judgement {
    /// There is none.
    Make,
    /// Nobody holds it, or whoever does has been silent for too long.
    Take,
    /// It is ours.
    Keep,
    /// Another holds it.
    Wait,
}

/// Who would like to lead. Pure.
struct Candidate {
    me: String,
    /// Holder and renewal that were seen, and when they were first seen.
    seen: Option<(String, String, Instant)>,
}

impl Candidate {
    fn judge(&mut self, lease: Option<&Value>, now: Instant) -> Judgement {
        let Some(lease) = lease else {
            self.seen = None;
            return Judgement::Make;
        };
        let Some(holder) = holder(lease) else {
            self.seen = None;
            return Judgement::Take;
        };
        if holder == self.me {
            self.seen = None;
            return Judgement::Keep;
        }
        let renewal = lease["spec"]["renewTime"].to_string();
        match &self.seen {
            Some((who, when, since)) if who == holder && *when == renewal => {
                if now.duration_since(*since) > DURATION {
                    Judgement::Take
                } else {
                    Judgement::Wait
                }
            }
            _ => {
                self.seen = Some((holder.to_owned(), renewal, now));
                Judgement::Wait
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_by(holder: &str, renewal: &str) -> Value {
        json!({"metadata": {"resourceVersion": "4"}, "spec": {"holderIdentity": holder, "renewTime": renewal,
            "acquireTime": "2020-01-01T00:00:00.000000Z", "leaseTransitions": 3, "leaseDurationSeconds": 999_999}})
    }

    fn candidate() -> Candidate {
        Candidate { me: "pod-a".into(), seen: None }
    }

    #[test]
    fn an_absent_or_empty_lease_is_ours_to_take() {
        let now = Instant::now();
        assert_eq!(candidate().judge(None, now), Judgement::Make);
        assert_eq!(candidate().judge(Some(&json!({})), now), Judgement::Take);
        assert_eq!(candidate().judge(Some(&held_by("", "t")), now), Judgement::Take);
        assert_eq!(candidate().judge(Some(&held_by("pod-a", "t")), now), Judgement::Keep);
    }

    #[test]
    fn fault_r16_a_live_lease_is_left_alone_whatever_the_times_in_it_say() {
        let start = Instant::now();
        let mut candidate = candidate();
        for second in 0..120 {
            // The holder's clock is years behind; it renews every five seconds.
            let lease = held_by("pod-b", &format!("1999-01-01T00:00:{:02}.000000Z", second / 5));
            let now = start + Duration::from_secs(second);
            assert_eq!(candidate.judge(Some(&lease), now), Judgement::Wait, "after {second} s");
        }
    }

    #[test]
    fn a_silent_holder_loses_it_after_fifteen_seconds_seen_from_here() {
        let start = Instant::now();
        let mut candidate = candidate();
        // A renewal from the future does not help it.
        let lease = held_by("pod-b", "2099-01-01T00:00:00.000000Z");
        assert_eq!(candidate.judge(Some(&lease), start), Judgement::Wait);
        assert_eq!(candidate.judge(Some(&lease), start + DURATION), Judgement::Wait);
        let later = start + DURATION + Duration::from_millis(1);
        assert_eq!(candidate.judge(Some(&lease), later), Judgement::Take);
        assert_eq!(candidate.judge(Some(&held_by("pod-c", "t")), later), Judgement::Wait, "another was faster");
    }

    #[test]
    fn a_renewal_keeps_what_a_new_holder_begins_anew() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let kept = lease(Some(held_by("pod-a", "t")), "lease", "pod-a", now);
        assert_eq!(
            (&kept["spec"]["leaseTransitions"], &kept["spec"]["acquireTime"]),
            (&json!(3), &json!("2020-01-01T00:00:00.000000Z"))
        );
        assert_eq!(
            (&kept["metadata"]["resourceVersion"], &kept["spec"]["leaseDurationSeconds"]),
            (&json!("4"), &json!(15))
        );
        let taken = lease(Some(held_by("pod-b", "t")), "lease", "pod-a", now);
        assert_eq!(
            (&taken["spec"]["leaseTransitions"], &taken["spec"]["acquireTime"]),
            (&json!(4), &json!("2026-01-01T00:00:00.000000Z"))
        );
        assert_eq!(lease(None, "lease", "pod-a", now)["metadata"]["name"], "lease");
    }
}
