//! The objects that the leader knows: policies, reports, and the pods of the Service; and which policies a change affects. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use portcullis_api::{AuditSummary, ConditionType, Kind, PolicyKey, PolicyStatus, ReplicaReportSpec};
use portcullis_contract::PolicyId;
use serde_json::Value;

use super::fields::Fingerprint;
use super::object::{Endpoint, Meta, PolicyObject, ReportObject, endpoints, status};
use super::texts::Texts;
use crate::audit::{Found, News, unserved};
use crate::facts::{LastReport, Replica};
use crate::{context, mismatch};

/// How far clocks may differ.
const CLOCKS: Duration = Duration::from_secs(10 * 60);
/// How long a new leader waits for the heartbeats of pods that seem to be silent: all pods were, if the API server was away, and then each goes on
/// within this time.
const RETURN: Duration = Duration::from_secs(20);

/// A collection that the leader watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Collection {
    Policies,
    ClusterPolicies,
    Reports,
    Endpoints,
}

/// A change of a collection.
#[derive(Debug)]
pub(crate) enum Change {
    /// An object of a list that is being read.
    Read(Value),
    /// A list was read to its end: the collection has the objects with these uids.
    Listed(BTreeSet<String>),
    /// An object is new or has changed.
    Put(Value),
    /// An object was deleted.
    Gone(Value),
}

/// A policy, and the status that was decided for it so far.
#[derive(Debug, Clone)]
pub(crate) struct TrackedPolicy {
    pub(crate) object: PolicyObject,
    /// The status that was written or found last, unless it is invalid. The next one is decided from it.
    pub(crate) last: Option<PolicyStatus>,
    /// The status of a write without an answer so far; it may have been written nevertheless.
    pub(crate) tried: Option<Box<PolicyStatus>>,
    /// The wanted status and the one that the API server made of it, if they differ. It is not written again while both stay the same.
    pub(crate) given_up: Option<(Fingerprint, Fingerprint)>,
    /// Whether the generation has failed since it was last well, as the events tell it.
    pub(crate) has_failed: bool,
    /// The summary of this leader's audit; none before its first scan.
    pub(crate) audit: Option<AuditSummary>,
}

impl TrackedPolicy {
    /// A policy with the status that was found, about which this program has done nothing yet.
    pub(crate) fn new(object: PolicyObject, last: Option<PolicyStatus>) -> Self {
        Self { object, last, tried: None, given_up: None, has_failed: false, audit: None }
    }
}

struct Report {
    object: ReportObject,
    /// When its heartbeat was seen to change, or it was seen first, by this machine's monotonic clock.
    changed: Instant,
    /// Whether its heartbeat was a long time ago when it was seen first, and has not been seen to change.
    is_old: bool,
    /// Whether its heartbeat was a long time ago when it was seen first.
    was_old: bool,
}

impl Report {
    /// Whether its heartbeat was not seen to change for this time.
    fn is_silent(&self, lifetime: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.changed) > lifetime
    }
}

/// All objects that the leader knows.
pub(crate) struct Store {
    policy_server: String,
    lifetime: Duration,
    /// How often a summary of the audit is written that differs from the last one only in its time; none where there is no audit.
    audit: Option<Duration>,
    /// Each in its own piece of memory, as half of the places of a map may be empty.
    policies: BTreeMap<PolicyId, Box<TrackedPolicy>>,
    reports: BTreeMap<String, Report>,
    texts: Texts,
    slices: BTreeMap<String, Vec<Endpoint>>,
    /// Names and pods of slices in a list that is being read, by uid. Until it is read, the earlier ones count: a mixture would look like more pods
    /// than there are.
    read_slices: BTreeMap<String, (String, Vec<Endpoint>)>,
    missing: Vec<Collection>,
    dirty: BTreeSet<PolicyId>,
    stale: BTreeSet<String>,
    /// When the reports were listed first.
    begin: Option<Instant>,
    /// Whether reports may count again in a moment that do not seem to count.
    is_waiting: bool,
}

