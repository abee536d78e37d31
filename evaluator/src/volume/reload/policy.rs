//! The state of one policy of the manifest: what its candidates have come to here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use portcullis_contract::{CandidateContent, Failure, PolicyEntry, Reason, ReplicaState, Stage};
use tokio::task::AbortHandle;

use crate::guest::loaded::{Content, Loaded};
use crate::lanes::Share;
use crate::metrics::PolicyMetrics;
use crate::table::{ServedPolicy, Serving};
use crate::volume::error_share::ErrorShare;
use crate::volume::load::LoadError;
use crate::volume::plan::{self, Key, Known, Next};
use crate::volume::refusal::{refused, retry_after_manifest};

/// The state of one policy of the manifest.
pub(crate) struct PolicyState {
    /// The entry of the manifest.
    pub(crate) entry: PolicyEntry,
    /// The keys of its candidates, in their order.
    pub(crate) keys: Vec<Key>,
    /// What is known about its candidates.
    pub(crate) known: Known,
    /// The generation that serves; [`Known::in_service`] is its key. None if nothing serves.
    pub(crate) loaded: Option<Arc<Loaded>>,
    /// Since when the policy has been in its state.
    pub(crate) since: Timestamp,
    /// The state as last noted, with the generation that serves and the newest one.
    reported: (ReplicaState, i64, i64),
    pub(super) on_its_way: Option<(Key, AbortHandle)>,
    /// When a candidate is to be tried again; none if no candidate is.
    pub(super) due: Option<Instant>,
    /// The answer while nothing serves and nothing has failed.
    awaiting: Failure,
    share: Arc<Share>,
    pub(super) metrics: Arc<PolicyMetrics>,
    /// Whether too many of its evaluations fail.
    pub(crate) errors: ErrorShare,
    /// The failure that was logged last; none after the recovery.
    logged: Option<(i64, Reason)>,
}

impl PolicyState {
    pub(super) fn new(entry: PolicyEntry, keys: Vec<Key>, share: Arc<Share>, metrics: Arc<PolicyMetrics>) -> Self {
        Self {
            keys,
            known: Known::default(),
            loaded: None,
            since: Timestamp::now(),
            reported: (ReplicaState::Pending, 0, entry.generation),
            on_its_way: None,
            due: None,
            awaiting: awaiting(&entry, Timestamp::now()),
            entry: kept(entry),
            share,
            metrics,
            errors: ErrorShare::default(),
            logged: None,
        }
    }

    pub(super) fn adopt(&mut self, entry: PolicyEntry, keys: Vec<Key>) {
        if self.entry.uid != entry.uid {
            // Another object of the same name: nothing known about the old one holds for it.
            self.known = Known::default();
            self.loaded = None;
            self.errors = ErrorShare::after(self.metrics.counts());
            self.logged = None;
        }
        let of = |entry: &PolicyEntry| (entry.generation, entry.uid.clone(), entry.candidates.is_empty());
        if of(&self.entry) != of(&entry) {
            self.awaiting = awaiting(&entry, Timestamp::now());
        }
        self.keys = keys;
        self.entry = kept(entry);
        self.known.refused.retain(|key, _| self.keys.contains(key));
        let now = Instant::now();
        for refusal in self.known.refused.values_mut() {
            refusal.retry_at = retry_after_manifest(refusal, now);
        }
    }

    pub(super) fn serve(&mut self, key: Key, loaded: Arc<Loaded>) {
        self.known.refused.remove(&key);
        self.known.in_service = Some(key);
        self.loaded = Some(loaded);
    }

    pub(super) fn refuse(&mut self, i: usize, key: Key, error: LoadError) {
        let (candidate, earlier) = (&self.entry.candidates[i], self.known.refused.get(&key));
        let refusal = refused(candidate, earlier, error, fastrand::f64(), (Instant::now(), Timestamp::now()));
        self.known.refused.insert(key, refusal);
    }

    /// Whether a try of this candidate had too little processor time.
    pub(super) fn was_starved(&self, key: &Key) -> bool {
        self.known.refused.get(key).is_some_and(|refusal| refusal.starved > 0)
    }

    /// Whether another try of a candidate is on its way, for a cause that no manifest mends. One that failed because of the volume is as good as
    /// new: a new manifest may have mended that.
    pub(super) fn is_another_try_on_its_way(&self) -> bool {
        let refusal = self.on_its_way.as_ref().and_then(|(key, _)| self.known.refused.get(key));
        refusal.is_some_and(|refusal| refusal.refused.failure.stage() != Stage::Volume)
    }

    pub(super) fn next(&mut self, now: Instant) -> Next {
        let on_its_way = self.on_its_way.as_ref().map(|(key, _)| *key);
        let next = plan::next(&self.entry, &self.keys, &self.known, on_its_way, now);
        self.due = if let Next::Rest(due) = next { due } else { None };
        next
    }

