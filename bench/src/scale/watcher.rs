//! Watches policies: their statuses, how often they are written, and how large the objects are.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{Api, ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::core::GroupVersionKind;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::site::Site;
use super::writers::Writers;

/// The fields of a policy's status that the benchmark needs.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) generation: i64,
    pub(super) summary: String,
    pub(super) failed: i64,
}

/// The largest objects, in bytes of JSON.
pub(super) struct Sizes {
    pub(super) report: u64,
    pub(super) policy: u64,
}

#[derive(Debug, Clone, Default)]
struct State {
    policies: HashMap<String, Seen>,
    status_writes: u64,
    largest: u64,
    problem: Option<String>,
}

/// Watches all policies.
pub(super) struct Watcher {
    state: watch::Receiver<State>,
    task: JoinHandle<()>,
}

impl Watcher {
    /// Starts to watch.
    pub(super) async fn start(site: &Site<'_>) -> anyhow::Result<Self> {
        let kind = GroupVersionKind::gvk("policies.portcullis.dev", "v1alpha1", "ClusterPolicy");
        let resource = ApiResource::from_gvk_with_plural(&kind, "clusterpolicies");
        let api: Api<DynamicObject> = Api::all_with(site.client.clone(), &resource);
        let version = api.list(&ListParams::default().limit(1)).await?.metadata.resource_version.unwrap_or_default();
        let (sender, state) = watch::channel(State::default());
        let task = tokio::spawn(async move {
            let Err(error) = follow(&api, version, &sender).await else { return };
            sender.send_modify(|state| state.problem = Some(format!("{error:#}")));
        });
        Ok(Self { state, task })
    }

    /// Waits until the statuses fulfil a condition.
    pub(super) async fn until(
        &self,
        limit: Duration,
        is: impl Fn(&HashMap<String, Seen>) -> bool,
    ) -> anyhow::Result<()> {
        let mut state = self.state.clone();
        let seen = tokio::time::timeout(limit, state.wait_for(|state| state.problem.is_some() || is(&state.policies)));
        let seen = seen.await.context("the statuses did not come")?.context("the watch has ended")?;
        match &seen.problem {
            Some(problem) => anyhow::bail!("failed to watch policies: {problem}"),
            None => Ok(()),
        }
    }

    /// How often a status was written.
    pub(super) fn status_writes(&self) -> u64 {
        self.state.borrow().status_writes
    }

    /// The largest objects so far.
    pub(super) fn sizes(&self, writers: &Writers) -> Sizes {
        Sizes { report: writers.largest(), policy: self.state.borrow().largest }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Counts changes, and watches again if the API server ends the watch.
async fn follow(api: &Api<DynamicObject>, mut version: String, sender: &watch::Sender<State>) -> anyhow::Result<()> {
    let mut generations: HashMap<String, i64> = HashMap::new();
    loop {
        let mut events = api.watch(&WatchParams::default(), &version).await?.boxed();
        while let Some(event) = events.try_next().await? {
            let object = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => object,
                WatchEvent::Error(status) => anyhow::bail!("{}", status.message),
                _ => continue,
            };
            version = object.metadata.resource_version.clone().unwrap_or_default();
            let size = serde_json::to_vec(&object)?.len() as u64;
            let name = object.metadata.name.clone().unwrap_or_default();
            let generation = object.metadata.generation.unwrap_or(0);
            // A change of the generation is an edit of the spec; every other change here is a write of the status.
            let is_edit = generations.insert(name.clone(), generation).unwrap_or(1) != generation;
            let status = &object.data["status"];
            let seen = Seen {
                generation: status["observedGeneration"].as_i64().unwrap_or(0),
                summary: status["summary"].as_str().unwrap_or_default().to_owned(),
                failed: status["replicaCounts"]["failed"].as_i64().unwrap_or(0),
            };
            sender.send_modify(|state| {
                state.status_writes += u64::from(!is_edit);
                state.largest = state.largest.max(size);
                state.policies.insert(name, seen);
            });
        }
    }
}
