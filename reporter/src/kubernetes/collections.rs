//! The collections that the leader watches.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client};
use portcullis_api::kubernetes::{BoundedObject, ClusterPolicy, Policy};
use portcullis_api::revision::POLICY_SERVER_LABEL;
use portcullis_kubernetes::{Failures, watch};
use serde_json::json;
use tokio::sync::mpsc;

use super::args::Settings;
use super::object::reports;
use super::store::{Change, Collection};

/// Objects in a page of a list, so few that a page of the largest policies stays below the largest answer that is read.
const PAGE: u32 = 80;
/// Reports in a page; they are larger than policies.
const REPORTS_PAGE: u32 = 50;
/// How much longer than its own limit kube waits for a silent watch.
const SLACK: Duration = Duration::from_secs(5);
/// Longest watch that kube asks for, in seconds.
const LONGEST_WATCH: u32 = 294;

/// The collections, and the name of each watch in metrics.
pub(super) fn collections(
    client: &Client,
    settings: &Settings,
) -> [(Collection, &'static str, Api<BoundedObject>, watcher::Config); 4] {
    let namespace = &settings.identity.namespace;
    let seconds = settings.watch_limit.saturating_sub(SLACK).as_secs().clamp(1, LONGEST_WATCH.into());
    let timeout = seconds.try_into().unwrap_or(LONGEST_WATCH);
    let config = |page| watcher::Config::default().page_size(page).timeout(timeout);
    let policies = |resource: ApiResource| Api::all_with(client.clone(), &resource);
    let slices = ApiResource::erase::<EndpointSlice>(&());
    let reports_of = format!("{POLICY_SERVER_LABEL}={}", settings.identity.policy_server);
    let slices_of = format!("kubernetes.io/service-name={}", settings.service);
    [
        (Collection::Policies, "watch policies", policies(ApiResource::erase::<Policy>(&())), config(PAGE)),
        (
            Collection::ClusterPolicies,
            "watch clusterpolicies",
            policies(ApiResource::erase::<ClusterPolicy>(&())),
            config(PAGE),
        ),
        (
            Collection::Reports,
            "watch replicareports",
            reports(client.clone(), namespace),
            config(REPORTS_PAGE).labels(&reports_of),
        ),
        (
            Collection::Endpoints,
            "watch endpointslices",
            Api::namespaced_with(client.clone(), namespace, &slices),
            config(PAGE).labels(&slices_of),
        ),
    ]
}

/// Sends the changes of a collection until the receiver is gone.
pub(super) async fn follow(
    collection: Collection,
    api: Api<BoundedObject>,
    config: watcher::Config,
    failures: Failures,
    sender: mpsc::Sender<(Collection, Change)>,
) {
    let mut events = pin!(watch(api, config, failures));
    let mut listed = Vec::new();
    while let Some(event) = events.next().await {
        let change = match event {
            watcher::Event::Init => {
                listed.clear();
                continue;
            }
            watcher::Event::InitApply(object) => {
                listed.push(json!(object));
                continue;
            }
            watcher::Event::InitDone => Change::Listed(std::mem::take(&mut listed)),
            watcher::Event::Apply(object) => Change::Put(json!(object)),
            watcher::Event::Delete(object) => Change::Gone(json!(object)),
        };
        if sender.send((collection, change)).await.is_err() {
            return;
        }
    }
}
