//! Events on policies (docs/design/status-api.md, section 5).

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use portcullis_api::{API_VERSION, Kind, PolicyReference};
use portcullis_kubernetes::CONTROLLER_REPORTING;
use portcullis_util::lock;

/// The longest note, in bytes.
const NOTE: usize = 1024;
/// For how long an equal event only increases the count.
const SERIES: Duration = Duration::from_secs(360);
/// How many different events are remembered for that.
const SERIES_MOST: usize = 1000;

/// An event of type `Warning` on a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyWarning {
    /// The policy.
    pub policy: PolicyReference,
    /// What happened, in one word.
    pub reason: &'static str,
    /// What happened, for people to read.
    pub note: String,
}

/// Writes events; an equal one within six minutes only increases the count.
pub(crate) struct Events {
    client: Client,
    reporter: Reporter,
    recorders: Mutex<Series<Recorder>>,
}

/// The uid of a policy, and reason and note of an event on it.
type Told = (String, &'static str, String);

/// What belongs to each of the latest different events.
struct Series<T>(HashMap<Told, (T, Instant)>);

impl Events {
    /// `instance` is the name of this Pod.
    pub(crate) fn new(client: Client, instance: &str) -> Self {
        let reporter = Reporter { controller: CONTROLLER_REPORTING.to_owned(), instance: Some(instance.to_owned()) };
        Self { client, reporter, recorders: Mutex::new(Series(HashMap::new())) }
    }

    pub(crate) async fn write(&self, warning: &PolicyWarning) -> Result<(), kube::Error> {
        let note = portcullis_contract::truncate(&warning.note, NOTE);
        let event = Event {
            type_: EventType::Warning,
            reason: warning.reason.to_owned(),
            note: Some(note.clone()),
            action: "ConfigureWebhook".to_owned(),
            secondary: None,
        };
        // Each event has a recorder of its own: one that wrote another event of the same reason on the same policy would only increase the
        // count of that one, and this note would be lost.
        let told = (warning.policy.uid.clone(), warning.reason, note);
        let new = || Recorder::new(self.client.clone(), self.reporter.clone());
        let recorder = lock(&self.recorders).of(told, Instant::now(), new);
        recorder.publish(&event, &reference(&warning.policy)).await
    }
}

impl<T: Clone> Series<T> {
    /// What belongs to this event: the same as last time if that is less than six minutes ago.
    fn of(&mut self, told: Told, now: Instant, new: impl FnOnce() -> T) -> T {
        self.0.retain(|_, (_, last)| now.duration_since(*last) < SERIES);
        if self.0.len() >= SERIES_MOST && !self.0.contains_key(&told) {
            // The next of these is a new event, which tells more rather than less.
            self.0.clear();
        }
        let (known, last) = self.0.entry(told).or_insert_with(|| (new(), now));
        *last = now;
        known.clone()
    }
}

fn reference(policy: &PolicyReference) -> ObjectReference {
    ObjectReference {
        api_version: Some(API_VERSION.to_owned()),
        kind: Some(kind(policy.kind).to_owned()),
        name: Some(policy.name.clone()),
        namespace: policy.namespace.clone(),
        uid: Some(policy.uid.clone()),
        ..ObjectReference::default()
    }
}

/// The kind as the API server writes it.
pub(crate) fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Policy => "Policy",
        Kind::ClusterPolicy => "ClusterPolicy",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_with_another_note_is_not_counted_with_the_one_before() {
        let (mut series, start) = (Series(HashMap::new()), Instant::now());
        let mut of = |uid: &str, reason: &'static str, note: &str, second: u64, new: u32| {
            let told = (uid.to_owned(), reason, note.to_owned());
            series.of(told, start + Duration::from_secs(second), || new)
        };
        assert_eq!(of("u", "WebhookRepaired", "it was changed", 0, 1), 1);
        assert_eq!(of("u", "WebhookRepaired", "it was changed", 359, 2), 1, "an equal one is counted");
        assert_eq!(of("u", "WebhookRepaired", "it was deleted", 359, 3), 3);
        assert_eq!(of("v", "WebhookRepaired", "it was changed", 359, 4), 4);
        assert_eq!(of("u", "WaitingForReplicas", "it was changed", 359, 5), 5);
        assert_eq!(of("u", "WebhookRepaired", "it was changed", 700, 6), 1, "since the last one, not the first");
        assert_eq!(of("u", "WebhookRepaired", "it was changed", 1060, 7), 7, "six minutes are over");
    }

    #[test]
    fn only_so_many_events_are_remembered() {
        let (mut series, now) = (Series(HashMap::new()), Instant::now());
        for number in 0..=SERIES_MOST {
            series.of((number.to_string(), "WebhookRepaired", String::new()), now, || ());
        }
        assert!(series.0.len() <= SERIES_MOST);
    }
}
