//! One policy: its newest generation, and those that served before.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use portcullis_contract::{
    Candidate, Class, Digest, Failure, GroupId, LastGood, MemberMatch, PolicyEntry, PolicyId, Reason, Stage, Tenant,
    WebhookKind,
};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::generation::{Generation, LastServed};
use super::groups::Membership;
use super::saved::{SavedPolicy, Trusted, trusted_in};
use crate::claims::Need;
use crate::content::{Body, DesiredPolicy, Head, Object, uid};
use crate::input::Unreadable;
use crate::pins::Pins;
use crate::problem::Problem;
use crate::source::Reference;
use portcullis_process::Now;

/// How many published generations are remembered until an evaluator reports which of them it has loaded.
const RECENT: usize = 4;

/// A policy.
#[derive(Debug, Clone)]
pub(super) struct Policy {
    pub(super) uid: String,
    /// The tenant that its jobs and its room on the volume count for.
    pub(super) tenant: Tenant,
    pub(super) created: Timestamp,
    pub(super) file: String,
    /// The newest generation.
    pub(super) generation: i64,
    /// When it began.
    pub(super) begun: Now,
    pub(super) hash: Digest,
    pub(super) head: Head,
    /// What the newest generation serves, or why it cannot.
    pub(super) body: Result<Body, Problem>,
    /// Where the modules of the newest readable generation are, by the names of its parts.
    pub(super) references: BTreeMap<String, Reference>,
    /// Its modules, as far as they are known. Within a generation they never change.
    pub(super) pins: Pins,
    /// Generations that were published, newest last.
    pub(super) recent: Vec<Generation>,
    /// The last one that an evaluator loaded.
    pub(super) last_good: Option<Generation>,
    /// In a cluster: the newest older generation that served on every replica.
    pub(super) last_served: Option<LastServed>,
    /// In a cluster: the match groups of older generations that may still be called.
    pub(super) older_groups: BTreeSet<(GroupId, WebhookKind)>,
    /// In a cluster: which requests of shared webhooks it is asked about.
    pub(super) matches: BTreeMap<GroupId, Vec<MemberMatch>>,
    /// Whether it is an object of an API server, whose generation numbers count; in a folder the loader counts them.
    pub(super) is_object: bool,
    /// Whether any generation was ever enforced on all replicas. If so, the policy answers as its `failurePolicy` says while it is unserved; if
    /// not, it is passed over ([`PolicyEntry::enforced`]).
    ///
    /// In a cluster only the marks on its revisions decide, so that all pods agree, even a fresh one. In a folder this is the only replica: it
    /// becomes true once its evaluator has loaded a generation, and the manifest remembers it.
    pub(super) enforced: bool,
    /// In a cluster: whether the newest generation served on all replicas.
    newest_served: bool,
    /// Generations that an evaluator refused so that an older one must serve, and whether trying them again may help.
    pub(super) refused: BTreeMap<i64, Class>,
    /// Generation and module of the first candidate of the newest manifest on the volume.
    pub(super) published: Option<(i64, Digest)>,
    /// Why an earlier loader could not publish the newest generation. It counts until this loader has tried, so that a failure does not seem to
    /// be over because of a restart.
    pub(super) failed_before: Option<Failure>,
}

impl Policy {
    /// A policy that was not there before.
    pub(super) fn new(desired: DesiredPolicy, generation: i64, now: Now) -> Self {
        let mut policy = Self {
            uid: uid(&desired.id),
            tenant: Tenant::of(&desired.id),
            created: desired.created.unwrap_or(now.wall),
            file: desired.file,
            generation,
            begun: now,
            hash: desired.hash,
            head: desired.head.unwrap_or_else(Head::strict),
            references: references_of(&desired.body).unwrap_or_default(),
            body: desired.body,
            pins: Pins::default(),
            recent: Vec::new(),
            last_good: None,
            last_served: None,
            older_groups: BTreeSet::new(),
            matches: BTreeMap::new(),
            is_object: false,
            // A policy of a `policies.yml` is in no match group and is called by its id, so it is never passed over.
            enforced: desired.id.is_bare(),
            newest_served: false,
            refused: BTreeMap::new(),
            published: None,
            failed_before: None,
        };
        policy.follow(desired.object);
        policy
    }

