//! Policies that one user applies many times a second while they are checked: what happens to them, and how admission is affected.
//!
//! The API server, the loader and the evaluator are real; processes stand in for pods. Policies are applied as dry runs, which are checked
//! like any apply.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use http::Method;
use kube::Client;
use portcullis_e2e::{Cluster, Installation, InstallationOptions, Options, Pod, Program, eventually};
use portcullis_process::parse_duration;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::{JoinSet, block_in_place};
use tokio::time::MissedTickBehavior;

use crate::api::{self, send};
use crate::canary::{self, Canary};
use crate::metrics::Metrics;
use crate::report::{Output, Samples, print};
use crate::usage::Usage;

/// The installation's name and namespace.
const NAME: &str = "applies";
/// Where ClusterPolicies are applied without being stored.
const PATH: &str = "/apis/policies.portcullis.dev/v1alpha1/clusterpolicies?dryRun=All";

/// The arguments.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many policies are applied each second.
    #[arg(long, default_value = "50", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rate: u32,

    /// How long each phase takes.
    #[arg(long, default_value = "30s", value_parser = parse_duration)]
    duration: Duration,
}

/// The results of one phase.
#[derive(Debug, Serialize)]
struct Row {
    phase: &'static str,
    applies: usize,
    passed: usize,
    refused: usize,
    /// Admitted with a warning that there was no time or no room to check them.
    unchecked: usize,
    apply_p50_ms: f64,
    apply_p99_ms: f64,
    loader_cpu_s: f64,
    evaluator_cpu_s: f64,
    canary_p50_ms: f64,
    canary_p99_ms: f64,
    /// The p99 as a multiple of the p99 with applies that are not checked, which cost the API server as much.
    canary_times_unchecked: Option<f64>,
    canary_errors: usize,
}

/// What happened to the policies of a phase.
#[derive(Debug, Default)]
struct Applied {
    times: Samples,
    refused: usize,
}

/// The installation and its replica.
struct Site<'c> {
    installation: Installation<'c>,
    pod: Arc<Pod>,
    client: Client,
    canary: String,
}

/// Counts since the replica started.
struct Counters {
    passed: u64,
    unchecked: u64,
    loader: Duration,
    evaluator: Duration,
}

impl Args {
    /// Runs the benchmark.
    pub(crate) async fn run(self, output: &Output) -> anyhow::Result<()> {
        Cluster::require_own_network();
        let cluster = block_in_place(|| Cluster::start(&Options::default()))?;
        let client = api::client(&cluster).await?;
        let site = block_in_place(|| Site::start(&cluster, client))?;
        canary::wait_enforced(&site.client, &site.canary).await?;
        let good = site.policy("required-labels", &json!({"labels": ["team"]}));
        let mistake = site.policy("required-labels", &json!({"labels": []}));
        let hanging = site.hanging();
        site.wait_checked(&mistake).await?;
        let calm = self.phase("no applies", &site, None, None).await?;
        let mut of_another = good.clone();
        of_another["spec"]["policyServer"] = "another".into();
        let unchecked = self.phase("of another policy server", &site, Some(of_another), None).await?;
        let p99 = Some(unchecked.canary_p99_ms);
        let rows = [
            calm,
            unchecked,
            self.phase("policies that load", &site, Some(good), p99).await?,
            self.phase("mistakes in settings", &site, Some(mistake), p99).await?,
            self.phase("policies that hang", &site, Some(hanging), p99).await?,
        ];
        block_in_place(|| drop(site));
        print(output, "applies", &rows)
    }

