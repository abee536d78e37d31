//! Watching what decisions are made of, for as long as it takes.
//!
//! Objects are read as they come and decoded one by one, so that an odd one hides no other. The watcher of `kube` lists in pages, keeps
//! its place with bookmarks, starts over after 410, and waits with jitter after failures.

use std::collections::BTreeSet;
use std::pin::pin;

use futures::StreamExt as _;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::ApiResource;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as follow};
use kube::{Api, Client};
use portcullis_api::Kind;
use portcullis_api::kubernetes::{BoundedObject, ClusterPolicy, Policy};
use portcullis_api::revision::POLICY_SERVER_LABEL;
use portcullis_contract::{WebhookKind, clean};
use prometheus::IntCounter;
use tokio::sync::mpsc;

use crate::world::{News, Source};

/// Longest text of a failure in the log, in bytes.
const TEXT: usize = 500;
/// Longest life of one watch, in seconds; a connection that died unnoticed is found soon after.
const WATCH_SECONDS: u32 = 60;
/// How many objects are listed at once. One can have a megabyte and a half, and takes a multiple of that as long as it is read.
const PAGE: u32 = 20;

/// The type of a source's objects.
pub(crate) fn resource(source: Source) -> ApiResource {
    match source {
        Source::Policies(Kind::Policy) => ApiResource::erase::<Policy>(&()),
        Source::Policies(Kind::ClusterPolicy) => ApiResource::erase::<ClusterPolicy>(&()),
        Source::Revisions => ApiResource::erase::<ControllerRevision>(&()),
        Source::Webhooks(WebhookKind::Validating) => ApiResource::erase::<ValidatingWebhookConfiguration>(&()),
        Source::Webhooks(WebhookKind::Mutating) => ApiResource::erase::<MutatingWebhookConfiguration>(&()),
    }
}

/// Tells what one source has, for ever.
pub(crate) async fn watch(
    client: Client,
    source: Source,
    namespace: String,
    policy_server: String,
    failures: IntCounter,
    news: mpsc::Sender<News>,
) {
    let resource = resource(source);
    let selector = format!("{POLICY_SERVER_LABEL}={policy_server}");
    let config = watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE);
    let (api, config): (Api<BoundedObject>, _) = match source {
        Source::Revisions => (Api::namespaced_with(client, &namespace, &resource), config.labels(&selector)),
        // All webhooks: one whose labels somebody changed is to be found by its name.
        Source::Policies(_) | Source::Webhooks(_) => (Api::all_with(client, &resource), config),
    };
    let mut events = pin!(follow(api, config).default_backoff());
    let (mut listed, mut is_troubled) = (BTreeSet::new(), false);
    while let Some(event) = events.next().await {
        let told = match event {
            Ok(event) => {
                if std::mem::take(&mut is_troubled) {
                    tracing::info!(kind = resource.plural, "the API server tells of them again");
                }
                match event {
                    Event::Init => {
                        listed.clear();
                        continue;
                    }
                    // One by one, so that a list is never in memory as a whole.
                    Event::InitApply(object) => {
                        listed.extend(object.0.metadata.uid.clone());
                        News::Applied(source, Box::new(object.0))
                    }
                    Event::InitDone => News::Listed(source, std::mem::take(&mut listed)),
                    Event::Apply(object) => News::Applied(source, Box::new(object.0)),
                    Event::Delete(object) => News::Deleted(source, Box::new(object.0)),
                }
            }
            Err(error) => {
                failures.inc();
                if !std::mem::replace(&mut is_troubled, true) {
                    let problem = clean(&error.to_string(), TEXT);
                    tracing::warn!(
                        kind = resource.plural,
                        problem,
                        "failed to list or watch; what is known goes on, and it is tried again"
                    );
                }
                continue;
            }
        };
        if news.send(told).await.is_err() {
            return;
        }
    }
}
