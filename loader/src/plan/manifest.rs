//! The next manifest: what is in it, and whether and when it is published.

use std::time::{Duration, Instant};

use portcullis_contract::{Candidate, Digest, Failure, GroupEntry, Manifest, PolicyEntry, PolicyId};

use super::effort::{Effort, Now, Setback};
use super::policy::Policy;
use super::{Plan, Reference};
use crate::retry;

/// How long changes gather before a manifest is written.
const GATHER: Duration = Duration::from_millis(10);
/// The same for what only the loader itself will read, after a restart.
const GATHER_OWN: Duration = Duration::from_secs(1);

/// What stands on the volume, and what is on its way there.
#[derive(Debug, Default)]
pub(super) struct Publication {
    /// Of the manifest on the volume.
    print: Option<Print>,
    /// The newest number that was published here.
    number: u64,
    /// Since when another manifest is wanted.
    since: Option<Instant>,
    own_only: bool,
    /// Publish even if nothing changed.
    forced: bool,
    in_flight: Option<InFlight>,
    effort: Effort<()>,
}

#[derive(Debug)]
struct InFlight {
    print: Print,
    first: Vec<(PolicyId, Option<(i64, Digest)>)>,
}

/// Digests of a manifest's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Print {
    /// What the evaluator acts on, and what modules are pinned to: a loader that dies must not fetch them again.
    urgent: Digest,
    /// What only the loader itself will read.
    own: Digest,
}

impl Print {
    fn of(policies: &[PolicyEntry], groups: &[GroupEntry], pins: &[Option<Digest>]) -> Self {
        let urgent = |entry: &PolicyEntry| {
            let head = (&entry.id, &entry.uid, entry.generation, entry.mode, entry.failure_policy, entry.suspend);
            serde_json::to_vec(&(head, entry.enforced, &entry.candidates, &entry.failures)).expect("has text keys only")
        };
        let own =
            |entry: &PolicyEntry| serde_json::to_vec(&(&entry.last_good, &entry.source)).expect("has text keys only");
        let digest = |parts: &dyn Fn(&PolicyEntry) -> Vec<u8>, more: &[u8]| {
            let mut hasher = portcullis_contract::Hasher::default();
            for entry in policies {
                hasher.update(&parts(entry));
            }
            hasher.update(more);
            hasher.finish()
        };
        let more = serde_json::to_vec(&(groups, pins)).expect("has text keys only");
        Self { urgent: digest(&urgent, &more), own: digest(&own, &[]) }
    }
}

impl Publication {
    /// What an earlier loader published.
    pub(super) fn restore(manifest: &Manifest, pins: &[Option<Digest>]) -> Self {
        let print = Print::of(&manifest.policies, &manifest.groups, pins);
        Self { print: Some(print), number: manifest.number, effort: Effort::done(()), ..Self::default() }
    }

    /// The next manifest is published even if it equals the last.
    pub(super) fn force(&mut self) {
        self.forced = true;
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Why nothing can be published.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.effort.failure(0, None)
    }

    pub(super) fn wakes_at(&self) -> Option<Instant> {
        if self.in_flight.is_some() {
            return None;
        }
        let gather = if self.own_only { GATHER_OWN } else { GATHER };
        let gathered = self.since.and_then(|since| since.checked_add(gather));
        // A wait that is over has nothing to say until something is to be published.
        gathered.map(|at| self.effort.wakes_at().map_or(at, |wake| at.max(wake)))
    }
}

impl Plan {
    /// The manifest that should be published now, if one should.
    pub(super) fn publish(&mut self, now: Now) -> Option<Manifest> {
        self.publication.effort.wake(now);
        if self.publication.in_flight.is_some() {
            return None;
        }
        // Building a manifest of thousands of policies takes a while: not when nothing can have changed, and not while urgent
        // changes gather. While others do, one that is urgent must still be found.
        let gathers = self.publication.wakes_at().is_some_and(|at| at > now.instant);
        let is_settled = self.publication.since.is_none() && !self.touched;
        if is_settled || (gathers && !(self.publication.own_only && self.touched)) {
            return None;
        }
        self.touched = false;
        let policies: Vec<PolicyEntry> = self.policies.iter().map(|(id, policy)| self.entry(id, policy)).collect();
        let groups = self.groups.entries();
        let pins: Vec<Option<Digest>> = self.policies.values().map(|policy| policy.pin).collect();
        let print = Print::of(&policies, &groups, &pins);
        let publication = &mut self.publication;
        if publication.print == Some(print) && !publication.forced {
            publication.since = None;
            return None;
        }
        publication.own_only = !publication.forced && publication.print.is_some_and(|last| last.urgent == print.urgent);
        publication.since.get_or_insert(now.instant);
        if publication.wakes_at().is_some_and(|at| at > now.instant) {
            return None;
        }
        let first = policies
            .iter()
            .map(|entry| (entry.id.clone(), entry.candidates.first().map(|first| (first.generation, first.digest))));
        publication.in_flight = Some(InFlight { print, first: first.collect() });
        publication.since = None;
        publication.forced = false;
        for policy in self.policies.values_mut() {
            if policy.target().is_some_and(|(body, digest)| {
                let is_made = self.artifacts.get(&digest).is_some_and(|making| making.effort.result().is_some());
                is_made && self.admissions.are_done(body, &digest)
            }) {
                policy.remember();
            }
        }
        Some(Manifest { number: 0, policies, groups })
    }

