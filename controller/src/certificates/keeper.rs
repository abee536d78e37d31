//! Reads the Secrets, does the step that was decided, and publishes which authorities webhooks should trust.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use kube::Client;
use portcullis_kubernetes::asked_wait;
use portcullis_process::set_if_new;
use portcullis_util::LogOnce;
use prometheus::IntCounter;
use tokio::sync::watch;

use super::authority::{Authority, AuthorityError};
use super::bundle::CaBundle;
use super::decide::{Decision, Observed, Step, Which, next, replaced};
use super::event::{Events, Reason};
use super::external;
use super::external_certificate::ExternalCertificate;
use super::metrics::CertificateMetrics;
use super::own_webhooks::few;
use super::rules::{Purpose, Rules};
use super::secrets::{Read, SecretError, Secrets};
use super::spread::Registered;
use super::stored::{Data, StoredAuthority, StoredServing};
use super::unchanged::{Missing, Unchanged, digest};
use crate::keep::{Keep, POLL, STEP_PAUSE, TimedOut, Turn};

/// A larger difference between the clocks of the API server and of this machine is logged.
const SKEW: SignedDuration = SignedDuration::from_secs(60);
/// Webhooks that do not trust a new authority after this time are logged. It is much longer than updating all of them takes.
const LAG: Duration = Duration::from_secs(60);

/// What a keeper needs.
#[derive(Clone)]
pub struct KeeperParts {
    /// The client for all requests to the API server.
    pub client: Client,
    /// The namespace of the Secrets.
    pub namespace: String,
    /// The policy server.
    pub policy_server: String,
    /// The name of this pod.
    pub instance: String,
    /// The Secret that another program writes; `None` if this controller makes the certificates.
    pub external_secret: Option<String>,
    /// The Secret of the authority.
    pub ca_secret: String,
    /// The Secret of the serving certificate.
    pub tls_secret: String,
    /// Lifetimes and pauses.
    pub rules: Rules,
    /// The metrics.
    pub metrics: CertificateMetrics,
}

/// Keeps an authority and a certificate of one policy server, while this controller leads.
pub struct Keeper {
    parts: KeeperParts,
    secrets: Secrets,
    events: Events,
    bundle: watch::Sender<Option<Arc<CaBundle>>>,
    unchanged: Unchanged,
    /// The authorities that somebody has taken out of the Secrets.
    missing: Missing,
    /// What is wrong with the Secrets; `None` if nothing is.
    problem: Option<String>,
    /// Whether it was logged that two clocks differ.
    is_skewed: bool,
    /// Which webhooks a change waits for.
    lag: LogOnce,
}

/// Why a turn failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TurnError {
    #[error("Secret {name}: {source}")]
    Secret { name: String, which: Which, source: SecretError },
    #[error("failed to list webhook configurations: {0}")]
    Webhooks(#[from] kube::Error),
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
}

impl Keeper {
    /// A keeper, and a receiver of the authorities that webhooks should trust; `None` until the Secrets have been read.
    pub fn new(parts: KeeperParts) -> (Self, watch::Receiver<Option<Arc<CaBundle>>>) {
        let (bundle, receiver) = watch::channel(None);
        let keeper = Self {
            secrets: Secrets::new(parts.client.clone(), &parts.namespace, &parts.policy_server),
            events: Events::new(parts.client.clone(), &parts.instance),
            unchanged: Unchanged::default(),
            missing: Missing::default(),
            problem: None,
            is_skewed: false,
            lag: LogOnce::after(LAG),
            bundle,
            parts,
        };
        (keeper, receiver)
    }

    /// Looks once, and does at most one step. Returns the time until the next turn.
    async fn step(&mut self) -> Result<Duration, TurnError> {
        let tls = self.read(Which::Serving).await?;
        let now = self.time(tls.time);
        let serving = StoredServing::read(tls.secret.as_ref().map(data).as_ref());
        match self.parts.external_secret.clone() {
            None => self.keep(now, tls.secret.as_ref(), &serving).await,
            Some(name) => self.follow(now, &name, tls.secret.as_ref(), &serving).await,
        }
    }

