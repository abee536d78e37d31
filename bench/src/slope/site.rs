//! The cluster of one curve: policies that are created once, and variants that are put in place one after the other.
//!
//! The controller runs only while policies are created. Its webhooks are then taken away, and put back as they were for each
//! turn of Portcullis, so that no variant pays for the webhooks of another. A running controller would repair them.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use http::Method;
use kube::Client;
use portcullis_e2e::{Cluster, Installation, InstallationOptions, Pod, PodSetup, Program, SERVICE, eventually};
use serde_json::{Value, json};
use tokio::task::block_in_place;

use super::point::Memory;
use super::samples;
use super::scenario::Scenario;
use super::twin::{self, DENIAL, LABEL};
use super::variant::Variant;
use crate::api::{is_ready, send};
use crate::metrics::Metrics;
use crate::usage::{self, Usage};

/// The installation's name and namespace.
const NAME: &str = "slope";
/// How many objects are made at the same time.
const AT_A_TIME: usize = 16;
/// How long it may take until all policies of a step are ready.
const READY_LIMIT: Duration = Duration::from_secs(900);
/// How long Kubernetes may take to check the types of the rules in CEL.
const TYPES_LIMIT: Duration = Duration::from_secs(120);
/// The interval at which objects are read.
const LOOK: Duration = Duration::from_millis(500);
/// The interval of lines about progress.
const TELL: Duration = Duration::from_secs(15);

const POLICIES: &str = "/apis/policies.portcullis.dev/v1alpha1/clusterpolicies";
const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const ADMISSION_POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";

/// What happened to a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Admitted,
    /// It was denied by the rule.
    Denied,
    /// Something else went wrong.
    Failed(String),
}

/// The installation and its policies.
pub(super) struct Site<'c> {
    pub(super) scenario: Scenario,
    installation: Installation<'c>,
    controller: Arc<Pod>,
    replica: Arc<Pod>,
    /// A client with the rights of an administrator.
    client: Client,
    /// The path at which pods are created, which are not stored.
    pods: String,
    api_server: u32,
    /// The manifests of the existing policies, in the order of their numbers.
    policies: Vec<Value>,
    /// The webhooks that the controller made for them.
    webhooks: Vec<Value>,
    /// The service that the webhooks made by hand call, and the authority of its certificate.
    service: Value,
    authority: Value,
}

impl<'c> Site<'c> {
    /// Installs everything, with one replica and no policy.
    pub(super) fn start(cluster: &'c Cluster, client: Client, scenario: Scenario) -> anyhow::Result<Self> {
        let installation = Installation::start(cluster, InstallationOptions::named(NAME));
        // Otherwise the kubelets of these pods would ask the API server several times a second.
        let controller = installation.start_controller_with(PodSetup::default().probed_rarely().env(
            Program::Controller,
            "PORTCULLIS_SHARED_WEBHOOKS",
            &scenario.is_shared().to_string(),
        ));
        // Webhooks made by hand call policies at the policies' own paths.
        let setup = PodSetup::default().probed_rarely().flag(Program::Evaluator, "--policy-paths", "on");
        let replica = installation.add_replica_with(setup);
        installation.wait_ready();
        let namespace = installation.make_namespace("pods");
        let secret = format!("/api/v1/namespaces/{NAME}/secrets/portcullis-{NAME}-tls");
        let secret = installation.api().get(&secret).context("there is no certificate")?;
        Ok(Self {
            scenario,
            controller,
            replica,
            client,
            // Admission is the same in a dry run: only the object is not stored. So there is nothing to delete, and etcd is left out.
            pods: format!("/api/v1/namespaces/{namespace}/pods?dryRun=All"),
            api_server: usage::child_named("kube-apiserver")?,
            policies: Vec::new(),
            webhooks: Vec::new(),
            service: json!({"namespace": NAME, "name": SERVICE, "port": 443}),
            authority: secret["data"]["ca.crt"].clone(),
            installation,
        })
    }

    /// The number of policies.
    pub(super) fn policies(&self) -> u32 {
        u32::try_from(self.policies.len()).unwrap_or(u32::MAX)
    }

