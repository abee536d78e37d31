//! Answers over TLS: latency, throughput, and processor time for each request.
//!
//! Goals: p50 at most 0.30 ms and p99.9 at most 3 ms with one caller (P2); at most 25 % above the floor in processor time (P3). With
//! `--url`, another server of the same protocol is measured too, interleaved with this one. A host call that the broker answers from its
//! cache adds at most 0.2 ms.

use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use clap::ValueEnum as _;
use serde::Serialize;

use crate::load::{Target, is_judged};
use crate::pod::{Evaluator, Folder, Program, examples};
use crate::report::{Output, median, print};
use crate::workload::Workload;

/// How long a loader may take to compile the measured modules.
const FILL: Duration = Duration::from_secs(120);

/// The settings.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The number of concurrent callers.
    #[arg(long, value_delimiter = ',', default_value = "1,8,64")]
    callers: Vec<usize>,

    /// How long a round takes.
    #[arg(long, default_value = "3s", value_parser = portcullis_process::parse_duration)]
    time: Duration,

    /// The number of rounds; the medians of their figures are printed.
    #[arg(long, default_value_t = 5)]
    rounds: usize,

    /// Another server to measure too, for instance https://127.0.0.1:3000.
    #[arg(long)]
    url: Option<String>,

    /// The policy's id at that server.
    #[arg(long, default_value = "no-privileged")]
    policy_id: String,

    /// What is measured. [default: all]
    #[arg(long, value_enum, value_delimiter = ',', conflicts_with_all = ["module", "url"])]
    workloads: Vec<Workload>,

    /// A module to measure instead, which must admit a pod with three ordinary containers. [default with --url: the example against
    /// privileged containers]
    #[arg(long)]
    module: Option<std::path::PathBuf>,

    /// Settings of the module, as JSON.
    #[arg(long, default_value = "{}", requires = "module")]
    settings: String,
}

#[derive(Serialize)]
struct Row {
    policy: String,
    server: String,
    callers: usize,
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    p99_9_ms: f64,
    cpu_ms: Option<f64>,
    errors: usize,
}

/// The figures of all rounds of one row.
#[derive(Default)]
struct Rounds {
    per_second: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    p99_9: Vec<f64>,
    cpu: Vec<f64>,
    errors: usize,
}

impl Args {
    pub(crate) async fn run(&self, output: &Output) -> anyhow::Result<()> {
        let mut rows = Vec::new();
        if self.module.is_some() || self.url.is_some() {
            let path = self.module.clone().unwrap_or_else(|| examples().join("modules/no-privileged.wasm"));
            let folder = Folder::new()?;
            folder.policy("measured", &std::fs::read(&path)?, &serde_json::from_str(&self.settings)?, false)?;
            folder.fill(&folder.path("volume"), 1, FILL)?;
            let evaluator = folder.evaluator(&folder.path("volume"), &folder.path("private"))?;
            let mut servers = vec![("portcullis".to_owned(), evaluator.target("cluster/measured"), Some(&evaluator))];
            if let Some(url) = &self.url {
                let target = Target::parse(&format!("{}/validate/{}", url.trim_end_matches('/'), self.policy_id))?;
                servers.push((url.clone(), target, None));
            }
            let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            self.measure(&name, true, &servers, &mut rows).await?;
            return print(output, "evaluate", &rows);
        }
        let workloads = if self.workloads.is_empty() { Workload::value_variants() } else { &self.workloads };
        for workload in workloads {
            let folder = Folder::new()?;
            let volume = folder.path("volume");
            let policies = workload.put(&folder)?;
            let manifest = folder.fill(&volume, policies, FILL)?;
            let evaluator = folder.evaluator(&volume, &folder.path("private"))?;
            let target = evaluator.at(workload.path(&manifest)?);
            let _broker = if workload.needs_broker() { Some(connected(&folder, &target).await?) } else { None };
            let servers = [("portcullis".to_owned(), target, Some(&evaluator))];
            self.measure(&workload.name(), workload.admits(), &servers, &mut rows).await?;
        }
        print(output, "evaluate", &rows)
    }

    async fn measure(
        &self,
        policy: &str,
        admits: bool,
        servers: &[(String, Target, Option<&Evaluator>)],
        rows: &mut Vec<Row>,
    ) -> anyhow::Result<()> {
        let body = Bytes::from(crate::review::pod(false));
        for (server, target, _) in servers {
            let answer = target.connect().await?.ask(body.clone()).await?;
            let expected = if admits { "admit" } else { "deny" };
            let is_expected = answer["allowed"] == admits && is_judged(&answer);
            ensure!(is_expected, "{server} does not {expected} what {policy} is asked about: {answer}");
        }
        for callers in &self.callers {
            let mut rounds: Vec<Rounds> = servers.iter().map(|_| Rounds::default()).collect();
            for _ in 0..self.rounds {
                for ((_, target, evaluator), rounds) in servers.iter().zip(&mut rounds) {
                    self.round(target, *evaluator, *callers, &body, rounds).await?;
                }
            }
            for ((server, ..), rounds) in servers.iter().zip(rounds) {
                rows.push(Row {
                    policy: policy.to_owned(),
                    server: server.clone(),
                    callers: *callers,
                    per_second: median(rounds.per_second),
                    p50_ms: median(rounds.p50),
                    p99_ms: median(rounds.p99),
                    p99_9_ms: median(rounds.p99_9),
                    cpu_ms: (!rounds.cpu.is_empty()).then(|| median(rounds.cpu)),
                    errors: rounds.errors,
                });
            }
        }
        Ok(())
    }

    async fn round(
        &self,
        target: &Target,
        evaluator: Option<&Evaluator>,
        callers: usize,
        body: &Bytes,
        rounds: &mut Rounds,
    ) -> anyhow::Result<()> {
        let before = evaluator.map(Evaluator::cpu).transpose()?;
        let load = target.load(callers, self.time, body).await?;
        #[expect(clippy::cast_precision_loss, reason = "far fewer calls than a float has exact integers")]
        let calls = load.latency.len().max(1) as f64;
        if let (Some(evaluator), Some(before)) = (evaluator, before) {
            rounds.cpu.push((evaluator.cpu()? - before).as_secs_f64() * 1e3 / calls);
        }
        rounds.per_second.push(calls / load.time.as_secs_f64());
        rounds.p50.push(load.latency.quantile(0.5));
        rounds.p99.push(load.latency.quantile(0.99));
        rounds.p99_9.push(load.latency.quantile(0.999));
        rounds.errors += load.errors;
        Ok(())
    }
}

/// A broker that answers the policy at `target`.
async fn connected(folder: &Folder, target: &Target) -> anyhow::Result<Program> {
    let broker = folder.loader(&folder.path("volume"))?;
    let (mut connection, body) = (target.connect().await?, Bytes::from(crate::review::pod(false)));
    let mut answer = serde_json::Value::Null;
    for _ in 0..100 {
        answer = connection.ask(body.clone()).await?;
        if answer["status"]["message"].as_str().is_some_and(|message| !message.contains("error")) {
            return Ok(broker);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    anyhow::bail!("the broker does not answer the policy: {answer}")
}
