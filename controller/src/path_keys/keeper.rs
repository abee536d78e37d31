//! Reads the Secret, checks which replicas and webhooks follow, writes what was decided, and publishes the key for the paths of webhooks.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use kube::Client;
use portcullis_contract::{PathKey, PathKeys};
use portcullis_kubernetes::asked_wait;
use portcullis_process::set_if_new;
use prometheus::IntCounter;
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::watch;

use super::decide::{Awaited, Found, Next, Observed, PathRules, Step, Stored, first, next};
use super::follow::{Replicas, WebhookPaths};
use super::metrics::PathKeyMetrics;
use super::replaced::{InUse, Taken, is_late, taken};
use crate::certificates::event::{Events, Reason};
use crate::certificates::own_webhooks::few;
use crate::certificates::secrets::{SecretError, Secrets};
use crate::certificates::unchanged::{Unchanged, digest};
use crate::keep::{Keep, POLL, STEP_PAUSE, TimedOut, Turn};

/// What a keeper needs.
#[derive(Clone)]
pub(crate) struct PathKeeperParts {
    /// The client for all requests to the API server.
    pub(crate) client: Client,
    /// The namespace of the Secret.
    pub(crate) namespace: String,
    /// The policy server.
    pub(crate) policy_server: String,
    /// The name of this pod, for events.
    pub(crate) instance: String,
    /// The Service of the policy server.
    pub(crate) service: String,
    /// The name of the Secret.
    pub(crate) secret: String,
    /// Lifetimes and pauses.
    pub(crate) rules: PathRules,
    /// The metrics.
    pub(crate) metrics: PathKeyMetrics,
}

/// Keeps the keys of one policy server, while this controller leads.
pub(crate) struct PathKeeper {
    parts: PathKeeperParts,
    secrets: Secrets,
    events: Events,
    /// The key from which the paths of webhooks are derived; `None` until the Secret has been read.
    key: watch::Sender<Option<PathKey>>,
    /// The keys whose current one was published last; `None` before the first.
    known: Option<PathKeys>,
    /// The keys that this keeper tried to store last, whether or not that worked.
    written: Option<PathKeys>,
    unchanged: Unchanged,
    /// Since when the stored keys are not published, as they lack one that webhooks have; `None` while they are published.
    blocked: Option<Instant>,
    /// What a change waits for, as it was last logged.
    waiting: Option<String>,
}

/// Why a turn failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TurnError {
    #[error("Secret {name}: {source}")]
    Secret { name: String, source: SecretError },
    #[error("failed to check whether replicas and webhooks use the new path key: {0}")]
    Followers(#[from] kube::Error),
    #[error("failed to get random bytes from the system")]
    Random,
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
}

impl TurnError {
    /// Whether the Secret cannot be written as it is: it is not ours, we lack the right to write it, it is immutable, or admission denies
    /// the write. Other failures may pass.
    fn is_refusal(&self) -> bool {
        match self {
            Self::Secret { source: SecretError::NotOurs, .. } => true,
            Self::Secret { source: SecretError::Api(kube::Error::Api(status)), .. } => {
                [403, 422].contains(&status.code)
            }
            _ => false,
        }
    }
}

impl PathKeeper {
    /// A keeper, and a receiver of the current key; `None` until the Secret has been read.
    pub(crate) fn new(parts: PathKeeperParts) -> (Self, watch::Receiver<Option<PathKey>>) {
        let (key, receiver) = watch::channel(None);
        let keeper = Self {
            secrets: Secrets::new(parts.client.clone(), &parts.namespace, &parts.policy_server),
            events: Events::new(parts.client.clone(), &parts.instance),
            key,
            known: None,
            written: None,
            unchanged: Unchanged::default(),
            blocked: None,
            waiting: None,
            parts,
        };
        (keeper, receiver)
    }

