//! Answers over TLS: latency, throughput, and processor time for each request.
//!
//! Goals: p50 at most 0.30 ms and p99.9 at most 3 ms with one caller (P2); at most 25 % above the floor in processor time (P3). A host call
//! that the broker answers from its cache adds at most 0.2 ms.

use std::path::PathBuf;

use bytes::Bytes;
use serde::Serialize;

use crate::plot::{Axis, Panel, Plot, Scale};
use crate::pod::{FILL, Folder};
use crate::report::{Output, print_with_plot};
use crate::review;
use crate::rounds::{Figures, Rounds, Server};
use crate::served::{Served, assert_judges};
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

    /// What is measured. [default: all; go only where the guest in Go can be built]
    #[arg(long, value_enum, value_delimiter = ',', conflicts_with = "module")]
    workloads: Vec<Workload>,

    /// A module to measure instead, which must admit a pod with three ordinary containers.
    #[arg(long)]
    module: Option<PathBuf>,

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
        if let Some(path) = &self.module {
            let folder = Folder::new()?;
            folder.policy("measured", &std::fs::read(path)?, &serde_json::from_str(&self.settings)?, false)?;
            folder.fill(&folder.path("volume"), 1, FILL)?;
            let evaluator = folder.evaluator(&folder.path("volume"), &folder.path("private"))?;
            let server = Server::portcullis(evaluator.target("cluster/measured"), &evaluator);
            let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            rows.extend(self.measure(&name, true, server).await?);
            return print_with_plot(output, &PLOT, &rows);
        }
        for workload in self.chosen() {
            let served = Served::start(workload).await?;
            rows.extend(self.measure(&workload.name(), workload.admits(), served.server()).await?);
        }
        print_with_plot(output, &PLOT, &rows)
    }

    /// The workloads that were asked for, or all that can be measured here.
    fn chosen(&self) -> Vec<Workload> {
        if self.workloads.is_empty() { workload::measurable() } else { self.workloads.clone() }
    }

    async fn measure(&self, policy: &str, admits: bool, server: Server) -> anyhow::Result<Vec<Row>> {
        let body = Bytes::from(review::pod(false));
        assert_judges(&server, &body, policy, admits).await?;
        let measured = self.rounds.measure(&[server], &body).await?;
        let row = |(server, figures)| Row { policy: policy.to_owned(), server, figures };
        Ok(measured.into_iter().map(row).collect())
    }
}
