//! What only the API server knows about this installation: the controller's username, and the uid of the owner of webhooks.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::PostParams;
use kube::{Api, Client};
use portcullis_kubernetes::asked_wait;
use portcullis_process::set_if_new;
use portcullis_util::Backoff;
use tokio::sync::{Notify, watch};

use crate::failed::obeying;
use crate::memory::ConditionValue;

/// How often to ask again: after a new installation, the owner has changed.
const AGAIN: Duration = Duration::from_secs(60);
/// The shortest time between two questions, however often somebody wants to know.
const SOONEST: Duration = Duration::from_secs(1);
/// The wait after failures.
const BACKOFF: Backoff = Backoff { shortest: Duration::from_millis(500), longest: Duration::from_secs(15) };

/// The identity of the controller, and the owner of its webhooks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Identity {
    /// The username that the API server sees.
    pub(crate) username: String,
    /// The owner of webhooks, if there is one.
    pub(crate) owner: Option<OwnerReference>,
}

/// Why the identity is not known.
struct Unknown {
    /// Whether the API server itself answered so, so that what was known no longer counts.
    is_answer: bool,
    /// The failure, as policies say it.
    value: ConditionValue,
    /// How long the API server asks to wait, if it does.
    retry_after: Option<Duration>,
}

/// The query for the identity.
#[derive(Clone)]
pub(crate) struct IdentityQuery {
    pub(crate) client: Client,
    /// The username, if it is a setting.
    pub(crate) username: Option<String>,
    /// The name of the ClusterRole that owns webhooks.
    pub(crate) owner: Option<String>,
    /// Notified when the answer may have changed. Webhooks of an owner that is gone are collected as garbage, and again each time they are
    /// restored for that owner.
    pub(crate) again: Arc<Notify>,
}

impl IdentityQuery {
    /// Asks for ever, and sends on what changes.
    pub(crate) async fn ask(self, sender: watch::Sender<Result<Identity, ConditionValue>>) {
        let mut failures = 0;
        loop {
            let answer = self.once().await;
            failures = if answer.is_ok() { 0 } else { failures + 1 };
            let is_known = sender.borrow().is_ok();
            let asked = answer.as_ref().err().and_then(|unknown| unknown.retry_after);
            match answer {
                Ok(identity) => {
                    set_if_new(&sender, Ok(identity));
                }
                // What is known stays while the API server is down.
                Err(unknown) if unknown.is_answer || !is_known => drop(sender.send_replace(Err(unknown.value))),
                Err(_) => {}
            }
            let (wait, soonest) = waits(failures, asked, fastrand::f64());
            pause(wait, soonest, &self.again).await;
        }
    }

    /// Asks once.
    async fn once(&self) -> Result<Identity, Unknown> {
        let username = match &self.username {
            Some(username) => username.clone(),
            None => {
                let reviews = Api::<SelfSubjectReview>::all(self.client.clone());
                let asked = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await;
                let asked = asked.map_err(|error| failed("the username of this program", &error))?;
                let user = asked.status.and_then(|status| status.user_info).and_then(|user| user.username);
                user.unwrap_or_default()
            }
        };
        let owner = match &self.owner {
            None => None,
            Some(name) => {
                let roles = Api::<ClusterRole>::all(self.client.clone());
                let role = roles.get_metadata(name).await;
                let role = role.map_err(|error| failed(&format!("ClusterRole {name}, which owns webhooks"), &error))?;
                Some(OwnerReference {
                    api_version: "rbac.authorization.k8s.io/v1".to_owned(),
                    kind: "ClusterRole".to_owned(),
                    name: name.clone(),
                    uid: role.metadata.uid.unwrap_or_default(),
                    ..OwnerReference::default()
                })
            }
        };
        Ok(Identity { username, owner })
    }
}

/// How long to wait after this many failures in a row, and how long at least, if somebody wants to know sooner.
fn waits(failures: u32, asked: Option<Duration>, random: f64) -> (Duration, Duration) {
    let wait = obeying(asked, if failures == 0 { AGAIN } else { BACKOFF.wait(failures, random) });
    (wait, obeying(asked, SOONEST.min(wait)))
}

/// Waits, but only for the `soonest` time if it is notified.
async fn pause(wait: Duration, soonest: Duration, again: &Notify) {
    tokio::time::sleep(soonest).await;
    tokio::select! {
        () = tokio::time::sleep(wait.saturating_sub(soonest)) => {}
        () = again.notified() => {}
    }
}

fn failed(what: &str, error: &kube::Error) -> Unknown {
    let retry_after = asked_wait(error);
    match error {
        kube::Error::Api(status) => {
            let reason = if status.is_forbidden() { "Forbidden" } else { "Unknown" };
            let value = ConditionValue::not_configured(reason, format!("{what}: {}", status.message));
            Unknown { is_answer: status.is_forbidden() || status.is_not_found(), value, retry_after }
        }
        error => {
            let value = ConditionValue::not_configured("Unknown", format!("{what}: {error}"));
            Unknown { is_answer: false, value, retry_after }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::failed::LONGEST_ASKED;

    #[tokio::test]
    async fn a_webhook_that_is_gone_makes_it_ask_at_once_but_not_all_the_time() {
        let (again, start, soonest) = (Notify::new(), Instant::now(), Duration::from_millis(20));
        again.notify_one();
        pause(AGAIN, soonest, &again).await;
        let passed = start.elapsed();
        assert!(passed >= soonest && passed < AGAIN, "{passed:?}");
    }

    #[test]
    fn what_the_api_server_asks_for_is_obeyed_within_a_limit_even_if_somebody_wants_to_know() {
        let waits = |asked: Option<u64>| waits(1, asked.map(Duration::from_secs), 1.0);
        let half = Duration::from_millis(500);
        assert_eq!(waits(None), (half, half));
        assert_eq!(waits(Some(7)), (Duration::from_secs(7), Duration::from_secs(7)));
        assert_eq!(waits(Some(3600)), (LONGEST_ASKED, LONGEST_ASKED));
        assert_eq!(super::waits(0, None, 1.0), (AGAIN, SOONEST));
    }
}