    /// Updates what comes from the API server, beside the content.
    fn follow(&mut self, object: Option<Object>) {
        self.is_object = object.is_some();
        let Some(object) = object else { return };
        self.uid = object.uid;
        self.generation = object.generation;
        // A recorded digest counts for all replicas, whatever the address gave this one.
        self.pins.merge(object.pins);
        self.older_groups = object.older_groups;
        self.matches = object.matches;
        self.enforced = object.enforced;
        self.newest_served = object.newest_served;
        self.last_served = object.last_served.map(|served| {
            let same = self.last_served.as_ref().filter(|before| before.number == served.generation);
            let mut pins = same.map(|before| before.pins.clone()).unwrap_or_default();
            pins.merge(served.pins);
            LastServed::new(served.generation, served.body, pins)
        });
        if let Some(served) = self.last_served.as_ref().and_then(LastServed::ready) {
            complete(&mut self.recent, served);
        }
    }

    /// The match groups that it is a member of.
    pub(super) fn membership(&self) -> Membership {
        let groups = self.head.group.iter().chain(&self.older_groups).cloned().collect();
        Membership { groups, matches: self.matches.clone(), lingers: !self.is_object }
    }

    /// A policy of an earlier manifest. If what was saved of it cannot be read, the next content counts as a new generation.
    pub(super) fn restore(entry: &PolicyEntry, now: Now) -> Self {
        let saved: Option<SavedPolicy> =
            entry.source.as_ref().and_then(|source| serde_json::from_str(source.get()).ok());
        let unknown = Problem::new(Reason::SpecInvalid, "nothing is known of it");
        let head = Head { mode: entry.mode, failure_policy: entry.failure_policy, suspend: entry.suspend, group: None };
        let generation = |candidate: &Candidate| Generation {
            number: candidate.generation,
            digest: candidate.digest,
            pins: Pins::new(Some(candidate.digest), candidate.members()),
            body: Body::of_candidate(candidate),
        };
        let candidate = |number: i64, digest: Digest| candidate_of(&entry.candidates, number, digest);
        let remembered = |known: &LastGood| {
            let body: Body = serde_json::from_str(known.source.get()).ok()?;
            let body = body.with_settings_of(candidate(known.generation, known.digest))?;
            let pins = Pins::new(Some(known.digest), known.members.clone());
            Some(Generation { number: known.generation, digest: known.digest, pins, body })
        };
        let mut policy = Self {
            uid: entry.uid.clone(),
            tenant: Tenant::of(&entry.id),
            created: now.wall,
            file: String::new(),
            generation: entry.generation,
            begun: now,
            hash: Digest::of(b""),
            head,
            body: Err(unknown.clone()),
            references: BTreeMap::new(),
            pins: Pins::default(),
            recent: entry.candidates.iter().rev().map(generation).collect(),
            last_good: entry.last_good.as_ref().and_then(remembered),
            last_served: None,
            older_groups: BTreeSet::new(),
            matches: BTreeMap::new(),
            is_object: false,
            enforced: entry.enforced,
            newest_served: false,
            refused: BTreeMap::new(),
            published: entry.candidates.first().map(|candidate| (candidate.generation, candidate.digest)),
            // Failures of the spec are left out: this loader finds out at once whether it can read the spec.
            failed_before: entry
                .failures
                .iter()
                .find(|failure| failure.generation == entry.generation && failure.stage() != Stage::Spec)
                .cloned(),
        };
        if let Some(saved) = saved {
            if let Some(unproven) = saved.unproven.as_ref().and_then(remembered) {
                policy.recent.retain(|other| !other.is(&unproven));
                policy.recent.push(unproven);
                policy.recent.sort_by_key(|known| known.number);
            }
            policy.created = saved.created;
            policy.begun.wall = saved.begun;
            policy.file = saved.file;
            policy.hash = saved.hash;
            policy.head = saved.head;
            policy.references = saved.references;
            policy.references.extend(saved.reference.map(|reference| (String::new(), reference)));
            policy.pins = Pins::new(saved.digest, saved.members);
            let digest = saved.body.as_ref().and_then(|body| body.digest(&policy.pins));
            let candidate = digest.and_then(|digest| candidate(entry.generation, digest));
            let body = saved.body.and_then(|body| body.with_settings_of(candidate));
            policy.body = body.ok_or_else(|| saved.problem.unwrap_or(unknown));
        }
        for known in policy.newest().iter().chain(&policy.last_good) {
            complete(&mut policy.recent, known);
        }
        policy
    }