    /// A turn with certificates that another program makes.
    async fn follow(
        &mut self,
        now: Timestamp,
        name: &str,
        tls: Option<&Secret>,
        serving: &StoredServing,
    ) -> Result<Duration, TurnError> {
        let source = self.read_named(name, Which::Serving).await?.secret;
        let given = tls.map(data);
        let offer = ExternalCertificate::read(source.as_ref().map(data).as_ref(), &self.parts.rules, now);
        let is_spread = match &offer {
            // Asked only during a change, as it counts only then.
            Ok(offer) if !offer.is(given.as_ref()) => self.is_spread(offer.authorities()).await?,
            _ => self.follows(),
        };
        let remembered = self.remembered(offer.as_ref().ok().map(ExternalCertificate::authorities), serving).await?;
        let unchanged = self.unchanged.since(digest(&[source.as_ref(), tls], is_spread));
        let observed = Observed { now, unchanged, is_spread, remembered: &remembered };
        let decision = external::follow(&observed, &offer, given.as_ref(), &self.parts.rules);
        self.publish(&decision, now).await;
        self.expiring(&decision).await;
        match (&decision.step, offer) {
            (Some(step), Ok(offer)) => self.write(step, tls, offer.into_data()).await.map(|_| STEP_PAUSE),
            _ => Ok(rest(&decision)),
        }
    }

    /// A turn with certificates of our own.
    async fn keep(
        &mut self,
        now: Timestamp,
        tls: Option<&Secret>,
        serving: &StoredServing,
    ) -> Result<Duration, TurnError> {
        let ca = self.read(Which::Ca).await?.secret;
        let stored = StoredAuthority::read(ca.as_ref().map(data).as_ref());
        let authority = stored.pair.as_ref().and_then(|pair| pair.as_ref().ok()).map(Authority::bundle);
        let remembered = self.remembered(authority.as_ref(), serving).await?;
        let replaced = replaced(now, &stored, serving, &remembered);
        let authority = authority.unwrap_or_default();
        let replaced = self.missing.trusted(&authority, replaced, self.parts.rules.replica_pause);
        let is_spread = match &stored.pair {
            // Asked only during a change, as it counts only then.
            Some(Ok(_)) if self.is_for_webhooks() && !(stored.previous.is_empty() && replaced.is_empty()) => {
                self.is_spread(&authority.and(&stored.previous)).await?
            }
            _ => self.follows(),
        };
        let unchanged = self.unchanged.since(digest(&[ca.as_ref(), tls], is_spread));
        let observed = Observed { now, unchanged, is_spread, remembered: &remembered };
        let decision = next(&observed, &stored, &replaced, serving, &self.parts.rules);
        self.publish(&decision, now).await;
        let Some(step) = &decision.step else { return Ok(rest(&decision)) };

        let read = if step.which() == Which::Ca { ca.as_ref() } else { tls };
        let Some(data) = self.made(&decision, step, &stored, serving, now)? else { return Ok(POLL) };
        let written = self.write(step, read, data).await;
        match &written {
            Ok(true) => self.remember(step.kept(&stored)),
            Ok(false) => {}
            Err(_) => self.expiring(&decision).await,
        }
        written.map(|_| pause_after(step))
    }

    /// Publishes the authorities that webhooks should trust from now on, if there are any.
    fn remember(&self, bundle: Option<CaBundle>) {
        if let Some(bundle) = bundle {
            set_if_new(&self.bundle, Some(Arc::new(bundle)));
        }
    }

    async fn read(&self, which: Which) -> Result<Read, TurnError> {
        self.read_named(self.name(which), which).await
    }

    async fn read_named(&self, name: &str, which: Which) -> Result<Read, TurnError> {
        self.secrets.read(name).await.map_err(|source| TurnError::Secret { name: name.to_owned(), which, source })
    }

    /// Writes what a step makes, if the Secret is still the one that was read. Returns whether it was.
    async fn write(&self, step: &Step, read: Option<&Secret>, data: Data) -> Result<bool, TurnError> {
        let which = step.which();
        let kind = if which == Which::Ca { "Opaque" } else { "kubernetes.io/tls" };
        match self.secrets.write(self.name(which), kind, read, data).await {
            Ok(()) => {
                tracing::info!(secret = self.name(which), step = %step, "certificates changed");
                Ok(true)
            }
            Err(SecretError::Conflict) => Ok(false),
            Err(source) => Err(TurnError::Secret { name: self.name(which).to_owned(), which, source }),
        }
    }

    fn is_for_webhooks(&self) -> bool {
        self.parts.rules.purpose == Purpose::Webhooks
    }

    async fn registered(&self) -> Result<Registered, TurnError> {
        Ok(Registered::list(&self.parts.client, &self.parts.policy_server).await?)
    }

    /// Whether every webhook trusts all of these authorities. Those that do not for long are named in the log.
    async fn is_spread(&mut self, bundle: &CaBundle) -> Result<bool, TurnError> {
        let registered = self.registered().await?;
        let lagging = registered.lagging(bundle);
        if lagging.is_empty() {
            return Ok(self.follows());
        }
        let names = few(&lagging);
        if self.lag.fails(&names, Instant::now()) {
            tracing::warn!(
                webhooks = names,
                "a change of certificates waits for webhooks that do not trust the new authority yet"
            );
        }
        Ok(false)
    }

