//! Decides what should be done now, from the desired policies, what is known, and what happened.
//!
//! Nothing here opens a file or a socket, reads a clock or draws a random number. [`Plan::take`] takes an [`Event`], and [`Plan::turn`]
//! returns the jobs that should run at this moment. The caller starts those that do not run yet, stops all others, and reports the
//! [`Outcome`] of each.

mod admission;
mod attempts;
mod budget;
mod compilation;
mod event;
mod generation;
mod groups;
mod job;
mod learn;
mod manifest;
mod pins;
mod policy;
mod running;
mod saved;
mod state;
#[cfg(test)]
mod tests;
mod trials;
mod want;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use portcullis_broker::EarlierModule;
use portcullis_contract::{
    Candidate, Digest, EvaluatorState, ExecutionMode, Manifest, NamedModule, PolicyId, Reason, Stage,
};

use self::admission::Admissions;
pub(crate) use self::admission::is_against_rules;
pub(crate) use self::attempts::AttemptError;
use self::attempts::Attempts;
use self::compilation::Compilation;
pub(crate) use self::event::Event;
use self::generation::Generation;
use self::groups::Groups;
pub(crate) use self::job::{Admission, Job, Outcome, Prepared};
use self::pins::Resolved;
use self::policy::Policy;
use self::want::Wanted;
use crate::claims::Claims;
use crate::content::Body;
use crate::input::{Snapshot, Stamp};
use crate::mismatch::Provided;
use crate::pins::Pins;
use crate::retry::Retry;
use crate::source::Reference;
use crate::volume::{ArtifactRecord, Keep, Owners};
use portcullis_process::Now;

/// How many deleted policies are remembered, so that generations do not begin at 1 again if a policy comes back.
const MAX_DELETED: usize = 10_000;

/// The plan's waits and limits.
#[derive(Debug, Clone, Copy)]
pub struct PlanSettings {
    /// The waits between attempts.
    pub retry: Retry,
    /// How long a match group answers for policies that left it.
    pub tombstone: Duration,
    /// How many artifacts stay that no policy names.
    pub keep_newest: usize,
    /// Largest manifest, in bytes: no more than an evaluator reads.
    pub manifest_size: u64,
}

/// What should be done now.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// The jobs that should be running, and the tenants that need them.
    pub jobs: BTreeMap<Job, Claims>,
    /// What should be published now; its number is not set.
    pub publish: Option<Manifest>,
    /// When to call [`Plan::turn`] again at the latest; `None` if nothing waits for a time.
    pub wake: Option<Instant>,
}

/// Everything the loader knows.
pub(crate) struct Plan {
    settings: PlanSettings,
    /// What the installation provides to policies.
    provided: Arc<Provided>,
    policies: BTreeMap<PolicyId, Policy>,
    modules: HashMap<Reference, Attempts<Resolved>>,
    admissions: Admissions,
    /// Addresses whose fetch had begun, or was due, when a watched file changed: earlier rules may have admitted it.
    fetched_before: HashSet<Reference>,
    artifacts: HashMap<Digest, Compilation>,
    groups: Groups,
    stamps: BTreeMap<std::path::PathBuf, Option<Stamp>>,
    deleted: HashMap<PolicyId, (i64, Digest)>,
    problems: BTreeMap<(String, String), Timestamp>,
    evaluator: Option<Arc<EvaluatorState>>,
    /// Whether the first snapshot has arrived.
    complete: bool,
    /// How often something has happened that may change the next manifest and the state.
    changes: u64,
    publication: manifest::Publication,
}