    /// Updates the policy to what is desired. True if that makes a new generation. `has_artifact` tells which modules are ready to be served.
    pub(super) fn adopt(&mut self, desired: DesiredPolicy, has_artifact: impl Fn(&Digest) -> bool, now: Now) -> bool {
        self.file = desired.file;
        if let Some(created) = desired.created {
            self.created = created;
        }
        let references = references_of(&desired.body).unwrap_or_else(|| self.references.clone());
        let before = std::mem::replace(&mut self.references, references);
        let same_number = desired.object.as_ref().is_none_or(|object| object.generation == self.generation);
        if desired.hash == self.hash && same_number {
            // The content is the same, but the folder may have moved, and addresses of files with it.
            self.body = desired.body;
            self.follow(desired.object);
            return false;
        }
        // An edit of settings fetches nothing: the module stays what it was, unless it never worked. A broken
        // spec does not change the module either.
        self.begin(desired.hash, now);
        if desired.body.is_ok() {
            let references = &self.references;
            self.pins.retain(|part, pin| references.get(part) == before.get(part) && has_artifact(pin));
        }
        if let Some(head) = desired.head {
            // A spec that cannot be decoded has no rules. Unless labels name the match group, it stays the same.
            let is_told = desired.body.is_ok();
            let group = if is_told { head.group } else { head.group.or(self.head.group.take()) };
            self.head = Head { group, ..head };
        }
        self.body = desired.body;
        self.follow(desired.object);
        true
    }

    /// The file that holds the policy cannot be read. True when that makes a new generation.
    pub(super) fn lose(&mut self, file: &Unreadable, now: Now) -> bool {
        if self.hash == file.hash {
            return false;
        }
        self.begin(file.hash, now);
        let text = format!("{}: {}", self.file, file.message);
        self.body = Err(Problem::new(Reason::SpecInvalid, text));
        true
    }

    /// Begins a new generation because the module of these parts has changed (a file that was built again), or can no longer be read (`None`).
    pub(super) fn rebuild(&mut self, parts: &[String], digest: Option<Digest>, now: Now) {
        self.begin(self.hash, now);
        parts.iter().for_each(|part| self.pins.set(part, digest));
    }

    fn begin(&mut self, hash: Digest, now: Now) {
        self.generation += 1;
        self.begun = now;
        self.hash = hash;
        self.failed_before = None;
    }

    /// The newest generation's content and digest; `None` until its spec can be read and all its modules are known.
    pub(super) fn target(&self) -> Option<(&Body, Digest)> {
        let body = self.body.as_ref().ok()?;
        Some((body, body.digest(&self.pins)?))
    }

    /// The newest generation; `None` as with [`Policy::target`].
    fn newest(&self) -> Option<Generation> {
        let (body, digest) = self.target()?;
        Some(Generation { number: self.generation, digest, pins: self.pins.clone(), body: body.clone() })
    }

    /// The modules of the newest generation, as far as they are known.
    pub(super) fn target_parts(&self) -> Vec<(&Body, Digest)> {
        self.body.as_ref().map(|body| body.pinned_parts(&self.pins)).unwrap_or_default()
    }

    /// The names of the newest generation's parts whose module is at an address, each with the module if it is known.
    pub(super) fn parts_at(&self, reference: &Reference) -> Vec<(String, Option<Digest>)> {
        let Ok(body) = &self.body else { return Vec::new() };
        body.parts_at(reference).map(|(name, _)| (name.to_owned(), self.pins.get(name))).collect()
    }

    /// How much depends on the newest generation.
    pub(super) fn need(&self) -> Need {
        let is_good = self.target().is_some_and(|(_, digest)| self.need_of(self.generation, digest) == Need::Served);
        if self.newest_served || is_good { Need::Served } else { Need::New }
    }