impl Store {
    /// An empty store. A report without a heartbeat for `lifetime` does not count; `audit` is the interval of the audit, if there is one.
    pub(crate) fn new(policy_server: &str, lifetime: Duration, audit: Option<Duration>) -> Self {
        Self {
            policy_server: policy_server.to_owned(),
            lifetime,
            audit,
            policies: BTreeMap::new(),
            reports: BTreeMap::new(),
            texts: Texts::default(),
            slices: BTreeMap::new(),
            read_slices: BTreeMap::new(),
            missing: vec![
                Collection::Policies,
                Collection::ClusterPolicies,
                Collection::Reports,
                Collection::Endpoints,
            ],
            dirty: BTreeSet::new(),
            stale: BTreeSet::new(),
            begin: None,
            is_waiting: false,
        }
    }

    /// Whether every collection has been listed, and each pod that is there had the time to go on reporting. Before that nothing is decided, so
    /// that no part is taken for the whole.
    pub(crate) fn is_complete(&self) -> bool {
        self.missing.is_empty() && !self.is_waiting
    }

    /// Takes in a change. `clock` is the time of day.
    pub(crate) fn apply(&mut self, collection: Collection, change: Change, now: Instant, clock: Timestamp) {
        if matches!(change, Change::Listed(_)) {
            self.missing.retain(|missing| *missing != collection);
        }
        match collection {
            Collection::Policies => self.apply_policy(Kind::Policy, change),
            Collection::ClusterPolicies => self.apply_policy(Kind::ClusterPolicy, change),
            Collection::Reports => self.apply_report(change, now, clock),
            Collection::Endpoints => {
                self.apply_endpoints(change);
                self.turn(now);
            }
        }
    }

    /// Takes the policies to decide about and those that are gone, each of them once; none before every collection has been listed.
    pub(crate) fn take_dirty(&mut self) -> BTreeSet<PolicyId> {
        if self.is_complete() { std::mem::take(&mut self.dirty) } else { BTreeSet::new() }
    }

    /// Marks a policy to be decided about again.
    pub(crate) fn touch(&mut self, id: &PolicyId) {
        self.dirty.insert(id.clone());
    }

    /// Finds reports that have become stale, and whether pods that are there may go on reporting in a moment.
    pub(crate) fn turn(&mut self, now: Instant) {
        let is_new = self.begin.is_none_or(|begin| now.saturating_duration_since(begin) < RETURN);
        self.is_waiting = is_new && self.reports.values().any(|report| report.is_old && self.is_there(&report.object));
        let clock = self.clock_of_pods();
        let is_old = |report: &Report| {
            report.is_old && clock.is_none_or(|clock| is_long_ago(report.object.heartbeat(), self.lifetime, clock))
        };
        let stale: BTreeSet<String> = self
            .reports
            .iter()
            .filter(|(_, report)| is_old(report) || report.is_silent(self.lifetime, now))
            .map(|(name, _)| name.clone())
            .collect();
        if stale != self.stale {
            self.stale = stale;
            self.touch_all();
        }
    }

    /// The time by which heartbeats are judged, if most ready pods seemed to be silent for long: then the clock here is ahead, more likely than not.
    /// It is the newest heartbeat of these pods. A single one tells nothing about the clock.
    fn clock_of_pods(&self) -> Option<Timestamp> {
        if !self.reports.values().any(|report| report.is_old) {
            return None;
        }
        let ready: BTreeSet<(&str, &str)> = self
            .slices
            .values()
            .flatten()
            .filter(|endpoint| endpoint.ready)
            .map(|endpoint| (endpoint.pod.as_str(), endpoint.pod_uid.as_str()))
            .collect();
        let is_ready =
            |report: &ReportObject| ready.contains(&(report.meta.name.as_str(), report.spec.pod_uid.as_str()));
        let reports = self.reports.values().filter(|report| is_ready(&report.object));
        let (old, others): (Vec<&Report>, Vec<&Report>) = reports.partition(|report| report.was_old);
        let newest = old.iter().map(|report| report.object.heartbeat()).max();
        newest.filter(|_| old.len() > others.len().max(1))
    }

    pub(crate) fn policy(&self, id: &PolicyId) -> Option<&TrackedPolicy> {
        self.policies.get(id).map(Box::as_ref)
    }

    pub(crate) fn policy_mut(&mut self, id: &PolicyId) -> Option<&mut TrackedPolicy> {
        self.policies.get_mut(id).map(Box::as_mut)
    }