    /// Notes that no webhook is waited for. Returns true, as what was waited for has happened.
    fn follows(&mut self) -> bool {
        if self.lag.works() {
            tracing::info!("a change of certificates no longer waits for webhooks");
        }
        true
    }

    /// The authorities that webhooks should have trusted until now. A controller that has just started asks which ones they do trust.
    async fn remembered(&self, authorities: Option<&CaBundle>, serving: &StoredServing) -> Result<CaBundle, TurnError> {
        let said = self.bundle.borrow().clone();
        match said {
            Some(bundle) => Ok(CaBundle::clone(&bundle)),
            // The serving Secret says which authorities its holders trust.
            None if !self.is_for_webhooks() => Ok(serving.shown()),
            None => Ok(self.registered().await?.trusted(authorities)),
        }
    }

    /// The data that a step writes.
    fn made(
        &self,
        decision: &Decision,
        step: &Step,
        stored: &StoredAuthority,
        serving: &StoredServing,
        now: Timestamp,
    ) -> Result<Option<Data>, AuthorityError> {
        let authority = stored.pair.as_ref().and_then(|pair| pair.as_ref().ok());
        let pair = serving.pair.as_ref().and_then(|pair| pair.as_ref().ok());
        let rules = &self.parts.rules;
        Ok(match step {
            Step::MakeAuthority { previous, .. } => {
                Some(StoredAuthority::data(&Authority::make(rules, now)?, previous))
            }
            Step::Trust { previous } => authority.map(|authority| StoredAuthority::data(authority, previous)),
            Step::IssueServing { .. } => match authority {
                Some(authority) => Some(StoredServing::data(&authority.issue(rules, now)?, &decision.bundle)),
                None => None,
            },
            Step::Show => pair.map(|pair| StoredServing::data(pair, &decision.bundle)),
            // Only certificates of another program are passed on, and these are our own.
            Step::Give => None,
        })
    }

    /// Publishes which authorities webhooks should trust, what is wrong, and how much time is left.
    async fn publish(&mut self, decision: &Decision, now: Timestamp) {
        // While there is no authority at all, webhooks keep what they have.
        self.remember(Some(decision.bundle.clone()).filter(|bundle| !bundle.is_empty()));
        self.parts.metrics.show(self.parts.rules.purpose, &decision.ends, now);
        let problems: Vec<_> = decision.problems.iter().map(|problem| (problem.which(), problem.to_string())).collect();
        for (which, problem) in &problems {
            let name = self.maker(*which);
            let text = format!("Secret {name}: {problem}");
            self.events.warn(Reason::CertificateInvalid, Some(*which), &self.reference(name), &text).await;
        }
        let texts: Vec<_> =
            problems.iter().map(|(which, text)| format!("Secret {}: {text}", self.maker(*which))).collect();
        self.problem = (!texts.is_empty()).then(|| texts.join("; "));
    }

    async fn expiring(&mut self, decision: &Decision) {
        for which in &decision.expiring {
            let end = decision.ends.iter().find(|(one, _)| one == which).map(|(_, end)| end.to_string());
            let name = self.maker(*which);
            let text = format!(
                "the certificate in Secret {name} expires at {} and has not been renewed",
                end.unwrap_or_default()
            );
            self.events.warn(Reason::CertificateExpiring, Some(*which), &self.reference(name), &text).await;
        }
    }

    /// The time by the API server's clock, or by our own if it is not known. The API server is what decides whether a certificate has expired.
    fn time(&mut self, server: Option<Timestamp>) -> Timestamp {
        let here = Timestamp::now();
        let now = server.unwrap_or(here);
        let skew = now.duration_since(here);
        let was_skewed = std::mem::replace(&mut self.is_skewed, skew.abs() > SKEW);
        if self.is_skewed && !was_skewed {
            tracing::warn!(
                seconds = skew.as_secs(),
                "the clock of the API server differs from the one of this machine"
            );
        }
        now
    }

    fn name(&self, which: Which) -> &str {
        match which {
            Which::Ca => &self.parts.ca_secret,
            Which::Serving => &self.parts.tls_secret,
        }
    }

    /// The Secret to which a new certificate is written first, by the controller or by an external issuer.
    fn maker(&self, which: Which) -> &str {
        self.parts.external_secret.as_deref().unwrap_or_else(|| self.name(which))
    }

    fn reference(&self, secret: &str) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Secret".to_owned()),
            namespace: Some(self.parts.namespace.clone()),
            name: Some(secret.to_owned()),
            ..ObjectReference::default()
        }
    }
}

impl Keep for Keeper {
    type Error = TurnError;

    const KEPT: &'static str = "certificates";

    async fn turn(&mut self) -> Result<Turn, TurnError> {
        self.problem = None;
        let pause = self.step().await?;
        Ok(Turn { pause, problem: self.problem.take() })
    }