    /// Goes on serving the same code under the generation of candidate `i`, whose content is the same.
    pub(super) fn renumber(&mut self, i: usize) {
        if let Some(loaded) = &self.loaded {
            let loaded = Arc::new(loaded.renumbered(self.entry.candidates[i].generation));
            self.serve(self.keys[i], loaded);
        }
    }

    /// Counts the interval that began at `begin` and has just ended.
    pub(super) fn count_errors(&mut self, begin: Timestamp) {
        self.errors.turn(self.metrics.counts(), begin);
    }

    pub(super) fn give_up(&mut self) {
        if let Some((_, task)) = self.on_its_way.take() {
            task.abort();
        }
    }

    /// Why the newest generation does not serve; none if it has not failed.
    pub(crate) fn failure(&self) -> Option<Failure> {
        plan::failure(&self.entry, &self.keys, &self.known)
    }

    /// The state of the policy on this replica.
    pub(crate) fn state(&self) -> ReplicaState {
        self.reported.0
    }

    /// Whether the start gate need not wait for the policy.
    pub(crate) fn is_settled(&self) -> bool {
        let older_may_come = self.entry.enforced && !self.known.refused.is_empty();
        let is_loading = self.on_its_way.is_some();
        plan::is_settled(&self.known, self.failure().as_ref(), is_loading, older_may_come, Timestamp::now())
    }

    /// Notes a change of state and its time, and logs the beginning and the end of a failure. The failure of a policy that is only checked is
    /// not logged: the user who applies it gets it as the answer, and may try as often as they like.
    pub(super) fn note(&mut self) {
        let failure = self.failure();
        let serving = self.known.in_service.map_or(0, Key::generation);
        let reported = (plan::state(&self.entry, &self.known, failure.as_ref()), serving, self.entry.generation);
        if reported != self.reported {
            self.reported = reported;
            self.since = Timestamp::now();
        }
        if self.entry.id.is_check() {
            return;
        }
        let is_current = self.reported.0 == ReplicaState::Current;
        let own = self.known.refused.values().filter(|_| !is_current).map(|refusal| &refusal.refused.failure);
        let Some(own) = own.max_by_key(|failure| failure.generation) else {
            // A policy that is being loaded again has not recovered yet.
            if self.on_its_way.is_none() && self.logged.take().is_some() {
                tracing::info!(policy = %self.entry.id, generation = self.entry.generation, serving, "policy recovered");
            }
            return;
        };
        if self.logged != Some((own.generation, own.reason)) {
            self.logged = Some((own.generation, own.reason));
            let (policy, generation, reason) = (&self.entry.id, own.generation, own.reason);
            if plan::quotes_guest(reason) {
                tracing::warn!(%policy, generation, %reason, serving, "failed to load a policy; its status says more");
            } else {
                tracing::warn!(%policy, generation, %reason, serving, cause = own.message, "failed to load a policy");
            }
        }
    }

    pub(super) fn served(&self) -> ServedPolicy {
        let is_group = match &self.loaded {
            Some(loaded) => matches!(loaded.content(), Content::PolicyGroup(_)),
            None => {
                self.entry.candidates.first().is_some_and(|newest| matches!(newest.content, CandidateContent::Group(_)))
            }
        };
        let serving = match &self.loaded {
            Some(loaded) => Serving::Ready(Arc::clone(loaded)),
            None => Serving::Unserved(
                plan::unserved(&self.entry, &self.keys, &self.known).unwrap_or_else(|| self.awaiting.clone()),
            ),
        };
        ServedPolicy {
            id: self.entry.id.clone(),
            uid: self.entry.uid.clone(),
            generation: self.entry.generation,
            mode: self.entry.mode,
            failure_policy: self.entry.failure_policy,
            suspend: self.entry.suspend,
            is_group,
            enforced: self.entry.enforced,
            serving,
            failure: self.failure(),
            share: Arc::clone(&self.share),
            metrics: Arc::clone(&self.metrics),
        }
    }
}

/// The entry without the fields that only the loader needs.
fn kept(entry: PolicyEntry) -> PolicyEntry {
    PolicyEntry { last_good: None, source: None, ..entry }
}

fn awaiting(entry: &PolicyEntry, now: Timestamp) -> Failure {
    let generation = entry.generation;
    if entry.candidates.is_empty() {
        let text = format!("generation {generation} is not on the volume yet; the loader is fetching or compiling it");
        return Failure::new(generation, Reason::AwaitingManifest, text, now);
    }
    let text = format!("generation {generation} is being loaded");
    let next_retry_time = now.checked_add(Duration::from_secs(1)).ok();
    Failure { next_retry_time, ..Failure::new(generation, Reason::AwaitingManifest, text, now) }
}
