//! The next manifest: what is in it, and whether and when it is published.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use portcullis_contract::{Candidate, Class, Digest, Failure, GroupEntry, Manifest, PolicyEntry, PolicyId, Reason};
use serde::Serialize;

use super::attempts::{AttemptError, Attempts};
use super::budget::{self, Choice, Demand};
use super::generation::Generation;
use super::policy::Policy;
use super::{Plan, Reference};
use crate::claims::Need;
use crate::content::Body;
use crate::pins::Pins;
use portcullis_process::Now;

/// How long changes gather before a manifest is written.
const GATHER: Duration = Duration::from_millis(10);
/// The same for changes that only the loader itself will read, after a restart.
const GATHER_OWN: Duration = Duration::from_secs(1);

/// Most bytes in a manifest beside policies and groups.
const ENVELOPE: u64 = 1 << 10;

/// The manifest on the volume, and the one that is being written.
#[derive(Debug, Default)]
pub(super) struct Publication {
    /// Digests of the manifest on the volume; `None` if there is none.
    fingerprint: Option<Fingerprint>,
    /// The number of the manifest that was published last; 0 if there is none.
    number: u64,
    /// [`Plan::changes`] when a manifest was built last; `None` if none was.
    built_at: Option<u64>,
    /// When changes began to gather; `None` if nothing waits to be published.
    since: Option<Instant>,
    own_only: bool,
    /// Whether to publish even if nothing changed.
    forced: bool,
    in_flight: Option<InFlight>,
    attempts: Attempts<()>,
    /// Policies whose newest generation could be served, but has no room in the manifest.
    left_out: BTreeMap<PolicyId, Failure>,
}

#[derive(Debug)]
struct InFlight {
    fingerprint: Fingerprint,
    first: Vec<(PolicyId, Option<(i64, Digest)>)>,
}

/// Digests of a manifest's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    /// What the evaluator acts on, and the pins: after a crash, modules must not be fetched again.
    urgent: Digest,
    /// What only the loader itself will read.
    own: Digest,
}

impl Fingerprint {
    fn of(policies: &[PolicyEntry], groups: &[GroupEntry], pins: &[&Pins]) -> Self {
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
    /// The state after an earlier loader published this manifest.
    pub(super) fn restore(manifest: &Manifest, pins: &[&Pins]) -> Self {
        let fingerprint = Fingerprint::of(&manifest.policies, &manifest.groups, pins);
        Self {
            fingerprint: Some(fingerprint),
            number: manifest.number,
            attempts: Attempts::done(()),
            ..Self::default()
        }
    }

    /// The next manifest is published even if it equals the last.
    pub(super) fn force(&mut self) {
        self.forced = true;
    }

    /// An attempt of other work succeeded. If that work had failed at the volume, the volume takes writes again: the manifest is written at once,
    /// and policies that are ready no longer fail because of it.
    pub(super) fn note_success<T>(&mut self, work: &mut Attempts<T>, result: T) {
        if work.has_failed_at_volume() {
            self.attempts.volume_works();
        }
        work.succeed(result);
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Why the manifest cannot be written; `None` if it can.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.attempts.failure(0, None)
    }

    /// Why the newest generation of a policy is not in the manifest, where there is no room for it.
    pub(super) fn left_out(&self, id: &PolicyId) -> Option<&Failure> {
        self.left_out.get(id)
    }

    pub(super) fn wakes_at(&self) -> Option<Instant> {
        if self.in_flight.is_some() {
            return None;
        }
        let gather = if self.own_only { GATHER_OWN } else { GATHER };
        let gathered = self.since.and_then(|since| since.checked_add(gather));
        // A retry matters only if there is something to publish.
        gathered.map(|at| self.attempts.wakes_at().map_or(at, |wake| at.max(wake)))
    }
}

/// The size of an entry in bytes, with the comma after it.
fn size_of(entry: &PolicyEntry) -> u64 {
    encoded_len(entry) + 1
}

/// The size of a value as JSON, in bytes.
fn encoded_len(value: &impl Serialize) -> u64 {
    struct Counter(u64);
    impl io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    serde_json::to_writer(&mut counter, value).expect("has text keys only");
    counter.0
}

impl Plan {
    /// Whether something has happened since a manifest was built.
    pub(super) fn is_manifest_behind(&self) -> bool {
        self.publication.built_at != Some(self.changes)
    }