    /// How much depends on a generation: one that served is urgent.
    pub(super) fn need_of(&self, number: i64, digest: Digest) -> Need {
        let is_it = |known: &Generation| known.number == number && known.digest == digest;
        if self.last_good.iter().chain(self.served()).any(is_it) { Need::Served } else { Need::New }
    }

    /// Remembers the newest generation, which is in a manifest from now on.
    pub(super) fn remember(&mut self) {
        let Some(newest) = self.newest() else { return };
        self.recent.retain(|other| !other.is(&newest));
        if self.last_good.as_ref().is_some_and(|good| good.is(&newest)) {
            self.last_good = Some(newest.clone());
        }
        self.recent.push(newest);
        if self.recent.len() > RECENT {
            self.recent.remove(0);
        }
    }

    /// Records that an evaluator serves this generation.
    pub(super) fn loaded(&mut self, number: i64, digest: Digest) {
        self.refused.remove(&number);
        if self.last_good.as_ref().is_some_and(|good| good.number == number && good.digest == digest) {
            return;
        }
        let mut known = self.recent.iter().chain(self.served());
        if let Some(good) = known.find(|known| known.number == number && known.digest == digest) {
            self.last_good = Some(good.clone());
            self.enforced |= !self.is_object;
        }
    }

    /// Records that an evaluator refuses this generation so that an older one must serve.
    pub(super) fn refuse(&mut self, number: i64, digest: Digest, class: Class) {
        let known = || self.recent.iter().chain(&self.last_good).chain(self.served());
        let is_known = known().any(|known| known.number == number && known.digest == digest);
        let oldest = known().map(|known| known.number).min().unwrap_or(0);
        if is_known {
            self.refused.insert(number, class);
        }
        self.refused.retain(|number, _| *number >= oldest);
    }

    /// Whether a generation is known only because it served on all replicas, and was not published on this volume.
    pub(super) fn is_foreign(&self, other: &Generation) -> bool {
        let is_it = |known: &Generation| known.number == other.number && known.digest == other.digest;
        self.served().is_some_and(is_it) && !self.recent.iter().chain(&self.last_good).any(is_it)
    }

    pub(super) fn served(&self) -> Option<&Generation> {
        self.last_served.as_ref().and_then(LastServed::ready)
    }

    /// The generations that were published on this volume, as far as they are remembered.
    pub(super) fn remembered(&self) -> impl Iterator<Item = &Generation> {
        self.recent.iter().chain(&self.last_good)
    }

    /// Whether a generation is newer than the last good one, so that no evaluator has reported yet that it loads.
    pub(super) fn is_unproven(&self, recent: &Generation) -> bool {
        self.last_good.as_ref().is_some_and(|good| recent.number > good.number)
    }

    /// The generations that may serve while the newest one does not, best first. One that was published after the last good one comes first: it
    /// may already serve, although no evaluator has reported that yet. One that is tried again is still among them.
    pub(super) fn fallbacks(&self) -> impl Iterator<Item = &Generation> {
        let target = self.target().map(|(_, digest)| (self.generation, digest));
        self.recent
            .iter()
            .rev()
            .filter(|recent| self.is_unproven(recent))
            .chain(&self.last_good)
            .chain(self.recent.iter().rev().filter(|recent| !self.is_unproven(recent)))
            .chain(self.served())
            .filter(move |other| target != Some((other.number, other.digest)))
            .filter(move |other| self.refused.get(&other.number) != Some(&Class::Final))
    }

    /// The modules of all known generations.
    pub(super) fn modules(&self) -> impl Iterator<Item = Digest> {
        let known = self.recent.iter().chain(&self.last_good).chain(self.served());
        self.target_parts().into_iter().chain(known.flat_map(Generation::parts)).map(|(_, digest)| digest)
    }

    /// The modules of a generation; empty if that is not known.
    pub(super) fn modules_of(&self, number: i64, digest: Digest) -> Vec<Digest> {
        let mut known = self.recent.iter().chain(&self.last_good).chain(self.served());
        let known = known.find(|known| known.number == number && known.digest == digest);
        known.map(|known| known.parts().into_iter().map(|(_, digest)| digest).collect()).unwrap_or_default()
    }