    pub(crate) fn policies(&self) -> impl Iterator<Item = &TrackedPolicy> {
        self.policies.values().map(Box::as_ref)
    }

    /// Takes in the audit's summary of a policy. It is written if more than its time is new, as the request that it handles, or if the interval
    /// has passed.
    pub(crate) fn audited(&mut self, Found { policy: id, uid, news }: Found) {
        let Some(interval) = self.audit else { return };
        let Some(policy) = self.policies.get_mut(&id) else { return };
        let known = policy.audit.as_ref().or(policy.last.as_ref().and_then(|last| last.audit.as_ref()));
        let next = match news {
            News::Summary(summary) => Some(summary),
            News::Unserved { request, at } => unserved(known, request, at),
        };
        let next = next.filter(|next| known.is_none_or(|known| is_due(known, next, interval)));
        if policy.object.meta.uid == uid && next.is_some() {
            policy.audit = next;
            self.dirty.insert(id);
        }
    }

    /// A hash that changes when a policy is made, edited or deleted, or an audit is asked for; none before all policies are known.
    pub(crate) fn policies_digest(&self) -> Option<u64> {
        if !self.is_complete() {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        for PolicyObject { id, meta, audit_requested, .. } in self.policies.values().map(|policy| &policy.object) {
            (id, &meta.uid, meta.generation, meta.deleting, audit_requested).hash(&mut hasher);
        }
        Some(hasher.finish())
    }

    /// Removes a policy that is gone.
    pub(crate) fn forget(&mut self, object: &PolicyObject) {
        if self.policies.get(&object.id).is_some_and(|known| known.object.meta.uid == object.meta.uid) {
            self.remove(&object.id);
        }
    }

    /// Removes a policy, and marks it, so that nothing goes on telling of it.
    fn remove(&mut self, id: &PolicyId) {
        if self.policies.remove(id).is_some() {
            self.dirty.insert(id.clone());
        }
    }

    /// The pods of the Service with their reports, by name. Of two pods that have had the same name, only one is given:
    /// a ready one before others, then one with a report.
    pub(crate) fn replicas(&self) -> Vec<Replica<'_>> {
        let mut pods: BTreeMap<&str, &Endpoint> = BTreeMap::new();
        for endpoint in self.slices.values().flatten() {
            let rank = |endpoint: &Endpoint| {
                let reports = self.reports.get(&endpoint.pod).map(|report| &report.object.spec.pod_uid);
                (endpoint.ready, reports == Some(&endpoint.pod_uid), endpoint.pod_uid.clone())
            };
            let known = pods.entry(&endpoint.pod).or_insert(endpoint);
            if rank(endpoint) > rank(known) {
                *known = endpoint;
            }
        }
        let heard = |pod: &str| {
            let report = self.reports.get(pod)?;
            Some(LastReport { report: &report.object.spec, is_stale: self.stale.contains(pod) })
        };
        pods.into_values()
            .map(|endpoint| Replica {
                pod: &endpoint.pod,
                pod_uid: &endpoint.pod_uid,
                expected: endpoint.ready,
                report: heard(&endpoint.pod),
            })
            .collect()
    }

    /// The reports of pods that are gone, by name: no endpoint names the pod, and its heartbeat was seen to have stopped, whatever the time in it.
    /// Those that are being deleted already, and wait for a finalizer, are not among them.
    pub(crate) fn dead_reports(&self, now: Instant) -> Vec<Meta> {
        if !self.is_complete() {
            return Vec::new();
        }
        self.reports
            .values()
            .filter(|report| !report.object.meta.deleting && report.is_silent(self.lifetime, now))
            .filter(|report| !self.is_there(&report.object))
            .map(|report| report.object.meta.clone())
            .collect()
    }

    /// Whether an endpoint names the pod of a report.
    fn is_there(&self, report: &ReportObject) -> bool {
        let is_its = |endpoint: &Endpoint| endpoint.pod == report.meta.name && endpoint.pod_uid == report.spec.pod_uid;
        self.slices.values().flatten().any(is_its)
    }

