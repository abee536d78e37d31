//! Watches the objects that decisions depend on.
//!
//! Objects are decoded one by one as they arrive, so that one that cannot be decoded does not hide the others.

use std::collections::BTreeSet;
use std::pin::pin;

use futures::StreamExt as _;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::ApiResource;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use portcullis_api::Kind;
use portcullis_api::kubernetes::{ClusterPolicy, Outline, Policy};
use portcullis_api::revision::POLICY_SERVER_LABEL;
use portcullis_contract::WebhookKind;
use portcullis_kubernetes::{Failures, watch as watch_collection};
use prometheus::IntCounter;
use tokio::sync::mpsc;

use crate::world::{Change, Collection};

/// Longest life of one watch, in seconds; a connection that died unnoticed is found soon after.
const WATCH_SECONDS: u32 = 60;
/// How many objects one page of a list has. An object can have 1.5 MB, and a page is there as bytes and as text while it is read.
const PAGE: u32 = 20;

/// The type of a collection's objects.
pub(crate) fn resource(collection: Collection) -> ApiResource {
    match collection {
        Collection::Policies(Kind::Policy) => ApiResource::erase::<Policy>(&()),
        Collection::Policies(Kind::ClusterPolicy) => ApiResource::erase::<ClusterPolicy>(&()),
        Collection::Revisions => ApiResource::erase::<ControllerRevision>(&()),
        Collection::Webhooks(WebhookKind::Validating) => ApiResource::erase::<ValidatingWebhookConfiguration>(&()),
        Collection::Webhooks(WebhookKind::Mutating) => ApiResource::erase::<MutatingWebhookConfiguration>(&()),
    }
}

/// Watches one collection for ever and sends on its changes.
pub(crate) async fn watch(
    client: Client,
    collection: Collection,
    namespace: String,
    policy_server: String,
    failures: IntCounter,
    changes: mpsc::Sender<Change>,
) {
    let resource = resource(collection);
    let selector = format!("{POLICY_SERVER_LABEL}={policy_server}");
    let config = watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE);
    let (api, config): (Api<Outline>, _) = match collection {
        Collection::Revisions => (Api::namespaced_with(client, &namespace, &resource), config.labels(&selector)),
        // All webhooks, so that one whose labels were changed is found by its name.
        Collection::Policies(_) | Collection::Webhooks(_) => (Api::all_with(client, &resource), config),
    };
    let doing = match collection {
        Collection::Policies(Kind::Policy) => "watch policies",
        Collection::Policies(Kind::ClusterPolicy) => "watch clusterpolicies",
        Collection::Revisions => "watch revisions",
        Collection::Webhooks(WebhookKind::Validating) => "watch validating webhooks",
        Collection::Webhooks(WebhookKind::Mutating) => "watch mutating webhooks",
    };
    let failures = Failures::new(doing, move |_| failures.inc());
    let mut events = pin!(watch_collection(api, config, failures));
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
        let change = match event {
            Event::Init => {
                listed.clear();
                Change::Listing(collection)
            }
            // One by one, so that a list is never in memory as a whole.
            Event::InitApply(object) => {
                listed.extend(object.metadata.uid.clone());
                Change::InList(collection, Box::new(object))
            }
            Event::InitDone => Change::Listed(collection, std::mem::take(&mut listed)),
            Event::Apply(object) => Change::Applied(collection, Box::new(object)),
            Event::Delete(object) => Change::Deleted(collection, Box::new(object)),
        };
        if changes.send(change).await.is_err() {
            return;
        }
    }
}