    /// Applies this policy all the time, if there is one, and measures admission in the meantime.
    async fn phase(
        &self,
        phase: &'static str,
        site: &Site<'_>,
        policy: Option<Value>,
        unchecked: Option<f64>,
    ) -> anyhow::Result<Row> {
        eprintln!("{phase}, {}", humantime::format_duration(self.duration));
        let before = block_in_place(|| site.counters())?;
        let canary = Canary::start(&site.client, &site.canary);
        let applied = match policy {
            Some(policy) => self.apply(&site.client, &policy).await?,
            None => {
                tokio::time::sleep(self.duration).await;
                Applied::default()
            }
        };
        let seen = canary.stop().await?;
        let after = block_in_place(|| site.counters())?;
        let p99 = seen.times.quantile(0.99);
        let count = |before: u64, after: u64| usize::try_from(after.saturating_sub(before)).unwrap_or(usize::MAX);
        Ok(Row {
            phase,
            applies: applied.times.len(),
            passed: count(before.passed, after.passed),
            refused: applied.refused,
            unchecked: count(before.unchecked, after.unchecked),
            apply_p50_ms: applied.times.quantile(0.5),
            apply_p99_ms: applied.times.quantile(0.99),
            loader_cpu_s: after.loader.saturating_sub(before.loader).as_secs_f64(),
            evaluator_cpu_s: after.evaluator.saturating_sub(before.evaluator).as_secs_f64(),
            canary_p50_ms: seen.times.quantile(0.5),
            canary_p99_ms: p99,
            canary_times_unchecked: unchecked.map(|unchecked| p99 / unchecked),
            canary_errors: seen.errors,
        })
    }

    /// Applies a policy at the rate, without waiting for answers, and waits for all answers at the end.
    async fn apply(&self, client: &Client, policy: &Value) -> anyhow::Result<Applied> {
        let mut pace = tokio::time::interval(Duration::from_secs(1) / self.rate);
        pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let (start, mut under_way, mut number) = (Instant::now(), JoinSet::new(), 0_u32);
        while start.elapsed() < self.duration {
            pace.tick().await;
            number += 1;
            let mut policy = policy.clone();
            policy["metadata"]["name"] = format!("applied-{number}").into();
            let client = client.clone();
            under_way.spawn(async move {
                let start = Instant::now();
                let outcome = send(&client, Method::POST, PATH, "application/json", &policy).await;
                (start.elapsed(), outcome.err())
            });
        }
        let mut applied = Applied::default();
        while let Some(ended) = under_way.join_next().await {
            let (time, error) = ended?;
            applied.times.push(time);
            if let Some(error) = error {
                let text = format!("{error:#}");
                ensure!(text.contains("denied the request"), "the API server did not take a policy: {text}");
                applied.refused += 1;
            }
        }
        Ok(applied)
    }
}

impl<'c> Site<'c> {
    /// Installs everything, with one replica that checks policies, and the canary's policy.
    fn start(cluster: &'c Cluster, client: Client) -> anyhow::Result<Self> {
        let options = InstallationOptions::named(NAME).checking_policies("deny");
        let installation = Installation::start(cluster, options).with(1);
        let pod = installation.replicas().pop().context("a replica")?;
        let canary = installation.make_namespace("canary");
        installation.apply_ready(&[installation.cluster_policy("canary").example("no-privileged")]);
        Ok(Self { installation, pod, client, canary: format!("/api/v1/namespaces/{canary}/pods?dryRun=All") })
    }

    fn policy(&self, example: &str, settings: &Value) -> Value {
        let policy = self.installation.cluster_policy("applied").example(example).on(&["configmaps"]);
        policy.field("settings", settings.clone()).manifest(self.installation.source())
    }

    /// A policy whose check of its settings never ends.
    fn hanging(&self) -> Value {
        let policy = self.installation.cluster_policy("applied").guest("settings_loop").on(&["configmaps"]);
        policy.field("timeoutSeconds", 30).field("timeoutEvalSeconds", 30).manifest(self.installation.source())
    }

    /// Waits until this invalid policy is refused.
    async fn wait_checked(&self, mistake: &Value) -> anyhow::Result<()> {
        let start = Instant::now();
        while send(&self.client, Method::POST, PATH, "application/json", mistake).await.is_ok() {
            ensure!(start.elapsed() < Duration::from_secs(120), "the API server does not have policies checked");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    fn counters(&self) -> anyhow::Result<Counters> {
        let metrics = eventually("metrics of the evaluator", || self.pod.probe(Program::Evaluator, "/metrics"));
        let metrics = Metrics(metrics.1);
        let checks = |outcome: &str| metrics.count("portcullis_checks_total", &[&format!("outcome=\"{outcome}\"")]);
        let cpu = |program: Program| {
            let pid = self.pod.program(program).pid().with_context(|| format!("{program} has ended"))?;
            anyhow::Ok(Usage::of(pid)?.cpu)
        };
        Ok(Counters {
            passed: checks("passed"),
            unchecked: checks("unknown"),
            loader: cpu(Program::Loader)?,
            evaluator: cpu(Program::Evaluator)?,
        })
    }
}
