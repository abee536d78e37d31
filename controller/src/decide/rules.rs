//! The settings that decisions depend on, and their result.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_api::PolicyReference;
use portcullis_process::Now;

use crate::action::Action;
use crate::desired::Installation;
use crate::memory::ConditionValue;

/// The settings, and what is known about the installation.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The policy server.
    pub policy_server: String,
    /// The namespace of the installation.
    pub namespace: String,
    /// What every webhook contains about the installation, or why it is not known yet.
    pub installation: Result<Installation, ConditionValue>,
    /// Labels for every webhook, beside our own.
    pub webhook_labels: Arc<BTreeMap<String, String>>,
    /// How long one evaluation may take if the policy does not say, in seconds.
    pub policy_timeout: u32,
    /// How many policies one namespace may have.
    pub policies_per_namespace: usize,
    /// How many webhook configurations the policies of one namespace may have.
    pub webhooks_per_namespace: usize,
    /// Whether policies that differ in object selector and match conditions only share a webhook.
    pub shares_webhooks: bool,
    /// How long API servers wait for the evaluators' answer about a policy that a user applies, in seconds; `None` if they do not ask.
    pub check_timeout: Option<u32>,
    /// How long API servers may go on calling a deleted webhook.
    pub webhook_pause: Duration,
    /// How long replicas may take to drop a policy.
    pub revision_pause: Duration,
    /// How long a policy waits for its replicas before an event says so.
    pub waiting_event: Duration,
}

impl Rules {
    /// Whether no webhook can call the policy: it is about objects in the installation's own namespace only, which webhooks leave out.
    pub(super) fn is_never_asked(&self, policy: &PolicyReference) -> bool {
        policy.namespace.as_ref() == Some(&self.namespace)
    }
}

/// What to do.
#[derive(Debug)]
pub struct Decision {
    /// The time that it is decided for.
    pub(super) now: Now,
    /// The actions, most important first.
    pub actions: Vec<Action>,
    /// The conditions of policies that were never accepted, which are less important than all actions.
    pub refusals: Vec<Action>,
    /// When to decide again, even if nothing changes.
    pub wake: Option<Instant>,
}

impl Decision {
    /// An empty decision, made at this time.
    pub(super) fn new(now: Now) -> Self {
        Self { now, actions: Vec::new(), refusals: Vec::new(), wake: None }
    }

    pub(super) fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    pub(super) fn wake_at(&mut self, at: Instant) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Whether `time` has passed since `since`; if not, it will be decided again when it has.
    pub(super) fn has_passed(&mut self, since: Instant, time: Duration) -> bool {
        let at = since + time;
        let has = self.now.instant >= at;
        if !has {
            self.wake_at(at);
        }
        has
    }
}