impl Plan {
    /// A plan that continues from an earlier manifest. `artifact_of` gives a module's artifact, if it is still on the volume.
    pub(crate) fn restore(
        settings: PlanSettings,
        provided: Arc<Provided>,
        manifest: Option<&Manifest>,
        artifact_of: impl Fn(&NamedModule<'_>) -> Option<ArtifactRecord>,
        now: Now,
    ) -> Self {
        let mut plan = Self {
            settings,
            provided,
            policies: BTreeMap::new(),
            modules: HashMap::new(),
            admissions: Admissions::default(),
            fetched_before: HashSet::new(),
            artifacts: HashMap::new(),
            groups: Groups::default(),
            stamps: BTreeMap::new(),
            deleted: HashMap::new(),
            problems: BTreeMap::new(),
            evaluator: None,
            complete: false,
            changes: 0,
            publication: manifest::Publication::default(),
        };
        let Some(manifest) = manifest else { return plan };
        plan.groups = Groups::restore(&manifest.groups);
        // The checks of an earlier loader have ended with it.
        for entry in manifest.policies.iter().filter(|entry| !entry.id.is_check()) {
            for named in entry.candidates.iter().flat_map(Candidate::modules) {
                let Some(record) = artifact_of(&named) else { continue };
                let mut compilation =
                    Compilation { attempts: Attempts::done(record), published_in: Some(0), ..Compilation::default() };
                // It counts at once; meanwhile its bytes are checked.
                compilation.attempts.repeat();
                plan.artifacts.insert(named.digest, compilation);
            }
            let policy = Policy::restore(entry, now);
            plan.admissions.restore(&policy, &saved::trusted_in(entry));
            plan.policies.insert(entry.id.clone(), policy);
        }
        let pins: Vec<&Pins> = plan.policies.values().map(|policy| &policy.pins).collect();
        plan.publication = manifest::Publication::restore(manifest, &pins);
        plan
    }

    /// Takes in an event. `random`, in [0, 1), is the jitter of the wait after a failure.
    pub(crate) fn take(&mut self, event: Event, now: Now, random: f64) {
        self.changes += 1;
        match event {
            Event::Desired(snapshot) => self.desire(&snapshot, now),
            Event::Tried(trials) => self.try_out(&trials, now),
            Event::Ended(Outcome::Fetched(reference, result)) => self.fetched(&reference, result, now, random),
            Event::Ended(Outcome::Brought(reference, brought)) => self.brought(&reference, brought, now, random),
            Event::Ended(Outcome::Admitted(reference, digest, result)) => {
                self.admissions.end(&reference, &digest, result, &self.settings.retry, now, random);
            }
            Event::Ended(Outcome::Prepared(digest, result)) => self.prepared(digest, result, now, random),
            Event::Evaluator(state) => self.learn(state, now),
            Event::OutsideChanged => self.outside_changed(),
            Event::Published(result) => self.published(result, now, random),
            Event::Removed(files) => self.artifacts.values_mut().for_each(|compilation| compilation.removed(&files)),
            Event::ManifestLost => self.publication.force(),
        }
    }

    /// Takes in a snapshot.
    fn desire(&mut self, snapshot: &Snapshot, now: Now) {
        self.complete = true;
        let mut seen = HashSet::new();
        for desired in &snapshot.policies {
            seen.insert(desired.id.clone());
            let artifacts = &self.artifacts;
            let has_artifact = |digest: &Digest| artifacts.get(digest).is_some_and(|m| m.attempts.result().is_some());
            let is_same = |policy: &&mut Policy| desired.object.as_ref().is_none_or(|object| object.uid == policy.uid);
            let is_new = match self.policies.get_mut(&desired.id).filter(is_same) {
                Some(policy) => policy.adopt(desired.clone(), has_artifact, now),
                None => {
                    // A module file may have changed since the policy was deleted.
                    let is_file = |part: &Body| matches!(part.reference, Some(Reference::File(_)));
                    let is_file = desired.body.iter().flat_map(Body::parts).any(|(_, part)| is_file(part));
                    let generation = match self.deleted.remove(&desired.id) {
                        Some((generation, hash)) if hash == desired.hash && !is_file => generation,
                        Some((generation, _)) => generation + 1,
                        None => 1,
                    };
                    self.policies.insert(desired.id.clone(), Policy::new(desired.clone(), generation, now));
                    true
                }
            };
            if is_new {
                self.begin(&desired.id, now);
            }
        }
        let is_gone = |id: &&PolicyId| !seen.contains(*id) && !id.is_check();
        let gone: Vec<PolicyId> = self.policies.keys().filter(is_gone).cloned().collect();
        for id in gone {
            let Some(policy) = self.policies.get_mut(&id) else { continue };
            if let Some(unreadable) = snapshot.unreadable.get(&policy.file) {
                policy.lose(unreadable, now);
            } else {
                if !policy.is_object && self.deleted.len() < MAX_DELETED {
                    self.deleted.insert(id.clone(), (policy.generation, policy.hash));
                }
                self.policies.remove(&id);
            }
        }
        for (path, stamp) in &snapshot.stamps {
            if self.stamps.get(path) != Some(stamp)
                && let Some(module) = self.modules.get_mut(&Reference::File(path.clone()))
            {
                module.repeat();
            }
        }
        self.stamps.clone_from(&snapshot.stamps);
        self.note_problems(snapshot, now);
    }

    fn note_problems(&mut self, snapshot: &Snapshot, now: Now) {
        let unreadable =
            snapshot.unreadable.iter().map(|(file, unreadable)| (file.clone(), unreadable.message.clone()));
        let problems: Vec<_> = snapshot.problems.iter().cloned().chain(unreadable).collect();
        let before = std::mem::take(&mut self.problems);
        for problem in problems {
            let since = before.get(&problem).copied().unwrap_or(now.wall);
            self.problems.insert(problem, since);
        }
    }

    /// [`Job::Fetch`] has ended.
    fn fetched(&mut self, reference: &Reference, result: Result<Digest, AttemptError>, now: Now, random: f64) {
        let Some(module) = self.modules.get_mut(reference) else { return };
        let is_file = matches!(reference, Reference::File(_));
        // Where a tag leads says nothing about the modules that policies are pinned to: those are fetched by their digests.
        let is_image = reference.image().is_some();
        // After a mistake of this program nothing is tried again at once, nor is a source that asked for time.
        let must_wait =
            |error: &AttemptError| matches!(error.reason, Reason::InternalError | Reason::RegistryThrottled);
        let may_go_on = !result.as_ref().is_err_and(must_wait);
        if let Ok(digest) = result.as_ref().copied() {
            for policy in self.policies.values_mut() {
                if let Some(served) = &mut policy.last_served {
                    served.resolve(reference, digest);
                }
                let others = policy.fallbacks().flat_map(Generation::parts);
                for (_, pin) in others.filter(|(part, _)| !is_image && part.reference.as_ref() == Some(reference)) {
                    if let Some(compilation) = self.artifacts.get_mut(&pin) {
                        compilation.got(pin, digest, &self.settings.retry, now, random);
                    }
                }
            }
        }
        let users = self.policies.values_mut().map(|policy| {
            let parts = policy.parts_at(reference);
            (policy, parts)
        });
        let users = users.filter(|(_, parts)| !parts.is_empty());
        let was_before = self.fetched_before.remove(reference);
        match result {
            Ok(digest) => {
                self.publication.note_success(module, Resolved::now(digest, now));
                // The fetch has checked that the module is allowed, but rules that changed meanwhile have not.
                if !was_before {
                    self.admissions.grant(reference, digest);
                }
                for (policy, parts) in users {
                    let mut rebuilt = Vec::new();
                    for (part, pin) in parts {
                        match pin {
                            None => policy.pins.set(&part, Some(digest)),
                            Some(pin) if pin != digest && is_file => rebuilt.push(part),
                            Some(_) if is_image => {}
                            Some(pin) => {
                                let compilation = self.artifacts.entry(pin).or_default();
                                compilation.got(pin, digest, &self.settings.retry, now, random);
                            }
                        }
                    }
                    if !rebuilt.is_empty() {
                        policy.rebuild(&rebuilt, Some(digest), now);
                    }
                }
                if let Some(compilation) = self.artifacts.get_mut(&digest) {
                    compilation.no_module = false;
                    compilation.attempts.module_came();
                }
            }
            // Builds remove a file before they write it again; until then what was read before counts.
            Err(error) if is_file && error.reason == Reason::NotFound && module.result().is_some() => module.leave(),
            Err(error) => {
                // Where the volume has lost a module and cannot take it again, the file is not at fault.
                let artifacts = &self.artifacts;
                let is_lost = |pin: &Digest| artifacts.get(pin).is_some_and(|compilation| compilation.no_module);
                let is_volume = error.reason.stage() == Stage::Volume;
                module.fail(error, &self.settings.retry, random, now);
                // What the watched file said before may be why.
                if was_before {
                    module.retry_outside();
                }
                for (policy, parts) in users.filter(|_| is_file) {
                    let is_gone = |pin: Option<Digest>| pin.is_some_and(|pin| !(is_volume && is_lost(&pin)));
                    let gone: Vec<_> =
                        parts.into_iter().filter(|(_, pin)| is_gone(*pin)).map(|(part, _)| part).collect();
                    if !gone.is_empty() {
                        policy.rebuild(&gone, None, now);
                    }
                }
            }
        }
        if is_image && may_go_on && !self.pins_missing_at(reference).is_empty() {
            // They were found missing while this fetch ran.
            if let Some(module) = self.modules.get_mut(reference) {
                module.repeat();
            }
        }
    }

    /// [`Job::Prepare`] has ended.
    fn prepared(&mut self, digest: Digest, result: Result<Prepared, AttemptError>, now: Now, random: f64) {
        let Some(compilation) = self.artifacts.get_mut(&digest) else { return };
        match result {
            Ok(Prepared::Ready(record)) => {
                compilation.no_module = false;
                if std::mem::take(&mut compilation.recompile) {
                    compilation.published_in = None;
                    self.publication.force();
                }
                self.publication.note_success(&mut compilation.attempts, record);
            }
            Ok(Prepared::NoModule) => {
                let references = self.policies.values().flat_map(|policy| {
                    let others = policy.fallbacks().flat_map(Generation::parts);
                    let parts = policy.target_parts().into_iter().chain(others).filter(|(_, pin)| *pin == digest);
                    parts.filter_map(|(part, _)| part.reference.clone()).collect::<Vec<_>>()
                });
                let references: BTreeSet<Reference> = references.collect();
                if references.is_empty() {
                    let message =
                        "its module is no longer on the volume, and where it came from is not known".to_owned();
                    let error = AttemptError { reason: Reason::ArtifactMissing, message, retry_after: None };
                    compilation.attempts.fail(error, &self.settings.retry, random, now);
                    return;
                }
                if compilation.attempts.result().is_some() {
                    // The earlier artifact no longer counts: without the module it cannot be compiled again.
                    compilation.attempts = Attempts::default();
                }
                compilation.no_module = true;
                for reference in references {
                    self.modules.entry(reference).or_default().repeat();
                }
            }
            Err(error) => compilation.attempts.fail(error, &self.settings.retry, random, now),
        }
    }

    /// A watched file changed: what failed for a reason outside the policy is tried at once, and what was admitted is checked again.
    fn outside_changed(&mut self) {
        let due = self.modules.iter().filter(|(_, module)| module.is_due());
        self.fetched_before.extend(due.map(|(reference, _)| reference.clone()));
        for module in self.modules.values_mut() {
            module.retry_outside();
        }
        self.admissions.outside_changed();
        // A pinned module that could not be fetched is a failure of its compilation.
        for compilation in self.artifacts.values_mut() {
            compilation.attempts.retry_outside();
        }
    }

    /// What should be done now.
    pub(crate) fn turn(&mut self, now: Now) -> Turn {
        if self.artifacts.values().filter_map(Compilation::remake_wakes_at).any(|at| at <= now.instant) {
            // The evaluator's state is taken once more, as the pause is over. It makes nothing fail, so there is no wait to jitter.
            if let Some(state) = self.evaluator.clone() {
                self.take(Event::Evaluator(state), now, 0.0);
            }
        }
        let Wanted { references, admissions, digests } = self.wanted();
        let mut turn = Turn { jobs: self.admissions.turn(admissions, now), ..Turn::default() };
        self.modules.retain(|reference, _| references.contains_key(reference));
        self.fetched_before.retain(|reference| references.contains_key(reference));
        self.artifacts.retain(|digest, _| digests.contains_key(digest));
        for (reference, claims) in references {
            let module = self.modules.entry(reference.clone()).or_default();
            if claims.is_empty() {
                module.forget_failure();
                continue;
            }
            module.wake(now);
            if module.is_due() {
                if matches!(reference, Reference::File(_)) {
                    // A file may change while it is read, and its stamp shows that.
                    module.begin();
                }
                turn.jobs.insert(Job::Fetch(reference), claims);
            }
        }
        for (digest, claims) in digests {
            let Some(compilation) = self.artifacts.get_mut(&digest) else { continue };
            compilation.attempts.wake(now);
            if !claims.is_empty() && compilation.attempts.is_due() && !compilation.no_module {
                turn.jobs.insert(Job::Prepare { digest, recompile: compilation.recompile }, claims);
            }
        }
        if self.complete {
            if self.groups.wakes_at().is_some_and(|at| at <= now.instant) {
                // Groups change when a time has come, without an event.
                self.changes += 1;
            }
            if self.is_manifest_behind() {
                let members = self.policies.iter().map(|(id, policy)| (id.clone(), policy.membership())).collect();
                self.groups.turn(&members, self.settings.tombstone, now.instant);
            }
            turn.publish = self.publish(now);
        }
        turn.wake = [
            self.modules.values().filter_map(Attempts::wakes_at).min(),
            self.admissions.wakes_at(),
            self.artifacts.values().filter_map(|compilation| compilation.attempts.wakes_at()).min(),
            self.artifacts.values().filter_map(Compilation::remake_wakes_at).min(),
            self.groups.wakes_at(),
            self.publication.wakes_at(),
        ]
        .into_iter()
        .flatten()
        .min();
        turn
    }

    fn artifact(&self, digest: &Digest) -> Option<&ArtifactRecord> {
        self.artifacts.get(digest)?.attempts.result()
    }

    /// How often something has happened that may have changed the state. Progress of jobs does not count.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// The modules of generations that have been published, with what they were granted: an evaluator may still serve them. `mode` gives the
    /// mode of a module that is still on the volume.
    pub(crate) fn earlier_modules(&self, mode: impl Fn(&Digest) -> Option<ExecutionMode>) -> Vec<EarlierModule> {
        let known = self.policies.iter().flat_map(|(id, policy)| policy.remembered().map(move |known| (id, known)));
        known.flat_map(|(id, known)| known.granted(id, &mode)).collect()
    }

    /// What pruning must leave on the volume.
    pub(crate) fn keep(&self) -> Keep {
        let digests = self.artifacts.keys().copied().collect();
        let records = self.artifacts.values().filter_map(|compilation| compilation.attempts.result());
        let files = records.map(|record| record.artifact.file.clone()).collect();
        let mut owners = Owners::new();
        let mut needed = HashSet::new();
        for policy in self.policies.values() {
            let known = policy.last_good.iter().chain(policy.served()).chain(self.fallback(policy));
            let parts = policy.target_parts().into_iter().chain(known.flat_map(Generation::parts));
            needed.extend(parts.map(|(_, digest)| digest));
            for digest in policy.modules() {
                owners.entry(digest).or_default().insert(policy.tenant.clone());
            }
        }
        let spare = self.artifacts.iter().filter(|(digest, _)| !needed.contains(*digest));
        let file = |compilation: &Compilation| compilation.attempts.result().map(|record| record.artifact.file.clone());
        let spare = spare.map(|(digest, compilation)| (*digest, file(compilation))).collect();
        Keep { digests, files, spare, owners, newest: self.settings.keep_newest }
    }
}
