//! The collections that the leader watches.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use portcullis_api::kubernetes::{BoundedObject, ClusterPolicy, Policy, PolicyHead};
use portcullis_api::revision::POLICY_SERVER_LABEL;
use portcullis_kubernetes::{Failures, watch};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc;

use super::args::Settings;
use super::object::reports;
use super::store::{Change, Collection};

/// Objects in a page of a list. A policy can have 1.5 MB, and a page is there as bytes and as text while it is read.
const PAGE: u32 = 20;
/// Reports in a page. One can have a megabyte, and takes several while it is read.
const REPORTS_PAGE: u32 = 5;
/// How much longer than its own limit kube waits for a silent watch.
const SLACK: Duration = Duration::from_secs(5);
/// Longest watch that kube asks for, in seconds.
const LONGEST_WATCH: u32 = 294;

/// The objects of a collection, as they are read.
pub(super) enum Objects {
    /// Policies, which users write.
    Heads(Api<PolicyHead>),
    /// Objects that programs write.
    Whole(Api<BoundedObject>),
}

/// The collections, and the name of each watch in metrics.
pub(super) fn collections(
    client: &Client,
    settings: &Settings,
) -> [(Collection, &'static str, Objects, watcher::Config); 4] {
    let namespace = &settings.identity.namespace;
    let limited = |page, limit| watcher::Config::default().page_size(page).timeout(timeout(limit));
    let config = |page| limited(page, settings.watch_limit);
    let policies = |resource: ApiResource| Objects::Heads(Api::all_with(client.clone(), &resource));
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
            Objects::Whole(reports(client.clone(), namespace)),
            limited(REPORTS_PAGE, settings.reports_watch_limit()).labels(&reports_of),
        ),
        (
            Collection::Endpoints,
            "watch endpointslices",
            Objects::Whole(Api::namespaced_with(client.clone(), namespace, &slices)),
            config(PAGE).labels(&slices_of),
        ),
    ]
}

/// The time limit of a watch, in seconds, by which its silence is noticed after `limit`. Below [`SLACK`] it is noticed as soon as can be.
fn timeout(limit: Duration) -> u32 {
    let seconds = limit.saturating_sub(SLACK).as_secs().clamp(1, LONGEST_WATCH.into());
    seconds.try_into().unwrap_or(LONGEST_WATCH)
}

/// Sends the changes of a collection until the receiver is gone.
pub(super) async fn follow(
    collection: Collection,
    objects: Objects,
    config: watcher::Config,
    failures: Failures,
    sender: mpsc::Sender<(Collection, Change)>,
) {
    match objects {
        Objects::Heads(api) => send(collection, api, config, failures, sender).await,
        Objects::Whole(api) => send(collection, api, config, failures, sender).await,
    }
}

async fn send<K>(
    collection: Collection,
    api: Api<K>,
    config: watcher::Config,
    failures: Failures,
    sender: mpsc::Sender<(Collection, Change)>,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Into<Value> + Send + 'static,
{
    let mut events = pin!(watch(api, config, failures));
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
        let change = match event {
            watcher::Event::Init => {
                listed.clear();
                continue;
            }
            // One by one, so that a list is never in memory as a whole.
            watcher::Event::InitApply(object) => {
                listed.extend(object.meta().uid.clone());
                Change::Read(object.into())
            }
            watcher::Event::InitDone => Change::Listed(std::mem::take(&mut listed)),
            watcher::Event::Apply(object) => Change::Put(object.into()),
            watcher::Event::Delete(object) => Change::Gone(object.into()),
        };
        if sender.send((collection, change)).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::extract::Request;
    use serde_json::json;

    use super::*;
    use crate::kubernetes::args::tests::settings;

    #[tokio::test]
    async fn the_silence_of_reports_is_noticed_before_the_replicas_count_as_silent() {
        let answer = |_: Request| std::future::pending::<String>();
        let client = Client::new(Router::new().fallback(answer).into_service(), "default");
        let settings = settings(&["--namespace", "ns", "--service", "s"]).expect("fine").expect("wanted");
        let timeouts = collections(&client, &settings).map(|(collection, _, _, config)| (collection, config.timeout));
        let [policies, cluster_policies, (_, Some(reports)), endpoints] = timeouts else { panic!("{timeouts:?}") };
        let others = [policies, cluster_policies, endpoints].map(|(_, timeout)| timeout);
        assert_eq!((others, reports), ([Some(294); 3], 62));
        let noticed = Duration::from_secs(reports.into()) + SLACK;
        assert!(noticed + settings.heartbeat < settings.report_lifetime, "{noticed:?}");
        assert_eq!(timeout(Duration::from_millis(100)), 1);
    }

    #[tokio::test]
    async fn a_list_is_handed_on_one_by_one_while_it_is_read() {
        let answer = |request: Request| async move {
            let query = request.uri().query().unwrap_or_default();
            if query.contains("watch=true") {
                std::future::pending::<()>().await;
            }
            let (names, more) = if query.contains("continue=") { (vec!["c"], "") } else { (vec!["a", "b"], "next") };
            let item =
                |name: &&str| json!({"metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": "1"}});
            let items: Vec<Value> = names.iter().map(item).collect();
            json!({"metadata": {"resourceVersion": "5", "continue": more}, "items": items}).to_string()
        };
        let client = Client::new(Router::new().fallback(answer).into_service(), "default");
        let api: Api<PolicyHead> = Api::all_with(client, &ApiResource::erase::<ClusterPolicy>(&()));
        let (sender, mut changes) = mpsc::channel(1);
        let failures = Failures::new("watch", |error| panic!("{error}"));
        let follow =
            follow(Collection::ClusterPolicies, Objects::Heads(api), watcher::Config::default(), failures, sender);
        let following = tokio::spawn(follow);
        let mut found = Vec::new();
        let uids = loop {
            let change = tokio::time::timeout(Duration::from_secs(60), changes.recv()).await.expect("a change in time");
            match change.expect("a change").1 {
                Change::Read(object) => found.push(object["metadata"]["name"].as_str().unwrap_or_default().to_owned()),
                Change::Listed(uids) => break uids,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(
            (found, uids),
            (["a", "b", "c"].map(str::to_owned).to_vec(), ["a", "b", "c"].map(|name| format!("uid-{name}")).into())
        );
        following.abort();
    }
}
