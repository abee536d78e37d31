//! Events on the Secrets of the certificates and of the keys of webhook paths.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use portcullis_kubernetes::CONTROLLER_REPORTING;

use super::decide::Which;

/// An event is repeated after this time.
const AGAIN: Duration = Duration::from_secs(3600);
/// The longest note, in bytes.
const NOTE: usize = 1024;

/// The reasons of these events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    /// A certificate should have been renewed and has little time left.
    CertificateExpiring,
    /// The content of a Secret cannot be used, or the Secret cannot be written.
    CertificateInvalid,
    /// Somebody else has replaced the keys of webhook paths.
    PathKeysReplaced,
}

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Self::CertificateExpiring => "CertificateExpiring",
            Self::CertificateInvalid => "CertificateInvalid",
            Self::PathKeysReplaced => "PathKeysReplaced",
        }
    }

    /// What the controller was doing.
    fn action(self) -> &'static str {
        match self {
            Self::CertificateExpiring | Self::CertificateInvalid => "KeepCertificates",
            Self::PathKeysReplaced => "KeepPathKeys",
        }
    }
}

/// Writes events, each at most once an hour.
pub(crate) struct Events {
    client: Client,
    reporter: Reporter,
    written: HashMap<(Reason, Option<Which>), (String, Instant)>,
}

impl Events {
    /// `instance` is the name of this pod.
    pub(crate) fn new(client: Client, instance: &str) -> Self {
        let reporter = Reporter { controller: CONTROLLER_REPORTING.to_owned(), instance: Some(instance.to_owned()) };
        Self { client, reporter, written: HashMap::new() }
    }

    /// Writes a warning about a Secret, unless the same was written within the hour. `which` tells the certificates of a keeper apart.
    pub(crate) async fn warn(&mut self, reason: Reason, which: Option<Which>, secret: &ObjectReference, note: &str) {
        let note = portcullis_contract::truncate(note, NOTE);
        let written = self.written.get(&(reason, which));
        if written.is_some_and(|(before, when)| *before == note && when.elapsed() < AGAIN) {
            return;
        }
        let event = Event {
            type_: EventType::Warning,
            reason: reason.as_str().to_owned(),
            note: Some(note.clone()),
            action: reason.action().to_owned(),
            secondary: None,
        };
        // A new recorder each time: one that wrote an event within the last minutes only increases its count, even if the note differs.
        let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
        match recorder.publish(&event, secret).await {
            Ok(()) => drop(self.written.insert((reason, which), (note, Instant::now()))),
            Err(error) => tracing::warn!(%error, "failed to write an event"),
        }
    }
}