    /// How many webhooks a variant has.
    pub(super) fn webhooks(&self, variant: Variant) -> usize {
        match variant {
            Variant::None | Variant::AdmissionPolicy => 0,
            Variant::Portcullis => self.webhooks.len(),
            Variant::WebhookEach => self.policies.len(),
        }
    }

    /// A pod that every policy denies, whether the policy matches the measured pod or not.
    pub(super) fn denied_by_all(&self) -> Value {
        samples::privileged(&self.scenario.labels_for_all(self.policies()))
    }

    /// Creates further policies until there are `count`, and waits until all are ready. Afterwards no variant is in place, but pods
    /// may still be judged for a moment.
    pub(super) async fn grow(&mut self, count: u32) -> anyhow::Result<()> {
        let new: Vec<Value> = (self.policies()..count).map(|number| self.manifest(number)).collect();
        eprintln!("{}: making {} policies more, {count} in all", self.scenario, new.len());
        block_in_place(|| self.start_controller());
        self.make(POLICIES, &new).await?;
        // Without a binding, they cost the API server nothing.
        let twins: Vec<Value> = new.iter().map(twin::admission_policy).collect();
        self.make(ADMISSION_POLICIES, &twins).await?;
        self.policies.extend(new);
        block_in_place(|| {
            self.webhooks = self.wait_ready()?;
            self.wait_types_checked();
            self.controller.stop(Program::Controller);
            anyhow::Ok(())
        })?;
        self.take(Variant::Portcullis).await
    }

    fn manifest(&self, number: u32) -> Value {
        let policy = self.installation.cluster_policy(&format!("slope-{number}")).example("no-privileged");
        let policy = policy.field("objectSelector", self.scenario.object_selector(number));
        policy.manifest(self.installation.source())
    }

    fn start_controller(&self) {
        self.controller.start(Program::Controller);
        eventually("a controller", || self.controller.program(Program::Controller).pid());
        self.installation.wait_ready();
    }

    /// Waits until all policies are ready and have their webhooks, and returns these.
    fn wait_ready(&self) -> anyhow::Result<Vec<Value>> {
        let (start, mut last) = (Instant::now(), Instant::now());
        let wanted = (self.policies.len(), self.scenario.webhooks(self.policies()));
        loop {
            let ready =
                items(&self.installation.api().get(POLICIES).unwrap_or_default()).filter(|one| is_ready(one)).count();
            let webhooks = self.installation.webhooks();
            if (ready, webhooks.len()) == wanted {
                return Ok(webhooks.iter().map(twin::once_more).collect());
            }
            let found =
                format!("{ready} of {} policies are ready, with {} of {} webhooks", wanted.0, webhooks.len(), wanted.1);
            ensure!(start.elapsed() < READY_LIMIT, "{found}, after {READY_LIMIT:?}");
            if last.elapsed() >= TELL {
                last = Instant::now();
                eprintln!("{found}");
            }
            thread::sleep(LOOK);
        }
    }

    /// Waits until Kubernetes has checked the types of all rules in CEL, because the API server compiles a rule again when its status
    /// changes.
    fn wait_types_checked(&self) {
        let start = Instant::now();
        let path = format!("{ADMISSION_POLICIES}?labelSelector={}", selector(LABEL));
        let is_checked = |policy: &&Value| !policy["status"]["observedGeneration"].is_null();
        while start.elapsed() < TYPES_LIMIT {
            let list = self.installation.api().get(&path).unwrap_or_default();
            if items(&list).filter(is_checked).count() == self.policies.len() {
                return;
            }
            thread::sleep(LOOK);
        }
        eprintln!("warning: Kubernetes has not checked the types of all rules in CEL after {TYPES_LIMIT:?}; going on");
    }

    /// Puts a variant in place.
    pub(super) async fn put(&self, variant: Variant) -> anyhow::Result<()> {
        match variant {
            Variant::None => Ok(()),
            Variant::Portcullis => self.make(WEBHOOKS, &self.webhooks).await,
            Variant::WebhookEach => {
                self.make(WEBHOOKS, &twin::webhooks(&self.policies, &self.service, &self.authority)).await
            }
            Variant::AdmissionPolicy => {
                self.make(BINDINGS, &self.policies.iter().map(twin::binding).collect::<Vec<_>>()).await
            }
        }
    }

