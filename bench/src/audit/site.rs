//! The cluster of the benchmark: an installation that audits, its policies, and the objects that they are about.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use http::Method;
use jiff::Timestamp;
use kube::Client;
use portcullis_api::kubernetes::AUDIT_REQUESTED_ANNOTATION;
use portcullis_e2e::{Cluster, Installation, InstallationOptions, Pod, PodSetup, Policy, Program, eventually};
use serde_json::{Value, json};

use crate::api::send;
use crate::metrics::Metrics;
use crate::usage::{self, Usage};

/// The installation's name and namespace.
const NAME: &str = "audit";
/// How many namespaces have objects, if there are enough.
const NAMESPACES: u32 = 20;
/// How many consecutive objects are in the same namespace.
const TOGETHER: u32 = 100;
/// One policy in this many denies the objects that lack a label.
const ONE_IN: u32 = 10;
/// The label of the objects that policies are about, because Kubernetes puts a ConfigMap of its own into each
/// namespace.
const COUNTED: &str = "counted";
/// The bytes of an object's data.
const DATA: usize = 1024;
/// How many objects are created at the same time.
const AT_A_TIME: usize = 16;

/// The installation and its objects.
pub(super) struct Site<'c> {
    installation: Installation<'c>,
    pod: Arc<Pod>,
    /// A client with the rights of an administrator.
    pub(super) client: Client,
    namespaces: Vec<String>,
    /// The path at which the canary creates pods, which are not stored.
    pub(super) canary: String,
    api_server: u32,
}

impl<'c> Site<'c> {
    /// Installs everything, with one replica and the canary's policy.
    pub(super) fn start(cluster: &'c Cluster, client: Client, audit_share: u8) -> anyhow::Result<Self> {
        cluster.install_open_reports();
        let options = InstallationOptions::named(NAME).auditing("openreports");
        let installation = Installation::start(cluster, options).with(0);
        let setup = PodSetup::default().flag(Program::Evaluator, "--audit-share", audit_share);
        let pod = installation.add_replica_with(setup);
        installation.wait_ready();
        let canary = installation.make_namespace("canary");
        let namespaces = (0..NAMESPACES).map(|number| installation.make_namespace(&format!("{number:02}"))).collect();
        installation.apply_ready(&[installation.cluster_policy("canary").example("no-privileged")]);
        Ok(Self {
            installation,
            pod,
            client,
            namespaces,
            canary: format!("/api/v1/namespaces/{canary}/pods?dryRun=All"),
            api_server: usage::child_named("kube-apiserver")?,
        })
    }

    /// Creates objects, of which `violating` percent lack a label.
    pub(super) async fn fill(&self, objects: u32, violating: u32) -> anyhow::Result<()> {
        let made: Vec<()> = futures::stream::iter(0..objects)
            .map(|number| self.make(number, is_violating(number, violating)))
            .buffer_unordered(AT_A_TIME)
            .try_collect()
            .await?;
        ensure!(made.len() == objects as usize, "not all objects were made");
        Ok(())
    }

