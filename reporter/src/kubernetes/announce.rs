//! Which events are written, and when (docs/design/status-api.md, section 5): equal ones become a series, and there are limits for each
//! policy and for all together. The number of waiting events is limited, too. Namespaces take turns, so that the policies of one do not hold
//! up the events of others. Pure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use portcullis_api::{API_VERSION, EventType};
use portcullis_contract::{Digest, PolicyId, truncate};
use portcullis_kubernetes::{CallError, REPORTER_REPORTING, Retry};
use serde_json::{Value, json};

use super::object::kind;
use super::pace::Bucket;

/// An equal event within this time raises a count.
const SERIES: Duration = Duration::from_secs(6 * 60);
/// New events of one policy: this many at once, enough for a bad update and its repair, then one a minute.
const BURST: f64 = 10.0;
const PER_POLICY: f64 = 1.0 / 60.0;
/// Most writes in a minute, of all policies together.
const PER_MINUTE: usize = 50;
/// Most events of one policy that wait.
const WAITING_OF_ONE: usize = 12;
/// Most events that wait, or are remembered for their series.
const KEPT: usize = 4096;
/// Most tries of an event that is refused; a new leader may be refused for some seconds.
const TRIES: u32 = 6;
/// How long the others wait after a refusal, which may concern all. The limit of writes in a minute leaves this time between two anyway.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// Longest note, in bytes.
const MAX_NOTE: usize = 1024;

/// Something that happened to a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) policy: PolicyId,
    /// The policy's uid.
    pub(crate) uid: String,
    pub(crate) r#type: EventType,
    pub(crate) reason: String,
    pub(crate) note: String,
}

/// An event object, written or waiting.
#[derive(Debug, Clone)]
struct Entry {
    notice: Notice,
    name: String,
    first: Timestamp,
    last: Timestamp,
    seen: Instant,
    count: u32,
    /// The count that the object has; 0 while it is not written.
    written: u32,
    /// How often it was refused since it was last written.
    refusals: u32,
    retry: Retry,
    /// When it may be tried again after a refusal.
    not_before: Option<Instant>,
}

impl Entry {
    /// The namespace of the policy; empty for cluster-wide ones, which count as one namespace.
    fn namespace(&self) -> &str {
        self.notice.policy.namespace().unwrap_or_default()
    }

    fn waits(&self) -> bool {
        self.written < self.count
    }
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// Create this event.
    Create { namespace: String, object: Value },
    /// Change the event of this name by a merge patch.
    Raise { namespace: String, name: String, patch: Value },
    /// Wait until this time.
    At(Instant),
    /// Wait for the next event.
    Idle,
}

/// The events of all policies.
#[derive(Debug)]
pub(crate) struct Announcer {
    /// The name of this pod.
    instance: String,
    entries: VecDeque<Entry>,
    /// The limits of the policies that have had events lately, by uid.
    buckets: BTreeMap<String, Bucket>,
    /// The times of the last writes.
    writes: VecDeque<Instant>,
    /// Name and count of the event that is being written.
    in_flight: Option<(String, u32)>,
    /// When each namespace was last served, as the number of that write, if it has events.
    served: BTreeMap<String, u64>,
    turns: u64,
    /// When anything may be written again after a failure.
    not_before: Option<Instant>,
    retry: Retry,
    /// Events that were given up because too many waited, or because they were refused.
    pub(crate) lost: u64,
}

impl Announcer {
    /// An announcer without events. `instance` is the name of this pod.
    pub(crate) fn new(instance: &str) -> Self {
        Self {
            instance: instance.to_owned(),
            entries: VecDeque::new(),
            buckets: BTreeMap::new(),
            writes: VecDeque::new(),
            in_flight: None,
            served: BTreeMap::new(),
            turns: 0,
            not_before: None,
            retry: Retry::default(),
            lost: 0,
        }
    }

