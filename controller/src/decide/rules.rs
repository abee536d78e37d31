//! What decisions are made from besides the world, and what they result in.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::action::Action;
use crate::desired::Site;
use crate::memory::Verdict;

/// What the operator chose, and what is known of the installation.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The policy server.
    pub policy_server: String,
    /// The namespace of the installation.
    pub namespace: String,
    /// What stands in every webhook, or why it is not known yet.
    pub site: Result<Site, Verdict>,
    /// How long an evaluation may take where a policy says nothing, in seconds.
    pub policy_timeout: u32,
    /// How many policies of a namespace are taken.
    pub policies_per_namespace: usize,
    /// How many webhook configurations the policies of a namespace may have.
    pub webhooks_per_namespace: usize,
    /// How long API servers may go on calling a webhook that is gone.
    pub webhook_pause: Duration,
    /// How long replicas may take to forget a policy.
    pub revision_pause: Duration,
    /// How long a policy waits for its replicas before an event says so.
    pub waiting_event: Duration,
}

/// What time it is.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// By the clock that does not jump.
    pub instant: Instant,
    /// By the clock that people read.
    pub clock: Timestamp,
}

/// What to do.
#[derive(Debug, Default)]
pub struct Decision {
    /// In the order of their importance.
    pub actions: Vec<Action>,
    /// When to decide again, although nothing may have changed.
    pub wake: Option<Instant>,
}

impl Decision {
    pub(super) fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    pub(super) fn wake_at(&mut self, at: Instant) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Whether this much time has passed since; if not, there will be another look when it has.
    pub(super) fn has_passed(&mut self, since: Instant, time: Duration, now: Now) -> bool {
        let at = since + time;
        let has = now.instant >= at;
        if !has {
            self.wake_at(at);
        }
        has
    }
}