    /// Why the newest generation cannot even be tried: a mistake in its spec.
    pub(super) fn problem(&self) -> Option<Failure> {
        let problem = self.body.as_ref().err()?;
        Some(Failure::new(self.generation, problem.reason, &problem.message, self.begun.wall))
    }

    /// The policy's entry for the manifest. `trusted` are the addresses that could not be asked yet.
    pub(super) fn entry(
        &self,
        id: &PolicyId,
        candidates: Vec<Candidate>,
        failures: Vec<Failure>,
        trusted: Trusted,
    ) -> PolicyEntry {
        // Settings may be large, and the size of a manifest is limited, so it has them only once for each generation.
        let kept = |body: &Body, number: i64, digest: Option<Digest>| {
            let candidate = digest.and_then(|digest| candidate_of(&candidates, number, digest));
            if candidate.is_some() { body.without_settings() } else { body.clone() }
        };
        let remembered = |known: &Generation| LastGood {
            generation: known.number,
            digest: known.digest,
            members: known.pins.members(),
            source: raw(&kept(&known.body, known.number, Some(known.digest))),
        };
        let digest = self.target().map(|(_, digest)| digest);
        let body = self.body.as_ref().ok().map(|body| kept(body, self.generation, digest));
        let unproven = self.fallbacks().find(|other| self.is_unproven(other)).map(remembered);
        let saved = self.saved(body, unproven, trusted);
        let last_good = self.last_good.as_ref().map(remembered);
        PolicyEntry {
            id: id.clone(),
            uid: self.uid.clone(),
            generation: self.generation,
            mode: self.head.mode,
            failure_policy: self.head.failure_policy,
            suspend: self.head.suspend,
            enforced: self.enforced,
            candidates,
            failures,
            last_good,
            source: Some(raw(&saved)),
        }
    }

    fn saved(&self, body: Option<Body>, unproven: Option<LastGood>, trusted: Trusted) -> SavedPolicy {
        SavedPolicy {
            file: self.file.clone(),
            hash: self.hash,
            created: self.created,
            begun: self.begun.wall,
            head: self.head.clone(),
            body,
            problem: self.body.as_ref().err().cloned(),
            reference: self.references.get("").cloned(),
            digest: self.pins.module(),
            references: self
                .references
                .iter()
                .filter(|(part, _)| !part.is_empty())
                .map(|(part, reference)| (part.clone(), reference.clone()))
                .collect(),
            members: self.pins.members(),
            unproven,
            trusted,
        }
    }

    /// An entry without what is saved of generations that are not candidates. After a restart, the loader must ask again for that.
    pub(super) fn without_others(&self, entry: PolicyEntry) -> PolicyEntry {
        let trusted = trusted_in(&entry);
        let has = |number: i64, digest: Digest| candidate_of(&entry.candidates, number, digest).is_some();
        let is_newest_in = self.target().is_some_and(|(_, digest)| has(self.generation, digest));
        let body = self.body.as_ref().ok().filter(|_| is_newest_in).map(Body::without_settings);
        let source = Some(raw(&self.saved(body, None, trusted)));
        let last_good = entry.last_good.filter(|good| has(good.generation, good.digest));
        PolicyEntry { last_good, source, ..entry }
    }
}

fn references_of(body: &Result<Body, Problem>) -> Option<BTreeMap<String, Reference>> {
    body.as_ref().ok().map(Body::references)
}

/// Gives the same one among these generations what a candidate of an earlier manifest lacks: without addresses, its modules would count as
/// checked for good.
fn complete(recent: &mut [Generation], known: &Generation) {
    if let Some(same) = recent.iter_mut().find(|recent| recent.is(known)) {
        same.body.clone_from(&known.body);
    }
}

fn candidate_of(candidates: &[Candidate], number: i64, digest: Digest) -> Option<&Candidate> {
    candidates.iter().find(|candidate| candidate.generation == number && candidate.digest == digest)
}

/// A value of our own types as JSON text.
fn raw(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).expect("has text keys only")
}