    /// Adds an event.
    pub(crate) fn add(&mut self, notice: Notice, time: Timestamp, now: Instant) {
        self.entries.retain(|entry| now.duration_since(entry.seen) <= SERIES || entry.waits());
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.notice == notice) {
            entry.count += 1;
            entry.last = time;
            entry.seen = now;
            return;
        }
        let waits = |entry: &Entry| entry.written == 0 && entry.notice.uid == notice.uid;
        if self.entries.iter().filter(|entry| waits(entry)).count() >= WAITING_OF_ONE
            && let Some(oldest) = self.entries.iter().position(waits)
        {
            self.entries.remove(oldest);
            self.lost += 1;
        }
        if self.entries.len() >= KEPT {
            self.make_room();
        }
        let name = name(&notice, time);
        self.entries.push_back(Entry {
            notice,
            name,
            first: time,
            last: time,
            seen: now,
            count: 1,
            written: 0,
            refusals: 0,
            retry: Retry::default(),
            not_before: None,
        });
    }

    /// Gives up the oldest event of the namespace that has the most.
    fn make_room(&mut self) {
        let mut counts = BTreeMap::<&str, usize>::new();
        self.entries.iter().for_each(|entry| *counts.entry(entry.namespace()).or_default() += 1);
        let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(namespace, _)| namespace);
        let oldest = self.entries.iter().position(|entry| Some(entry.namespace()) == most);
        if oldest.and_then(|oldest| self.entries.remove(oldest)).is_some_and(|entry| entry.waits()) {
            self.lost += 1;
        }
    }

    /// What to do now. A write counts as under way until [`Announcer::written`] or [`Announcer::failed`].
    pub(crate) fn next(&mut self, now: Instant) -> Step {
        if self.in_flight.is_some() {
            return Step::Idle;
        }
        while self.writes.front().is_some_and(|write| now.duration_since(*write) >= Duration::from_secs(60)) {
            self.writes.pop_front();
        }
        let free = if self.writes.len() < PER_MINUTE { now } else { self.writes[0] + Duration::from_secs(60) };
        let free = free.max(self.not_before.unwrap_or(now));
        let waiting = self.entries.iter().enumerate().filter(|(_, entry)| entry.waits());
        let due = |entry: &Entry| {
            let bucket = self.buckets.get(&entry.notice.uid);
            // Raising the count of a series makes no new object, so it waits only for the common limit.
            let paced = bucket.filter(|_| entry.written == 0).map_or(now, |bucket| bucket.free_at(now));
            paced.max(entry.not_before.unwrap_or(now)).max(free)
        };
        // Those that are due, then by the turn of their namespace, then the oldest.
        let turn = |entry: &Entry| self.served.get(entry.namespace()).copied();
        let next = waiting.map(|(index, entry)| (due(entry), turn(entry), index)).min();
        let index = match next {
            None => return Step::Idle,
            Some((at, ..)) if at > now => return Step::At(at),
            Some((.., index)) => index,
        };
        self.writes.push_back(now);
        let entry = self.entries[index].clone();
        let known: BTreeSet<&str> = self.entries.iter().map(Entry::namespace).collect();
        self.served.retain(|namespace, _| known.contains(namespace.as_str()));
        self.turns += 1;
        self.served.insert(entry.namespace().to_owned(), self.turns);
        if entry.written == 0 {
            self.take(&entry.notice.uid, now);
        }
        self.in_flight = Some((entry.name.clone(), entry.count));
        self.step(&entry)
    }

    /// Ends the write, which succeeded.
    pub(crate) fn written(&mut self) {
        let Some((name, count)) = self.in_flight.take() else { return };
        self.retry.reset();
        self.not_before = None;
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.name == name) {
            entry.written = count;
            entry.refusals = 0;
            entry.retry.reset();
            entry.not_before = None;
        }
    }

    /// Ends the write, which failed. A refusal concerns this event, perhaps because of its namespace. Otherwise nothing can be written for a
    /// while. `random` is from 0 to 1.
    pub(crate) fn failed(&mut self, error: &CallError, random: f64, now: Instant) {
        let Some((name, _)) = self.in_flight.take() else { return };
        let Some(code @ (400 | 402..=428 | 430..=499)) = error.code() else {
            self.not_before = Some(now + self.retry.pause(error, random));
            return;
        };
        self.retry.reset();
        self.not_before = Some(now + REFUSED_PAUSE);
        let Some(index) = self.entries.iter().position(|entry| entry.name == name) else { return };
        let entry = &mut self.entries[index];
        entry.refusals += 1;
        entry.not_before = Some(now + entry.retry.pause(error, random));
        // The namespace, or the event whose count rises, is gone.
        if code == 404 || entry.refusals >= TRIES {
            self.entries.remove(index);
            self.lost += 1;
        }
    }

    fn take(&mut self, uid: &str, now: Instant) {
        // A full one limits nothing. The limit of all writes keeps the others few.
        self.buckets.retain(|_, bucket| !bucket.is_full(now));
        self.buckets.entry(uid.to_owned()).or_insert_with(|| Bucket::new(BURST, PER_POLICY, now)).take(now);
    }

    fn step(&self, entry: &Entry) -> Step {
        let Notice { policy, uid, r#type, reason, note } = &entry.notice;
        // `kubectl describe` looks for events of cluster-wide objects there.
        let namespace = policy.namespace().unwrap_or("default").to_owned();
        let series = json!({ "count": entry.count, "lastObservedTime": micro(entry.last) });
        if entry.written > 0 {
            return Step::Raise { namespace, name: entry.name.clone(), patch: json!({ "series": series }) };
        }
        let mut object = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": { "name": entry.name, "namespace": namespace },
            "eventTime": micro(entry.first),
            "reportingController": REPORTER_REPORTING,
            "reportingInstance": truncate(&self.instance, 128),
            "action": "Report",
            "reason": reason,
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": kind(policy),
                "name": policy.name(),
                "uid": uid,
            },
            "note": truncate(note, MAX_NOTE),
            "type": r#type.as_str(),
        });
        if let Some(namespace) = policy.namespace() {
            object["regarding"]["namespace"] = json!(namespace);
        }
        if entry.count > 1 {
            object["series"] = series;
        }
        Step::Create { namespace, object }
    }
}

/// The name of an event: the same for the same event, so that a second try does not make a second object.
fn name(notice: &Notice, time: Timestamp) -> String {
    let Notice { policy, uid, r#type, reason, note } = notice;
    let text = format!("{uid} {} {reason} {note} {}", r#type.as_str(), time.as_microsecond());
    format!("{}.{}", policy.name(), &Digest::of(text.as_bytes()).hex()[..16])
}

/// A time in the form of `MicroTime`.
fn micro(time: Timestamp) -> String {
    format!("{time:.6}")
}

#[cfg(test)]
mod tests;
