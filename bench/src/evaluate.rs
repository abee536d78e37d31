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

use crate::load::{Outcome, Target};
use crate::plot::{Axis, Panel, Plot, Scale};
use crate::pod::{FILL, Folder, Program, examples};
use crate::report::{Output, print_with_plot};
use crate::rounds::{Figures, Rounds, Server};
use crate::workload::{self, Workload};

/// Latency and throughput of each policy, by the number of callers.
pub(crate) const PLOT: Plot = Plot {
    benchmark: "evaluate",
    description: "Median latency and answers per second by the number of callers, for each kind of policy",
    x: Axis { field: "callers", title: "callers", scale: Scale::Logarithmic },
    panels: &[
        Panel { title: "p50, ms", scale: Scale::Logarithmic, fields: &["p50_ms"] },
        Panel { title: "answers per second", scale: Scale::Linear, fields: &["per_second"] },
    ],
    panel_for_each: &[],
    line_for_each: &["policy", "server"],
};

/// The settings.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    rounds: Rounds,

    /// Another server to measure too, for instance https://127.0.0.1:3000.
    #[arg(long)]
    url: Option<String>,

    /// The policy's id at that server.
    #[arg(long, default_value = "no-privileged")]
    policy_id: String,

    /// What is measured. [default: all; go only where the guest in Go can be built]
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
    #[serde(flatten)]
    figures: Figures,
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
            let mut servers = vec![Server::portcullis(evaluator.target("cluster/measured"), &evaluator)];
            if let Some(url) = &self.url {
                let target = Target::parse(&format!("{}/validate/{}", url.trim_end_matches('/'), self.policy_id))?;
                servers.push(Server { name: url.clone(), target, evaluator: None });
            }
            let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            self.measure(&name, true, &servers, &mut rows).await?;
            return print_with_plot(output, &PLOT, &rows);
        }
        for workload in &self.chosen() {
            let folder = Folder::new()?;
            let volume = folder.path("volume");
            let policies = workload.put(&folder)?;
            let manifest = folder.fill(&volume, policies, FILL)?;
            let evaluator = folder.evaluator(&volume, &folder.path("private"))?;
            let target = evaluator.at(workload.path(&manifest)?);
            let _broker = if workload.needs_broker() { Some(connected(&folder, &target).await?) } else { None };
            let servers = [Server::portcullis(target, &evaluator)];
            self.measure(&workload.name(), workload.admits(), &servers, &mut rows).await?;
        }
        print_with_plot(output, &PLOT, &rows)
    }

    /// The workloads that were asked for, or all that can be measured here.
    fn chosen(&self) -> Vec<Workload> {
        if !self.workloads.is_empty() {
            return self.workloads.clone();
        }
        let can_be = |workload: &Workload| *workload != Workload::Go || workload::go_modules().is_some();
        Workload::value_variants().iter().copied().filter(can_be).collect()
    }

    async fn measure(
        &self,
        policy: &str,
        admits: bool,
        servers: &[Server<'_>],
        rows: &mut Vec<Row>,
    ) -> anyhow::Result<()> {
        let body = Bytes::from(crate::review::pod(false));
        for Server { name, target, .. } in servers {
            let answer = target.connect().await?.ask(body.clone()).await?;
            let expected = if admits { "admit" } else { "deny" };
            let is_expected = answer["allowed"] == admits && Outcome::of(&answer) == Outcome::Judged;
            ensure!(is_expected, "{name} does not {expected} what {policy} is asked about: {answer}");
        }
        let measured = self.rounds.measure(servers, &body).await?;
        rows.extend(measured.into_iter().map(|(server, figures)| Row { policy: policy.to_owned(), server, figures }));
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
