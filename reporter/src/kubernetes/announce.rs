//! Which events are written, and when (docs/design/status-api.md, section 5): equal ones become a series, and there are limits for each
//! policy and for all together. The number of waiting events is limited, too. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use portcullis_api::{API_VERSION, EventType};
use portcullis_contract::{Digest, PolicyId, truncate};
use portcullis_kubernetes::REPORTER_REPORTING;
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
    buckets: VecDeque<(String, Bucket)>,
    /// The times of the last writes.
    writes: VecDeque<Instant>,
    /// Name and count of the event that is being written.
    in_flight: Option<(String, u32)>,
    not_before: Option<Instant>,
    /// Events that were given up because too many waited.
    pub(crate) lost: u64,
}

impl Announcer {
    /// An announcer without events. `instance` is the name of this pod.
    pub(crate) fn new(instance: &str) -> Self {
        Self {
            instance: instance.to_owned(),
            entries: VecDeque::new(),
            buckets: VecDeque::new(),
            writes: VecDeque::new(),
            in_flight: None,
            not_before: None,
            lost: 0,
        }
    }

    /// Adds an event.
    pub(crate) fn add(&mut self, notice: Notice, time: Timestamp, now: Instant) {
        self.entries.retain(|entry| now.duration_since(entry.seen) <= SERIES || entry.written < entry.count);
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
        if self.entries.len() >= KEPT && self.entries.pop_front().is_some_and(|entry| entry.written < entry.count) {
            self.lost += 1;
        }
        let name = name(&notice, time);
        self.entries.push_back(Entry { notice, name, first: time, last: time, seen: now, count: 1, written: 0 });
    }

    /// What to do now. A write counts as under way until [`Announcer::done`].
    pub(crate) fn next(&mut self, now: Instant) -> Step {
        if self.in_flight.is_some() {
            return Step::Idle;
        }
        while self.writes.front().is_some_and(|write| now.duration_since(*write) >= Duration::from_secs(60)) {
            self.writes.pop_front();
        }
        let free = if self.writes.len() < PER_MINUTE { now } else { self.writes[0] + Duration::from_secs(60) };
        let free = free.max(self.not_before.unwrap_or(now));
        let waiting = self.entries.iter().enumerate().filter(|(_, entry)| entry.written < entry.count);
        let due = |entry: &Entry| {
            let bucket = self.buckets.iter().find(|(uid, _)| *uid == entry.notice.uid);
            // Raising the count of a series makes no new object, so it waits only for the common limit.
            bucket.filter(|_| entry.written == 0).map_or(now, |(_, bucket)| bucket.free_at(now))
        };
        let Some((index, at)) = waiting.map(|(index, entry)| (index, due(entry))).min_by_key(|(_, at)| *at) else {
            return Step::Idle;
        };
        let at = at.max(free);
        if at > now {
            return Step::At(at);
        }
        self.writes.push_back(now);
        let entry = self.entries[index].clone();
        if entry.written == 0 {
            self.take(&entry.notice.uid, now);
        }
        self.in_flight = Some((entry.name.clone(), entry.count));
        self.step(&entry)
    }

    /// Ends the write. `count` is the count of the object if the write succeeded; `again` is when to try again, if that can help.
    pub(crate) fn done(&mut self, count: Option<u32>, again: Option<Instant>) {
        let Some((name, _)) = self.in_flight.take() else { return };
        self.not_before = again;
        let Some(index) = self.entries.iter().position(|entry| entry.name == name) else { return };
        match count {
            Some(count) => self.entries[index].written = count,
            None if again.is_none() => drop(self.entries.remove(index)),
            None => {}
        }
    }

    /// The count of the event that is being written; none if none is.
    pub(crate) fn given_out(&self) -> Option<u32> {
        self.in_flight.as_ref().map(|(_, count)| *count)
    }

    fn take(&mut self, uid: &str, now: Instant) {
        if let Some((_, bucket)) = self.buckets.iter_mut().find(|(known, _)| known == uid) {
            bucket.take(now);
            return;
        }
        if self.buckets.len() >= KEPT {
            self.buckets.pop_front();
        }
        let mut bucket = Bucket::new(BURST, PER_POLICY, now);
        bucket.take(now);
        self.buckets.push_back((uid.to_owned(), bucket));
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
