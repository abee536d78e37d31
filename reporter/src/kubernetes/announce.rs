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
/// Maximum number of attempts to write an event that is refused; a new leader may be refused for some seconds.
const TRIES: u32 = 6;
/// How long an event of a namespace where writes fail is kept, if none of another namespace shows that the API server works.
const HOPELESS: Duration = Duration::from_secs(10 * 60);
/// How many times as long as its failed write took a namespace waits, so that a slow webhook of its own leaves most of the time to others.
const SHARE: u32 = 4;
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
    /// When it first failed as if by a webhook of its namespace, and how many writes of others had succeeded at its last try.
    failed: Option<(Instant, u64)>,
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
    /// Name and count of the event that is being written, and since when.
    in_flight: Option<(String, u32, Instant)>,
    /// When each namespace was last served, as the number of that write, if it has events.
    served: BTreeMap<String, u64>,
    turns: u64,
    /// When anything may be written again after a failure.
    not_before: Option<Instant>,
    retry: Retry,
    /// Successful writes.
    successes: u64,
    /// The namespaces whose last write failed as one of their own webhooks can make it fail, and when they are tried again.
    held: BTreeMap<String, (Retry, Instant)>,
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
            successes: 0,
            held: BTreeMap::new(),
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
            failed: None,
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
            let held = self.held.get(entry.namespace()).map_or(now, |(_, until)| *until);
            paced.max(entry.not_before.unwrap_or(now)).max(held).max(free)
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
        self.held.retain(|namespace, _| known.contains(namespace.as_str()));
        self.turns += 1;
        self.served.insert(entry.namespace().to_owned(), self.turns);
        if entry.written == 0 {
            self.take(&entry.notice.uid, now);
        }
        self.in_flight = Some((entry.name.clone(), entry.count, now));
        self.step(&entry)
    }

    /// Ends the write, which succeeded.
    pub(crate) fn written(&mut self) {
        let Some((name, count, _)) = self.in_flight.take() else { return };
        self.retry.reset();
        self.not_before = None;
        self.successes += 1;
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.name == name) {
            self.held.remove(entry.namespace());
            entry.written = count;
            entry.refusals = 0;
            entry.failed = None;
            entry.retry.reset();
            entry.not_before = None;
        }
    }

    /// Ends the write, which failed. A refusal concerns this event, perhaps because of its namespace. A broken or slow webhook looks like an
    /// API server that is busy, so then the namespace waits, and all do as soon as a second one fails. Otherwise nothing can be written for a
    /// while. `random` is from 0 to 1.
    pub(crate) fn failed(&mut self, error: &CallError, random: f64, now: Instant) {
        let Some((name, _, began)) = self.in_flight.take() else { return };
        let index = self.entries.iter().position(|entry| entry.name == name);
        let is_gone = match error.code() {
            Some(400 | 402..=428 | 430..=499) => {
                self.retry.reset();
                self.not_before = Some(now + REFUSED_PAUSE);
                index.is_some_and(|index| self.refused(index, error, random, now))
            }
            _ if may_be_of_namespace(error) => {
                index.is_some_and(|index| self.failed_in_namespace(index, error, random, (began, now)))
            }
            _ => {
                self.not_before = Some(now + self.retry.pause(error, random));
                false
            }
        };
        if let Some(index) = index.filter(|_| is_gone) {
            self.entries.remove(index);
            self.lost += 1;
        }
    }

    /// Whether an event is given up that was refused.
    fn refused(&mut self, index: usize, error: &CallError, random: f64, now: Instant) -> bool {
        let entry = &mut self.entries[index];
        entry.refusals += 1;
        entry.not_before = Some(now + entry.retry.pause(error, random));
        // The namespace, or the event whose count rises, is gone.
        error.code() == Some(404) || entry.refusals >= TRIES
    }

    /// Whether an event is given up whose write failed as a webhook of its namespace can make it fail, from when to when. Tries count only while
    /// others succeed.
    fn failed_in_namespace(&mut self, index: usize, error: &CallError, random: f64, time: (Instant, Instant)) -> bool {
        let ((began, now), successes) = (time, self.successes);
        let entry = &mut self.entries[index];
        let (first, before) = entry.failed.unwrap_or((now, successes));
        entry.failed = Some((first, successes));
        entry.refusals += u32::from(successes > before);
        let is_hopeless = entry.refusals >= TRIES || now.duration_since(first) >= HOPELESS;
        let namespace = entry.namespace().to_owned();
        let (retry, until) = self.held.entry(namespace).or_insert((Retry::default(), now));
        *until = now + retry.pause(error, random).max(now.duration_since(began) * SHARE);
        let pause = if self.held.len() > 1 { self.retry.pause(error, random) } else { REFUSED_PAUSE };
        self.not_before = Some(now + pause);
        is_hopeless
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

/// Whether a write may have failed because of a webhook about events of its namespace. An API server that is busy or cannot reach its database
/// answers the same.
fn may_be_of_namespace(error: &CallError) -> bool {
    matches!(error, CallError::TimedOut) || matches!(error.code(), Some(429 | 500..))
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