    /// Looks once, and does at most one step. Returns the time until the next turn.
    async fn step(&mut self) -> Result<Duration, TurnError> {
        let read = self.secrets.read(&self.parts.secret).await.map_err(|source| self.secret_error(source))?;
        let now = read.time.unwrap_or_else(Timestamp::now);
        let secret = read.secret;
        let stored = secret.as_ref().and_then(|secret| secret.data.as_ref()).and_then(Stored::read);
        let Some(stored) = stored else {
            let (keys, fresh) = (self.found().await?, fresh()?);
            let (stored, step) = first(keys, &self.parts.rules, now, || fresh);
            return self.write(secret.as_ref(), &stored, step).await;
        };
        match taken(self.in_use(&stored.keys).await?, self.written, stored.keys, &self.parts.rules) {
            Taken::AsStored => {}
            Taken::Replaced(keys) if keys == stored.keys => self.warn(keys).await,
            Taken::Replaced(keys) => {
                let back = Stored { keys, ..stored };
                match self.write(secret.as_ref(), &back, Step::Return).await {
                    Ok(pause) => {
                        self.warn(stored.keys).await;
                        return Ok(pause);
                    }
                    // Pods take the stored keys one after the other, so webhooks cannot keep theirs for ever. A failure that may pass is
                    // no reason to move early: the next turn may put the keys back.
                    Err(error) => {
                        if !self.may_move(secret.as_ref(), stored.keys.current, error.is_refusal()).await? {
                            return Err(error);
                        }
                        self.warn(stored.keys).await;
                    }
                }
            }
            Taken::Lost => {
                if !self.may_move(secret.as_ref(), stored.keys.current, true).await? {
                    let text = "webhooks have paths of a key that is not stored, and most replicas do not accept the stored key yet";
                    self.wait_for(Some(text.to_owned()));
                    return Ok(POLL);
                }
            }
        }
        self.publish(&stored, now);
        let waits_for = self.waits_for(&stored).await?;
        let unchanged = self.unchanged.since(digest(&[secret.as_ref()], waits_for.is_none()));
        let observed = Observed { now, unchanged, is_followed: waits_for.is_none() };
        self.wait_for(waits_for);
        let fresh = fresh()?;
        match next(&stored, &observed, &self.parts.rules, || fresh) {
            Next::Store(stored, step) => self.write(secret.as_ref(), &stored, step).await,
            Next::Wait(wait) => Ok(wait.clamp(STEP_PAUSE, POLL)),
        }
    }

    /// The keys by whose paths webhooks are called.
    async fn in_use(&self, stored: &PathKeys) -> Result<InUse, kube::Error> {
        if let Some(known) = self.known {
            return Ok(InUse::Keys(known));
        }
        let PathKeeperParts { client, policy_server, .. } = &self.parts;
        Ok(WebhookPaths::list(client, policy_server).await?.in_use(stored))
    }

    /// Whether webhooks get paths of this key although the key that they have is not stored: replicas had the time to accept it, or it is
    /// certain that the other one `is_lost`, and most replicas accept this one.
    async fn may_move(&mut self, secret: Option<&Secret>, key: PathKey, is_lost: bool) -> Result<bool, kube::Error> {
        let unchanged = self.unchanged.since(digest(&[secret], false));
        let blocked = self.blocked.get_or_insert_with(Instant::now).elapsed();
        if is_late(unchanged, blocked, &self.parts.rules) {
            return Ok(true);
        }
        let PathKeeperParts { client, namespace, service, .. } = &self.parts;
        Ok(is_lost && Replicas::list(client, namespace, service).await?.mostly_accept(key))
    }

