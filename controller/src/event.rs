//! Events on policies (docs/design/status-api.md, section 5).

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use portcullis_api::{API_VERSION, Kind, PolicyReference};
use portcullis_kubernetes::CONTROLLER_REPORTING;

/// The longest note, in bytes.
const NOTE: usize = 1024;

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
    recorder: Recorder,
}

impl Events {
    /// `instance` is the name of this Pod.
    pub(crate) fn new(client: Client, instance: &str) -> Self {
        let reporter = Reporter { controller: CONTROLLER_REPORTING.to_owned(), instance: Some(instance.to_owned()) };
        Self { recorder: Recorder::new(client, reporter) }
    }

    pub(crate) async fn write(&self, warning: &PolicyWarning) -> Result<(), kube::Error> {
        let event = Event {
            type_: EventType::Warning,
            reason: warning.reason.to_owned(),
            note: Some(portcullis_contract::truncate(&warning.note, NOTE)),
            action: "ConfigureWebhook".to_owned(),
            secondary: None,
        };
        self.recorder.publish(&event, &reference(&warning.policy)).await
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
