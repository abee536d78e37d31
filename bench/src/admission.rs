//! What policies add to the creation of a pod, through a real API server: with webhooks of match groups, and with one webhook per policy.
//!
//! Each number of policies has a namespace of its own, so that all exist at the same time and creates are interleaved.
//! Goal P12: with 20 policies of one match part the p50 of a create is at most 5 ms above that without any, and the API server
//! spends at most 1.5 ms more of a processor on it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use http::Method;
use kube::Client;
use portcullis_e2e::{Cluster, Installation, InstallationOptions, Options, PodSetup, Program, SERVICE};
use serde::Serialize;
use serde_json::json;

use crate::api::{self, send};
use crate::report::{Output, Samples, print};
use crate::review;
use crate::usage::{self, Usage};

/// The installation's name and namespace.
const NAME: &str = "admission";
/// How many pods are created between two measurements of the programs' usage.
const BATCH: u32 = 25;
/// Label of the namespaces; the value is the lane's name.
const LANE: &str = "portcullis-bench";
/// How long it may take until a policy is enforced.
const LIMIT: Duration = Duration::from_secs(60);

/// The arguments.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many pods are created for each number of policies.
    #[arg(long, default_value = "300", value_parser = clap::value_parser!(u32).range(1..))]
    creates: u32,

    /// Numbers of policies; 0 is always among them.
    #[arg(long, value_delimiter = ',', default_value = "1,5,20", value_parser = clap::value_parser!(u32).range(1..=100))]
    policies: Vec<u32>,

    /// Also measure with one webhook per policy, made by hand.
    #[arg(long)]
    webhook_per_policy: bool,
}

/// The results for one number of policies.
#[derive(Debug, Serialize)]
struct Row {
    policies: u32,
    webhooks: u32,
    p50_ms: f64,
    p99_ms: f64,
    p50_above_none_ms: f64,
    /// Processor time per create.
    api_server_cpu_ms: f64,
    api_server_cpu_above_none_ms: f64,
    evaluator_cpu_ms: f64,
}

/// A namespace and its measurements.
struct Lane {
    name: String,
    namespace: String,
    policies: u32,
    webhooks: u32,
    times: Samples,
    api_server: Duration,
    evaluator: Duration,
}

impl Args {
    /// Runs the benchmark.
    pub(crate) async fn run(self, output: &Output) -> anyhow::Result<()> {
        Cluster::require_own_network();
        let cluster = tokio::task::block_in_place(|| Cluster::start(&Options::default()))?;
        let installation = tokio::task::block_in_place(|| {
            let installation = Installation::start(&cluster, InstallationOptions::named(NAME)).with(0);
            // Webhooks made by hand call policies at the policies' own paths.
            installation.add_replica_with(PodSetup::default().flag(Program::Evaluator, "--policy-paths", "on"));
            installation.wait_ready();
            installation
        });
        let mut lanes = tokio::task::block_in_place(|| self.lanes(&installation))?;
        let client = api::client(&cluster).await?;
        for lane in &lanes {
            wait_enforced(&client, lane).await?;
        }
        eprintln!("creating {} pods in each of {} namespaces", self.creates, lanes.len());
        let api_server = usage::child_named("kube-apiserver")?;
        let replicas = installation.replicas();
        let evaluator = replicas.first().and_then(|pod| pod.program(Program::Evaluator).pid());
        let evaluator = evaluator.context("the evaluator does not run")?;
        // The first batch warms caches and connections.
        for batch in 0..=self.creates.div_ceil(BATCH) {
            for lane in &mut lanes {
                lane.batch(&client, batch, (api_server, evaluator)).await?;
            }
        }
        tokio::task::block_in_place(|| drop(installation));
        print(output, "admission", &rows(&lanes))
    }

    /// Creates the namespaces and their policies, and waits until the controller has enforced all of them.
    fn lanes(&self, installation: &Installation<'_>) -> anyhow::Result<Vec<Lane>> {
        let mut lanes = vec![Lane::new(installation, "none".to_owned(), 0, 0)?];
        let mut policies = Vec::new();
        for &number in &self.policies {
            let lane = Lane::new(installation, format!("group-{number}"), number, 1)?;
            let names = (0..number).map(|i| name(number, i));
            policies.extend(names.map(|name| {
                let selector = json!({"matchLabels": {LANE: lane.name}});
                let policy = installation.cluster_policy(&name).example("no-privileged");
                policy.field("namespaceSelector", selector)
            }));
            lanes.push(lane);
        }
        eprintln!("applying {} policies", policies.len());
        installation.apply_ready(&policies);
        if self.webhook_per_policy {
            for &number in &self.policies {
                let lane = Lane::new(installation, format!("each-{number}"), number, number)?;
                for i in 0..number {
                    by_hand(installation, &lane.name, &name(number, i))?;
                }
                lanes.push(lane);
            }
        }
        Ok(lanes)
    }
}