    /// Says that somebody else stored these keys.
    async fn warn(&mut self, stored: PathKeys) {
        let PathKeeperParts { namespace, secret, .. } = &self.parts;
        tracing::warn!(secret, stored = ?stored, "somebody else has replaced the keys of webhook paths");
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Secret".to_owned()),
            namespace: Some(namespace.clone()),
            name: Some(secret.clone()),
            ..ObjectReference::default()
        };
        let note = format!(
            "Secret {secret} was replaced by somebody else; webhooks get the paths of another key only when all replicas accept it"
        );
        self.events.warn(Reason::PathKeysReplaced, None, &regarding, &note).await;
    }

    /// What is known when no keys are stored.
    async fn found(&self) -> Result<Found, kube::Error> {
        if let Some(keys) = self.known {
            return Ok(Found::Remembered(keys));
        }
        let PathKeeperParts { client, namespace, policy_server, service, .. } = &self.parts;
        let is_plain = WebhookPaths::list(client, policy_server).await?.have_plain()
            || Replicas::list(client, namespace, service).await?.have_old;
        Ok(if is_plain { Found::Plain } else { Found::Nothing })
    }

    /// What a change waits for, for people to read; `None` if nothing is waited for.
    async fn waits_for(&self, stored: &Stored) -> Result<Option<String>, kube::Error> {
        let PathKeeperParts { client, namespace, policy_server, service, .. } = &self.parts;
        Ok(match stored.awaited() {
            None => None,
            Some(Awaited::Webhooks(key)) => {
                let webhooks = WebhookPaths::list(client, policy_server).await?;
                let lagging = webhooks.lagging(key);
                (!lagging.is_empty())
                    .then(|| format!("these webhooks do not have their new path yet: {}", few(&lagging)))
            }
            Some(Awaited::Replicas(key)) => {
                let replicas = Replicas::list(client, namespace, service).await?;
                let lagging = replicas.lagging(key);
                (!lagging.is_empty())
                    .then(|| format!("these replicas do not accept the next key yet: {}", lagging.join(", ")))
            }
        })
    }

    fn publish(&mut self, stored: &Stored, now: Timestamp) {
        self.known = Some(stored.keys);
        self.blocked = None;
        set_if_new(&self.key, Some(stored.keys.current));
        let age = now.as_second().saturating_sub(stored.made.as_second());
        self.parts.metrics.age.set(if stored.keys.current == PathKey::Plain { 0 } else { age.max(0) });
    }

    /// Writes the Secret, if it is still the one that was read.
    async fn write(&mut self, read: Option<&Secret>, stored: &Stored, step: Step) -> Result<Duration, TurnError> {
        self.written = Some(stored.keys);
        match self.secrets.write(&self.parts.secret, "Opaque", read, stored.data()).await {
            Ok(()) => {
                tracing::info!(secret = self.parts.secret, step = %step, keys = ?stored.keys, "keys of webhook paths changed");
                Ok(STEP_PAUSE)
            }
            Err(SecretError::Conflict) => Ok(STEP_PAUSE),
            Err(source) => Err(self.secret_error(source)),
        }
    }

    fn secret_error(&self, source: SecretError) -> TurnError {
        TurnError::Secret { name: self.parts.secret.clone(), source }
    }

    /// Logs what a change waits for, once for each text.
    fn wait_for(&mut self, text: Option<String>) {
        if let Some(text) = text.as_ref().filter(|text| self.waiting.as_ref() != Some(text)) {
            tracing::info!(reason = text, "a change of the keys of webhook paths waits");
        }
        self.waiting = text;
    }
}

impl Keep for PathKeeper {
    type Error = TurnError;

    const KEPT: &'static str = "the keys of webhook paths";

    async fn turn(&mut self) -> Result<Turn, TurnError> {
        Ok(Turn { pause: self.step().await?, problem: None })
    }

    fn asked_wait(error: &TurnError) -> Option<Duration> {
        match error {
            TurnError::Secret { source, .. } => source.asked_wait(),
            TurnError::Followers(error) => asked_wait(error),
            TurnError::Random | TurnError::TimedOut(_) => None,
        }
    }

    async fn failed(&mut self, _error: &TurnError) {}

    fn errors(&self) -> &IntCounter {
        &self.parts.metrics.errors
    }
}

impl Drop for PathKeeper {
    fn drop(&mut self) {
        self.parts.metrics.age.set(0);
    }
}

fn fresh() -> Result<PathKey, TurnError> {
    let mut key = [0; 32];
    SystemRandom::new().fill(&mut key).map_err(|_| TurnError::Random)?;
    Ok(PathKey::Secret(key))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn only_a_write_that_is_refused_moves_webhooks_early() {
        let is_refusal = |source| TurnError::Secret { name: "paths".into(), source }.is_refusal();
        let answer = |code| SecretError::Api(kube::Error::Api(Status::failure("no", "").with_code(code).boxed()));
        assert!([SecretError::NotOurs, answer(403), answer(422)].into_iter().all(is_refusal));
        let passing =
            [SecretError::TimedOut, SecretError::Conflict, answer(429), answer(500), answer(503), answer(504)];
        assert!(!passing.into_iter().any(is_refusal));
        assert!(!TurnError::TimedOut(TimedOut).is_refusal());
    }
}