    /// The manifest that should be published now, if one should.
    pub(super) fn publish(&mut self, now: Now) -> Option<Manifest> {
        self.publication.attempts.wake(now);
        if self.publication.in_flight.is_some() {
            return None;
        }
        // Building a manifest of thousands of policies takes a while. So it is not done when nothing can have changed, or while urgent changes
        // gather. While only other changes gather, an urgent one must still be noticed.
        let gathers = self.publication.wakes_at().is_some_and(|at| at > now.instant);
        let is_behind = self.is_manifest_behind();
        let is_settled = self.publication.since.is_none() && !is_behind;
        if is_settled || (gathers && !(self.publication.own_only && is_behind)) {
            return None;
        }
        self.publication.built_at = Some(self.changes);
        let groups = self.groups.entries();
        let room = self.settings.manifest_size.saturating_sub(encoded_len(&groups) + ENVELOPE);
        let policies = match self.entries(room) {
            Some(policies) => {
                self.publication.left_out.clear();
                policies
            }
            None => self.entries_of_some(room, now),
        };
        let pins: Vec<&Pins> = self.policies.values().map(|policy| &policy.pins).collect();
        let fingerprint = Fingerprint::of(&policies, &groups, &pins);
        let publication = &mut self.publication;
        if publication.fingerprint == Some(fingerprint) && !publication.forced {
            publication.since = None;
            return None;
        }
        publication.own_only =
            !publication.forced && publication.fingerprint.is_some_and(|last| last.urgent == fingerprint.urgent);
        publication.since.get_or_insert(now.instant);
        if publication.wakes_at().is_some_and(|at| at > now.instant) {
            return None;
        }
        let first = policies
            .iter()
            .map(|entry| (entry.id.clone(), entry.candidates.first().map(|first| (first.generation, first.digest))));
        publication.in_flight = Some(InFlight { fingerprint, first: first.collect() });
        publication.since = None;
        publication.forced = false;
        for (id, policy) in &mut self.policies {
            let is_made = |(part, digest): &(&Body, Digest)| {
                let artifact = self.artifacts.get(digest).and_then(|compilation| compilation.attempts.result());
                artifact.is_some() && self.admissions.are_done(part, digest)
            };
            if policy.target().is_some()
                && policy.target_parts().iter().all(is_made)
                && self.publication.left_out(id).is_none()
            {
                policy.remember();
            }
        }
        Some(Manifest { number: 0, policies, groups })
    }

    /// Takes in the result of publishing a manifest.
    pub(super) fn published(&mut self, result: Result<u64, AttemptError>, now: Now, random: f64) {
        let Some(in_flight) = self.publication.in_flight.take() else { return };
        match result {
            Ok(number) => {
                self.publication.number = number;
                self.publication.fingerprint = Some(in_flight.fingerprint);
                self.publication.attempts.succeed(());
                for (id, first) in in_flight.first {
                    if let Some(policy) = self.policies.get_mut(&id) {
                        policy.published = first;
                    }
                }
                for compilation in self.artifacts.values_mut().filter(|compilation| !compilation.recompile) {
                    compilation.published_in.get_or_insert(number);
                }
            }
            Err(error) => {
                self.publication.attempts.fail(error, &self.settings.retry, random, now);
                self.publication.forced = true;
            }
        }
    }

    /// All entries in full; `None` if they take more than `room` bytes.
    fn entries(&self, room: u64) -> Option<Vec<PolicyEntry>> {
        let mut size = 0;
        let mut entries = Vec::with_capacity(self.policies.len());
        for (id, policy) in &self.policies {
            let failures = self.failure(policy).into_iter().collect();
            let entry = policy.entry(id, self.candidates(policy), failures, self.admissions.trusted(policy));
            size += size_of(&entry);
            if size > room {
                return None;
            }
            entries.push(entry);
        }
        Some(entries)
    }

    /// An entry for each policy, and as many of their generations as fit into `room` bytes.
    fn entries_of_some(&mut self, room: u64, now: Now) -> Vec<PolicyEntry> {
        let demands: Vec<Demand<'_>> = self.policies.iter().map(|(id, policy)| self.demand(id, policy)).collect();
        let grants = budget::share(room, &demands);
        let mut left_out = std::mem::take(&mut self.publication.left_out);
        let mut entries = Vec::with_capacity(grants.len());
        for ((id, policy), grant) in self.policies.iter().zip(grants) {
            let is_ready = self.newest(policy).is_some();
            let is_left_out = is_ready && matches!(grant.choice, Choice::Older | Choice::Nothing);
            let failure = is_left_out.then(|| {
                let failure = grant.failure(policy.generation, &policy.tenant, now.wall);
                // An earlier message stays the same: its figures change with every edit of any policy, and each change would make a new manifest.
                let is_it = |last: &Failure| (last.generation, last.reason) == (failure.generation, failure.reason);
                left_out.remove(id).filter(is_it).unwrap_or(failure)
            });
            entries.push(self.entry_of(id, policy, grant.choice, failure.clone()));
            self.publication.left_out.extend(failure.map(|failure| (id.clone(), failure)));
        }
        entries
    }