    /// What became of the manifest that was to be published.
    pub(crate) fn published(&mut self, result: Result<u64, Setback>, now: Now) {
        let Some(in_flight) = self.publication.in_flight.take() else { return };
        (self.touched, self.changed) = (true, true);
        match result {
            Ok(number) => {
                self.publication.number = number;
                self.publication.print = Some(in_flight.print);
                self.publication.effort.succeed(());
                for (id, first) in in_flight.first {
                    if let Some(policy) = self.policies.get_mut(&id) {
                        policy.published = first;
                    }
                }
                for making in self.artifacts.values_mut().filter(|making| !making.anew) {
                    making.told_in.get_or_insert(number);
                }
            }
            Err(setback) => {
                self.publication.effort.fail(setback, &self.settings.retry, retry::random(), now);
                self.publication.forced = true;
            }
        }
    }

    /// The manifest on the volume is not the one that was published: it is published again.
    pub(crate) fn manifest_lost(&mut self) {
        self.touched = true;
        self.publication.force();
    }

    fn entry(&self, id: &PolicyId, policy: &Policy) -> PolicyEntry {
        let mut candidates = Vec::new();
        if let Some((body, digest)) = policy.target() {
            candidates.extend(self.candidate(body, policy.generation, digest));
        }
        if self.needs_fallback(policy) {
            let mut ready = policy.fallbacks().filter_map(|other| {
                let candidate = self.candidate(&other.body, other.number, other.digest)?;
                Some((policy.is_unproven(other), candidate))
            });
            let best = ready.next();
            // What nobody has said to be good is not relied upon alone.
            let next = best
                .as_ref()
                .filter(|(is_unproven, _)| *is_unproven)
                .and_then(|_| ready.find(|(is_unproven, _)| !is_unproven));
            candidates.extend([best, next].into_iter().flatten().map(|(_, candidate)| candidate));
        }
        policy.entry(id, candidates, self.failure(policy).into_iter().collect())
    }

    fn candidate(&self, body: &crate::content::Body, generation: i64, digest: Digest) -> Option<Candidate> {
        let record = self.candidate_artifact(body, &digest)?;
        Some(body.candidate(generation, digest, record.artifact.clone(), record.execution_mode))
    }

    /// Why the newest generation cannot be published.
    pub(super) fn failure(&self, policy: &Policy) -> Option<Failure> {
        if let Some(problem) = policy.problem() {
            return Some(problem);
        }
        let body = policy.body.as_ref().ok()?;
        if policy.pin.is_some_and(|digest| self.candidate_artifact(body, &digest).is_some()) {
            return None;
        }
        self.attempted(policy, body).or_else(|| policy.failed_before.clone())
    }

    /// How the newest attempt of this loader failed.
    fn attempted(&self, policy: &Policy, body: &crate::content::Body) -> Option<Failure> {
        let of_module = |reference: &Reference| {
            self.modules.get(reference).and_then(|module| module.failure(policy.generation, Some(policy.begun)))
        };
        let Some(digest) = policy.pin else { return of_module(body.reference.as_ref()?) };
        if !self.is_admitted(body, &digest) {
            return self.admission(body, &digest)?.failure(policy.generation, Some(policy.begun));
        }
        let making = self.artifacts.get(&digest)?;
        let fetch = body.reference.as_ref().filter(|_| making.no_module).and_then(of_module);
        fetch.or_else(|| making.effort.failure(policy.generation, Some(policy.begun)))
    }
}