/// The `i`th of this number of policies.
fn name(number: u32, i: u32) -> String {
    format!("bench-{number}-{i}")
}

/// Registers a webhook for a single policy.
fn by_hand(installation: &Installation<'_>, lane: &str, policy: &str) -> anyhow::Result<()> {
    let (api, namespace) = (installation.api(), installation.namespace());
    let secret = api.get(&format!("/api/v1/namespaces/{namespace}/secrets/portcullis-{NAME}-tls"));
    let authority = secret.context("there is no certificate")?["data"]["ca.crt"].clone();
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {
            "name": format!("{lane}-{policy}"),
            // It is deleted with the installation.
            "labels": {"policies.portcullis.dev/policy-server": NAME},
        },
        "webhooks": [{
            "name": format!("{policy}.bench.portcullis.dev"), "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail", "timeoutSeconds": 10,
            "clientConfig": {
                "service": {"namespace": namespace, "name": SERVICE, "port": 443, "path": format!("/validate/cluster/{policy}")},
                "caBundle": authority,
            },
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
            "namespaceSelector": {"matchLabels": {LANE: lane}},
        }],
    });
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let reply = api.create(path, &webhook).map_err(anyhow::Error::msg)?;
    ensure!(reply.is_ok(), "the API server refused a webhook made by hand: {}", reply.body["message"]);
    Ok(())
}

/// Waits until a privileged pod is denied, by every policy that should.
async fn wait_enforced(client: &Client, lane: &Lane) -> anyhow::Result<()> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "privileged-"},
        "spec": {"containers": [{"name": "main", "image": "none", "securityContext": {"privileged": true}}]},
    });
    let (start, path) = (Instant::now(), format!("{}?dryRun=All", lane.pods()));
    loop {
        let denied = send(client, Method::POST, &path, "application/json", &pod).await.err();
        let text = denied.map(|error| format!("{error:#}")).unwrap_or_default();
        // With one webhook per policy, the message may be that of any of them.
        if lane.policies == 0 && text.is_empty() || lane.policies > 0 && text.contains("privileged") {
            return Ok(());
        }
        ensure!(start.elapsed() < LIMIT, "{} policies of {} are not enforced: {text}", lane.policies, lane.name);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

impl Lane {
    fn new(installation: &Installation<'_>, name: String, policies: u32, webhooks: u32) -> anyhow::Result<Self> {
        let namespace = installation.make_namespace(&name);
        let labels = json!({"metadata": {"labels": {LANE: name}}});
        let patched = installation.api().patch(&format!("/api/v1/namespaces/{namespace}"), &labels);
        ensure!(patched.map_err(anyhow::Error::msg)?.is_ok(), "failed to label the namespace {namespace}");
        let (api_server, evaluator) = (Duration::ZERO, Duration::ZERO);
        Ok(Self { name, namespace, policies, webhooks, times: Samples::default(), api_server, evaluator })
    }

    fn pods(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.namespace)
    }

    /// Creates some pods one after the other, and removes them outside of the measured time. Batch 0 does not count.
    async fn batch(&mut self, client: &Client, number: u32, processes: (u32, u32)) -> anyhow::Result<()> {
        let usage = || anyhow::Ok((Usage::of(processes.0)?.cpu, Usage::of(processes.1)?.cpu));
        let (before, mut times) = (usage()?, Samples::default());
        for i in 0..BATCH {
            let pod = review::to_create(&format!("pod-{number}-{i}"));
            let start = Instant::now();
            send(client, Method::POST, &self.pods(), "application/json", &pod).await?;
            times.push(start.elapsed());
        }
        let after = usage()?;
        if number > 0 {
            self.times.extend(times);
            self.api_server += after.0.saturating_sub(before.0);
            self.evaluator += after.1.saturating_sub(before.1);
        }
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
        send(client, Method::DELETE, &self.pods(), "application/json", &options).await?;
        // The API server's work after the deletions must not count towards the next pods.
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok(())
    }

    fn cpu_ms(&self, cpu: Duration) -> f64 {
        let creates = u32::try_from(self.times.len()).unwrap_or(u32::MAX).max(1);
        (cpu / creates).as_secs_f64() * 1e3
    }
}

fn rows(lanes: &[Lane]) -> Vec<Row> {
    let none = lanes.first().map(|lane| (lane.times.quantile(0.5), lane.cpu_ms(lane.api_server))).unwrap_or_default();
    let row = |lane: &Lane| {
        let (p50, cpu) = (lane.times.quantile(0.5), lane.cpu_ms(lane.api_server));
        Row {
            policies: lane.policies,
            webhooks: lane.webhooks,
            p50_ms: p50,
            p99_ms: lane.times.quantile(0.99),
            p50_above_none_ms: p50 - none.0,
            api_server_cpu_ms: cpu,
            api_server_cpu_above_none_ms: cpu - none.1,
            evaluator_cpu_ms: lane.cpu_ms(lane.evaluator),
        }
    };
    lanes.iter().map(row).collect()
}
