//! What only the API server knows of this installation: as whom it sees the controller, and the uid of the owner of webhooks.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::PostParams;
use kube::{Api, Client};
use portcullis_api::Truth;
use portcullis_kubernetes::{Backoff, random};
use tokio::sync::watch;

use crate::memory::Verdict;

/// How often it is asked for again: an installation that was made anew has another owner.
const AGAIN: Duration = Duration::from_secs(60);
/// Waits after failures.
const BACKOFF: Backoff = Backoff { shortest: Duration::from_millis(500), longest: Duration::from_secs(15) };

/// Who this is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Identity {
    /// The user.
    pub(crate) username: String,
    /// The owner of webhooks.
    pub(crate) owner: Option<OwnerReference>,
}

/// Who is asked about.
pub(crate) struct Question {
    pub(crate) client: Client,
    /// Where it is known already.
    pub(crate) username: Option<String>,
    /// The name of the ClusterRole that owns webhooks.
    pub(crate) owner: Option<String>,
}

/// What webhooks wait for, until it is known.
pub(crate) fn unknown(reason: &'static str, message: impl Into<String>) -> Verdict {
    Verdict { status: Truth::False, reason, message: message.into() }
}

impl Question {
    /// Asks for ever, and tells what changes.
    pub(crate) async fn ask(self, told: watch::Sender<Result<Identity, Verdict>>) {
        let mut failures = 0;
        loop {
            let answer = self.once().await;
            failures = if answer.is_ok() { 0 } else { failures + 1 };
            let is_known = told.borrow().is_ok();
            match answer {
                Ok(identity) => {
                    told.send_if_modified(|before| {
                        let is_new = before.as_ref() != Ok(&identity);
                        if is_new {
                            *before = Ok(identity);
                        }
                        is_new
                    });
                }
                // What is known stays while the API server is away.
                Err((true, verdict)) => drop(told.send_replace(Err(verdict))),
                Err((false, verdict)) if !is_known => drop(told.send_replace(Err(verdict))),
                Err((false, _)) => {}
            }
            let wait = if failures == 0 { AGAIN } else { BACKOFF.wait(failures, random()) };
            tokio::time::sleep(wait).await;
        }
    }

    /// Asks once. Beside a failure: whether the API server said so, and did not just fail to answer.
    async fn once(&self) -> Result<Identity, (bool, Verdict)> {
        let username = match &self.username {
            Some(username) => username.clone(),
            None => {
                let reviews = Api::<SelfSubjectReview>::all(self.client.clone());
                let asked = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await;
                let asked = asked.map_err(|error| failed("as whom the API server sees this program", &error))?;
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

fn failed(what: &str, error: &kube::Error) -> (bool, Verdict) {
    match error {
        kube::Error::Api(status) => {
            let reason = if status.is_forbidden() { "Forbidden" } else { "Unknown" };
            (status.is_forbidden() || status.is_not_found(), unknown(reason, format!("{what}: {}", status.message)))
        }
        error => (false, unknown("Unknown", format!("{what}: {error}"))),
    }
}