    /// Takes a variant away.
    pub(super) async fn take(&self, variant: Variant) -> anyhow::Result<()> {
        let (path, label) = match variant {
            Variant::None => return Ok(()),
            Variant::Portcullis => (WEBHOOKS, ("policies.portcullis.dev/policy-server", NAME)),
            Variant::WebhookEach => (WEBHOOKS, LABEL),
            Variant::AdmissionPolicy => (BINDINGS, LABEL),
        };
        let path = format!("{path}?labelSelector={}", selector(label));
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        send(&self.client, Method::DELETE, &path, "application/json", &options).await?;
        Ok(())
    }

    async fn make(&self, path: &str, objects: &[Value]) -> anyhow::Result<()> {
        let made: Vec<Value> = futures::stream::iter(objects)
            .map(|object| send(&self.client, Method::POST, path, "application/json", object))
            .buffer_unordered(AT_A_TIME)
            .try_collect()
            .await?;
        ensure!(made.len() == objects.len(), "not all objects were made");
        Ok(())
    }

    /// Creates a pod without storing it.
    pub(super) async fn create(&self, pod: &Value) -> Answer {
        match send(&self.client, Method::POST, &self.pods, "application/json", pod).await {
            Ok(_) => Answer::Admitted,
            Err(error) => {
                let text = format!("{error:#}");
                if text.contains(DENIAL) { Answer::Denied } else { Answer::Failed(text) }
            }
        }
    }

    /// How many denials by single policies a variant has counted so far.
    pub(super) fn denials(&self, variant: Variant) -> anyhow::Result<u64> {
        match variant {
            Variant::None => Ok(0),
            Variant::Portcullis | Variant::WebhookEach => {
                let (_, text) =
                    self.replica.probe(Program::Evaluator, "/metrics").context("the evaluator shows no metrics")?;
                let labels = ["policy=\"cluster/slope-", "verdict=\"denied\""];
                Ok(Metrics(text).count("portcullis_policy_evaluations_total", &labels))
            }
            Variant::AdmissionPolicy => {
                let labels = ["policy=\"slope-", "enforcement_action=\"deny\""];
                Ok(self.api_server_metrics()?.count("apiserver_validating_admission_policy_check_total", &labels))
            }
        }
    }

    /// The processor time of API server and evaluator so far.
    pub(super) fn cpu(&self) -> anyhow::Result<(Duration, Duration)> {
        let evaluator = self.replica.program(Program::Evaluator).pid().context("the evaluator has ended")?;
        Ok((Usage::of(self.api_server)?.cpu, Usage::of(evaluator)?.cpu))
    }

    /// The memory of the API server, before and after a garbage collection, which this causes.
    pub(super) fn api_server_memory(&self) -> anyhow::Result<Memory> {
        let resident = usage::Memory::of(self.api_server)?.anonymous;
        let (code, _) = self.installation.api().text("/debug/pprof/heap?gc=1").map_err(anyhow::Error::msg)?;
        ensure!(code == 200, "the API server does not collect its garbage: {code}");
        let live = self.api_server_metrics()?.sum("go_gc_heap_live_bytes", &[]);
        Ok(Memory { resident, live: (live > 0.0).then_some(live) })
    }

    fn api_server_metrics(&self) -> anyhow::Result<Metrics> {
        let (code, text) = self.installation.api().text("/metrics").map_err(anyhow::Error::msg)?;
        ensure!(code == 200, "the API server shows no metrics: {code}");
        Ok(Metrics(text))
    }
}

/// The objects of a list.
fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

/// A label and its value, in the form of a query.
fn selector((name, value): (&str, &str)) -> String {
    format!("{}%3D{value}", name.replace('/', "%2F"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_encoded_for_a_query() {
        assert_eq!(selector(LABEL), "portcullis-bench%3Dslope");
        assert_eq!(
            selector(("policies.portcullis.dev/policy-server", "a")),
            "policies.portcullis.dev%2Fpolicy-server%3Da"
        );
    }
}