    async fn make(&self, number: u32, is_violating: bool) -> anyhow::Result<()> {
        let mut labels = json!({COUNTED: "yes", "app": "shop"});
        if !is_violating {
            labels["team"] = json!("shop");
        }
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name(number), "labels": labels},
            "data": {"settings": "x".repeat(DATA)},
        });
        send(&self.client, Method::POST, &self.config_maps(number), "application/json", &object).await?;
        Ok(())
    }

    /// The path of the collection for the object of this number.
    fn config_maps(&self, number: u32) -> String {
        let namespace = (number / TOGETHER) as usize % self.namespaces.len();
        format!("/api/v1/namespaces/{}/configmaps", self.namespaces[namespace])
    }

    /// Changes the first objects, in a way that does not change any verdict.
    pub(super) fn edit(&self, count: u32) -> anyhow::Result<()> {
        for number in 0..count {
            let path = format!("{}/{}", self.config_maps(number), name(number));
            self.patch(&path, &json!({"data": {"settings": "edited"}}))?;
        }
        Ok(())
    }

    /// Creates policies, and returns when the evaluator serves all of them.
    pub(super) fn add_policies(&self, count: u32) -> anyhow::Result<()> {
        for number in 0..count {
            let policy = self.policy(number).manifest(self.installation.source());
            let path = "/apis/policies.portcullis.dev/v1alpha1/clusterpolicies";
            let reply = self.installation.api().create(path, &policy).map_err(anyhow::Error::msg)?;
            ensure!(reply.is_ok(), "the API server refused a policy: {}", reply.body["message"]);
        }
        // Including the policy of the canary.
        let all = u64::from(count) + 1;
        eventually(&format!("{all} policies that are served"), || {
            let served = self.metrics(Program::Evaluator).ok()?.count("portcullis_policies_loaded", &[]);
            (served >= all).then_some(())
        });
        Ok(())
    }

    /// A policy on all objects. One in ten denies those that lack the label `team`, the others admit everything.
    fn policy(&self, number: u32) -> Policy {
        let label = if number.is_multiple_of(ONE_IN) { "team" } else { "app" };
        let policy = self.installation.cluster_policy(&format!("labels-{number:03}")).example("required-labels");
        let policy = policy.on(&["configmaps"]).field("settings", json!({"labels": [label]}));
        policy.field("objectSelector", json!({"matchLabels": {COUNTED: "yes"}}))
    }

    /// Asks for a scan as `portcullis audit --now` does.
    pub(super) fn request_scan(&self) -> anyhow::Result<()> {
        let annotations =
            json!({"metadata": {"annotations": {AUDIT_REQUESTED_ANNOTATION: Timestamp::now().to_string()}}});
        self.patch(&self.policy(0).path(), &annotations)
    }

    fn patch(&self, path: &str, patch: &Value) -> anyhow::Result<()> {
        let reply = self.installation.api().patch(path, patch).map_err(anyhow::Error::msg)?;
        ensure!(reply.is_ok(), "the API server refused to change {path}: {}", reply.body["message"]);
        Ok(())
    }

    /// Stops the reporter, so that it loses what it remembers.
    pub(super) fn stop_reporter(&self) {
        self.pod.stop(Program::Reporter);
    }

    /// Starts the reporter again, and returns when the pod is ready for requests.
    pub(super) fn start_reporter(&self) {
        self.pod.start(Program::Reporter);
        eventually("a reporter", || self.pod.program(Program::Reporter).pid());
        self.installation.wait_ready();
    }

    /// The metrics of a program of the pod; empty while it is stopped.
    pub(super) fn metrics(&self, program: Program) -> anyhow::Result<Metrics> {
        if !self.pod.program(program).is_alive() {
            return Ok(Metrics::default());
        }
        let (_, text) = self.pod.probe(program, "/metrics").with_context(|| format!("{program} shows no metrics"))?;
        Ok(Metrics(text))
    }

    /// The metrics of the API server.
    pub(super) fn api_server_metrics(&self) -> anyhow::Result<Metrics> {
        let (code, text) = self.installation.api().text("/metrics").map_err(anyhow::Error::msg)?;
        ensure!(code == 200, "the API server shows no metrics: {code}");
        Ok(Metrics(text))
    }

    /// The processor time of a program of the pod; zero while it is stopped.
    pub(super) fn cpu(&self, program: Program) -> anyhow::Result<Duration> {
        let Some(pid) = self.pod.program(program).pid() else { return Ok(Duration::ZERO) };
        Ok(Usage::of(pid)?.cpu)
    }

    /// The processor time of the API server.
    pub(super) fn api_server_cpu(&self) -> anyhow::Result<Duration> {
        Ok(Usage::of(self.api_server)?.cpu)
    }

    /// The anonymous memory of a program of the pod, in bytes.
    pub(super) fn memory(&self, program: Program) -> anyhow::Result<u64> {
        let pid = self.pod.program(program).pid().with_context(|| format!("{program} has ended"))?;
        Ok(usage::Memory::of(pid)?.anonymous)
    }
}

fn name(number: u32) -> String {
    format!("object-{number:06}")
}

/// Whether the object of this number lacks the label, if `percent` percent do.
fn is_violating(number: u32, percent: u32) -> bool {
    // 61 and 100 have no common divisor, so any hundred consecutive numbers have each remainder once.
    (number % 100) * 61 % 100 < percent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_hundred_objects_so_many_lack_the_label() {
        for percent in [0, 5, 100] {
            let count = (700..800).filter(|number| is_violating(*number, percent)).count();
            assert_eq!(count, percent as usize);
        }
    }
}