    fn demand<'a>(&self, id: &PolicyId, policy: &'a Policy) -> Demand<'a> {
        let newest = self.newest(policy);
        let older = self.older(policy);
        let mut choices = Vec::new();
        if newest.is_some() {
            choices.push(Choice::Both);
            // A generation that was refused for good cannot serve alone. One that is tried again may.
            let is_final = policy.refused.get(&policy.generation) == Some(&Class::Final);
            choices.extend((!is_final).then_some(Choice::Newest));
        }
        choices.extend(older.as_ref().map(|_| Choice::Older));
        let serving = if newest.is_some() && policy.need() == Need::Served {
            Some(Choice::Newest)
        } else {
            older.map(|_| Choice::Older)
        };
        // The longest text and time that the failure may have.
        let text = "x".repeat(budget::LONGEST_TEXT);
        let failure = Failure::new(i64::MAX, Reason::SettingsTooLarge, text, Timestamp::MAX);
        let size = |choice| size_of(&self.entry_of(id, policy, choice, Some(failure.clone())));
        Demand {
            tenant: &policy.tenant,
            created: policy.created,
            least: size(Choice::Nothing),
            serving: serving.filter(|serving| choices.contains(serving)),
            choices: choices.into_iter().map(|choice| (choice, size(choice))).collect(),
        }
    }

    fn entry_of(&self, id: &PolicyId, policy: &Policy, choice: Choice, left_out: Option<Failure>) -> PolicyEntry {
        let candidates = match choice {
            Choice::Both => self.candidates(policy),
            Choice::Newest => self.newest(policy).into_iter().collect(),
            Choice::Older => self.older(policy).into_iter().collect(),
            Choice::Nothing => Vec::new(),
        };
        let failures = self.failure(policy).or(left_out).into_iter().collect();
        let entry = policy.entry(id, candidates, failures, self.admissions.trusted(policy));
        if choice == Choice::Both { entry } else { policy.without_others(entry) }
    }

    /// What may serve, best first.
    fn candidates(&self, policy: &Policy) -> Vec<Candidate> {
        let older = if self.needs_fallback(policy) { self.fallbacks(policy) } else { Vec::new() };
        self.newest(policy).into_iter().chain(older).collect()
    }

    /// The best candidate to serve while the newest does not. If no evaluator has loaded it yet, the next one that was loaded comes second.
    fn fallbacks(&self, policy: &Policy) -> Vec<Candidate> {
        let mut ready = policy.fallbacks().filter_map(|other| {
            let candidate = self.candidate(&other.body, other.number, &other.pins)?;
            Some((policy.is_unproven(other), candidate))
        });
        let best = ready.next();
        let is_unproven = best.as_ref().is_some_and(|(is_unproven, _)| *is_unproven);
        let next = if is_unproven { ready.find(|(is_unproven, _)| !is_unproven) } else { None };
        best.into_iter().chain(next).map(|(_, candidate)| candidate).collect()
    }

    fn newest(&self, policy: &Policy) -> Option<Candidate> {
        let (body, _) = policy.target()?;
        self.candidate(body, policy.generation, &policy.pins)
    }

    fn older(&self, policy: &Policy) -> Option<Candidate> {
        let older = self.fallback(policy)?;
        self.candidate(&older.body, older.number, &older.pins)
    }

    /// The best earlier generation that can be served now.
    pub(super) fn fallback<'a>(&self, policy: &'a Policy) -> Option<&'a Generation> {
        policy.fallbacks().find(|other| self.is_ready(&other.parts()))
    }

    fn candidate(&self, body: &Body, generation: i64, pins: &Pins) -> Option<Candidate> {
        body.candidate(generation, pins, |part, digest| self.candidate_artifact(part, digest))
    }

    /// Why the newest generation cannot be served; `None` if it can, or is on its way.
    pub(super) fn failure(&self, policy: &Policy) -> Option<Failure> {
        if let Some(problem) = policy.problem() {
            return Some(problem);
        }
        let body = policy.body.as_ref().ok()?;
        if policy.target().is_some() && self.is_ready(&policy.target_parts()) {
            return None;
        }
        let failed = body.parts().into_iter().find_map(|(name, part)| {
            let failure = self.attempted(policy, part, policy.pins.get(name))?;
            Some(if name.is_empty() { failure } else { failure.of_member(name) })
        });
        failed.or_else(|| policy.failed_before.clone())
    }

    /// How this loader's newest attempt at a part of the newest generation failed.
    fn attempted(&self, policy: &Policy, part: &Body, pin: Option<Digest>) -> Option<Failure> {
        let of_module = |reference: &Reference| {
            self.modules.get(reference).and_then(|module| module.failure(policy.generation, Some(policy.begun)))
        };
        let Some(digest) = pin else { return of_module(part.reference.as_ref()?) };
        if !self.is_admitted(part, &digest) {
            return self.admission(part, &digest)?.failure(policy.generation, Some(policy.begun));
        }
        let compilation = self.artifacts.get(&digest)?;
        let fetch = part.reference.as_ref().filter(|_| compilation.no_module).and_then(of_module);
        fetch.or_else(|| compilation.attempts.failure(policy.generation, Some(policy.begun)))
    }
}