    fn asked_wait(error: &TurnError) -> Option<Duration> {
        match error {
            TurnError::Secret { source, .. } => source.asked_wait(),
            TurnError::Webhooks(error) => asked_wait(error),
            TurnError::Authority(_) | TurnError::TimedOut(_) => None,
        }
    }

    async fn failed(&mut self, error: &TurnError) {
        if let TurnError::Secret { which, source: SecretError::NotOurs, .. } = error {
            let reference = self.reference(self.name(*which));
            self.events.warn(Reason::CertificateInvalid, Some(*which), &reference, &error.to_string()).await;
        }
    }

    fn errors(&self) -> &IntCounter {
        &self.parts.metrics.errors
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.parts.metrics.hide(self.parts.rules.purpose);
    }
}

fn rest(decision: &Decision) -> Duration {
    decision.wait.map_or(POLL, |wait| wait.clamp(STEP_PAUSE, POLL))
}

/// The pause after a step. Nothing else is urgent once authorities were stored or shown, and what reverts that may do so again and again.
fn pause_after(step: &Step) -> Duration {
    match step {
        Step::MakeAuthority { .. } | Step::IssueServing { .. } | Step::Give => STEP_PAUSE,
        Step::Trust { .. } | Step::Show => POLL,
    }
}

fn data(secret: &Secret) -> Data {
    secret.data.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::routing::get;
    use portcullis_kubernetes::{CONTROLLER_MANAGER, MANAGED_BY_LABEL};
    use serde_json::{Value, json};

    use super::super::decide::tests::rules;
    use super::*;

    /// A keeper whose Secrets always have this content, as another program restores them at once; and the number of writes.
    fn keeper(contents: [(&str, Data); 2], labels: &Value) -> (Keeper, Arc<AtomicUsize>) {
        let writes = Arc::new(AtomicUsize::new(0));
        let mut router = axum::Router::new();
        for (name, data) in contents {
            let mut secret = json!(Secret { data: Some(data), ..Secret::default() });
            secret["metadata"] = json!({ "name": name, "resourceVersion": "1", "labels": labels });
            let (secret, count) = (secret.to_string(), Arc::clone(&writes));
            let answer = secret.clone();
            let read = || async { secret };
            let write = || async move {
                count.fetch_add(1, Ordering::Relaxed);
                answer
            };
            router = router.route(&format!("/api/v1/namespaces/gate/secrets/{name}"), get(read).put(write));
        }
        for kind in ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"] {
            let nothing = || async { json!({ "metadata": {}, "items": [] }).to_string() };
            router = router.route(&format!("/apis/admissionregistration.k8s.io/v1/{kind}"), get(nothing));
        }
        let parts = KeeperParts {
            client: Client::new(router, "gate"),
            namespace: "gate".to_owned(),
            policy_server: "default".to_owned(),
            instance: "controller".to_owned(),
            external_secret: None,
            ca_secret: "ca".to_owned(),
            tls_secret: "tls".to_owned(),
            rules: Rules { replica_pause: Duration::from_millis(500), ..rules() },
            metrics: CertificateMetrics::new(&prometheus::Registry::new()).expect("registers"),
        };
        (Keeper::new(parts).0, writes)
    }

    #[tokio::test]
    async fn the_change_to_other_secrets_ends_whatever_becomes_of_writes() {
        let now = Timestamp::now();
        let authority = || Authority::make(&rules(), now).expect("an authority");
        let (old, new) = (authority().bundle(), authority());
        let serving = StoredServing::data(&new.issue(&rules(), now).expect("a certificate"), &new.bundle());
        let contents = [("ca", StoredAuthority::data(&new, &CaBundle::default())), ("tls", serving)];
        let ours = json!({ MANAGED_BY_LABEL: CONTROLLER_MANAGER });
        for (labels, written) in [(ours, 1), (json!({}), 0)] {
            let (mut keeper, writes) = keeper(contents.clone(), &labels);
            keeper.bundle.send_replace(Some(Arc::new(old.clone())));
            let published = |keeper: &Keeper| keeper.bundle.borrow().as_deref().cloned().expect("authorities");
            match keeper.step().await {
                Ok(pause) => assert_eq!((pause, written), (POLL, 1), "nobody hurries to write it again"),
                Err(error) => assert!(error.to_string().contains("has no label") && written == 0, "{error}"),
            }
            assert_eq!(published(&keeper), new.bundle().and(&old));
            tokio::time::sleep(keeper.parts.rules.replica_pause).await;
            for _ in 0..2 {
                assert!(keeper.step().await.is_ok_and(|pause| pause == POLL));
                assert_eq!(published(&keeper), new.bundle());
            }
            assert_eq!(writes.load(Ordering::Relaxed), written);
        }
    }
}