    fn apply_policy(&mut self, kind: Kind, change: Change) {
        let is_kind = |id: &PolicyId| id.namespace().is_some() == (kind == Kind::Policy);
        match change {
            Change::Read(object) => self.put_policy(kind, &object, false),
            Change::Listed(uids) => {
                let known = self.policies.values().map(|policy| &policy.object);
                let gone = known.filter(|known| is_kind(&known.id) && !uids.contains(&known.meta.uid));
                let gone: Vec<PolicyId> = gone.map(|known| known.id.clone()).collect();
                gone.iter().for_each(|id| self.remove(id));
            }
            Change::Put(object) => self.put_policy(kind, &object, true),
            Change::Gone(object) => {
                if let Some(object) = PolicyObject::of(kind, &object) {
                    self.forget(&object);
                }
            }
        }
    }

    /// `ordered` says whether versions should come in their order. Then an older one is a stale read.
    fn put_policy(&mut self, kind: Kind, value: &Value, ordered: bool) {
        let Some(object) = PolicyObject::of(kind, value) else { return };
        if object.policy_server != self.policy_server {
            self.remove(&object.id);
            return;
        }
        let known = self.policies.get_mut(&object.id).filter(|known| known.object.meta.uid == object.meta.uid);
        let id = object.id.clone();
        match known {
            Some(known) if ordered && known.object.meta.is_newer_than(&object.meta) => return,
            Some(known) if known.object.meta.generation > object.meta.generation => return,
            Some(known) => known.object = object,
            None => {
                // A status with a generation that the object does not have yet is invalid.
                let sane = |status: &PolicyStatus| status.observed_generation <= object.meta.generation;
                let mut last = status(value).filter(|status| sane(status) && !status.conditions.is_empty());
                if let Some(last) = &mut last {
                    // What the controller says is kept in the object.
                    last.conditions.retain(|condition| condition.r#type != ConditionType::WebhookConfigured);
                    last.conditions.shrink_to_fit();
                    if self.audit.is_none() {
                        last.audit = None;
                    }
                }
                self.policies.insert(id.clone(), Box::new(TrackedPolicy::new(object, last)));
            }
        }
        self.dirty.insert(id);
    }

    fn apply_report(&mut self, change: Change, now: Instant, clock: Timestamp) {
        match change {
            Change::Read(object) => {
                if let Some(object) = ReportObject::of(&object) {
                    self.put_report(object, now, clock);
                }
            }
            Change::Listed(uids) => {
                self.begin.get_or_insert(now);
                let before = self.reports.len();
                self.reports.retain(|_, report| uids.contains(&report.object.meta.uid));
                if self.reports.len() != before {
                    self.touch_all();
                }
            }
            Change::Put(object) => {
                let Some(object) = ReportObject::of(&object) else { return };
                let known = self.reports.get(&object.meta.name);
                if !known.is_some_and(|known| known.object.meta.is_newer_than(&object.meta)) {
                    self.put_report(object, now, clock);
                }
            }
            Change::Gone(object) => {
                let Some(meta) = Meta::of(&object) else { return };
                if self.reports.get(&meta.name).is_some_and(|known| known.object.meta.uid == meta.uid) {
                    self.reports.remove(&meta.name);
                    self.touch_all();
                }
            }
        }
    }

    fn put_report(&mut self, mut object: ReportObject, now: Instant, clock: Timestamp) {
        self.texts.share(&mut object.spec);
        let name = object.meta.name.clone();
        let last = self.reports.get(&name);
        match last.map(|last| concerned(&last.object.spec, &object.spec)) {
            Some(Some(keys)) => {
                let dirty = self.policies.values().filter(|policy| keys.contains(&policy.object.key));
                self.dirty.extend(dirty.map(|policy| policy.object.id.clone()));
            }
            Some(None) | None => self.touch_all(),
        }
        let (changed, is_old, was_old) = match self.reports.get(&name) {
            Some(last) if last.object.heartbeat() == object.heartbeat() => (last.changed, last.is_old, last.was_old),
            Some(last) => (now, false, last.was_old),
            None => {
                let is_old = is_long_ago(object.heartbeat(), self.lifetime, clock);
                (now, is_old, is_old)
            }
        };
        self.reports.insert(name, Report { object, changed, is_old, was_old });
        self.turn(now);
    }

    fn apply_endpoints(&mut self, change: Change) {
        let text = |slice: &Value, field: &str| slice["metadata"][field].as_str().map(str::to_owned);
        let name = |slice: &Value| text(slice, "name");
        let before = self.slices.clone();
        match change {
            Change::Read(slice) => {
                let read = text(&slice, "uid").zip(name(&slice));
                self.read_slices.extend(read.map(|(uid, name)| (uid, (name, endpoints(&slice)))));
            }
            Change::Listed(uids) => {
                // A list that began again may have read others.
                let read = std::mem::take(&mut self.read_slices).into_iter();
                self.slices = read.filter(|(uid, _)| uids.contains(uid)).map(|(_, slice)| slice).collect();
            }
            Change::Put(slice) => self.slices.extend(name(&slice).map(|name| (name, endpoints(&slice)))),
            Change::Gone(slice) => {
                name(&slice).and_then(|name| self.slices.remove(&name));
            }
        }
        if before != self.slices {
            self.touch_all();
        }
    }

    fn touch_all(&mut self) {
        self.dirty.extend(self.policies.keys().cloned());
    }
}

/// Whether a heartbeat has stopped for certain, although nobody has waited for the next one: more time has passed since than the lifetime and
/// the difference of clocks. Without this, each new leader would count the last report of a pod that fell silent, until its lifetime is over. Where
/// a clock is wrong, the next heartbeat shows it; [`Store::clock_of_pods`] shows it before, if it is the one here.
fn is_long_ago(heartbeat: Timestamp, lifetime: Duration, clock: Timestamp) -> bool {
    let passed = Duration::try_from(clock.duration_since(heartbeat));
    passed.is_ok_and(|passed| passed > lifetime.saturating_add(CLOCKS))
}

/// Whether a summary of the audit differs from the last one in more than its time, or so much time has passed.
fn is_due(known: &AuditSummary, next: &AuditSummary, interval: Duration) -> bool {
    let same_time = AuditSummary { scanned_at: known.scanned_at, ..next.clone() };
    let passed = next.scanned_at.duration_since(known.scanned_at);
    *known != same_time || Duration::try_from(passed).is_ok_and(|passed| passed >= interval)
}

/// The policies in which two reports of a pod differ; `None` if any policy may be affected.
fn concerned(last: &ReplicaReportSpec, next: &ReplicaReportSpec) -> Option<BTreeSet<PolicyKey>> {
    // What a report without room leaves out is not known, of any policy.
    let has_room = |report: &ReplicaReportSpec| (mismatch::is_full(report), context::is_full(report));
    if last.pod_uid != next.pod_uid
        || last.deviations_omitted != next.deviations_omitted
        || has_room(last) != has_room(next)
    {
        return None;
    }
    let mut keys = BTreeSet::new();
    keys.extend(different(&last.current, &next.current));
    keys.extend(different(&last.digests, &next.digests));
    keys.extend(different(&last.members, &next.members));
    keys.extend(different_entries(&last.deviations, &next.deviations, |deviation| &deviation.policy_uid));
    keys.extend(different_entries(&last.failing, &next.failing, |failing| &failing.policy_uid));
    keys.extend(different_entries(&last.mismatches, &next.mismatches, |mismatch| &mismatch.policy_uid));
    keys.extend(different_entries(&last.context, &next.context, |context| &context.policy_uid));
    keys.extend(different_entries(&last.impacts, &next.impacts, |impact| &impact.policy_uid));
    Some(keys)
}

/// The policies in which two lists differ. `uid` gives the policy's uid of an entry.
fn different_entries<T: PartialEq>(last: &[T], next: &[T], uid: fn(&T) -> &String) -> BTreeSet<PolicyKey> {
    let last: BTreeMap<&String, &T> = last.iter().map(|entry| (uid(entry), entry)).collect();
    let next: BTreeMap<&String, &T> = next.iter().map(|entry| (uid(entry), entry)).collect();
    different(&last, &next).into_iter().map(|uid| PolicyKey::of(uid)).collect()
}

fn different<K: Ord + Clone, V: PartialEq>(last: &BTreeMap<K, V>, next: &BTreeMap<K, V>) -> BTreeSet<K> {
    let changed = next.iter().filter(|(key, value)| last.get(*key) != Some(*value)).map(|(key, _)| key);
    let gone = last.keys().filter(|key| !next.contains_key(*key));
    changed.chain(gone).cloned().collect()
}

#[cfg(test)]
mod tests;
