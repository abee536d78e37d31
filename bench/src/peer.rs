//! Answers over TLS, beside Kubewarden's policy server with the same policies.
//!
//! Goal P1: with 8 and 64 callers at least five times as many answers as the peer for a policy in Rust, and three times for one in Go.

mod policy_server;

use std::path::PathBuf;

use bytes::Bytes;
use serde::Serialize;

use crate::plot::{Axis, Panel, Plot, Scale};
use crate::report::{Output, print_with_plot};
use crate::review;
use crate::rounds::{Figures, Rounds};
use crate::served::{Served, assert_judges};
use crate::workload::{self, Workload};
use policy_server::PolicyServer;

/// How many times as many answers, and how many times less processor time, by the number of callers.
pub(crate) const PLOT: Plot = Plot {
    benchmark: "peer",
    description: "Ratios to Kubewarden's policy server by the number of callers, for each kind of policy: answers per second, and processor time for each",
    x: Axis { field: "callers", title: "callers", scale: Scale::Logarithmic },
    panels: &[
        Panel { title: "times as many answers", scale: Scale::Linear, fields: &["times_as_many"] },
        Panel { title: "times less processor time", scale: Scale::Linear, fields: &["times_less_cpu"] },
    ],
    panel_for_each: &[],
    line_for_each: &["policy"],
};

/// The settings.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    rounds: Rounds,

    /// The program of Kubewarden's policy server, built for release.
    #[arg(long, value_name = "FILE", default_value = "policy-server")]
    program: PathBuf,

    /// Its number of workers.
    #[arg(long, default_value_t = 2)]
    workers: usize,

    /// What is measured. [default: all that it has too; go only where the guest in Go can be built]
    #[arg(long, value_enum, value_delimiter = ',')]
    workloads: Vec<Workload>,
}

/// The figures of both for one policy and one number of callers.
#[derive(Serialize)]
struct Row {
    policy: String,
    callers: usize,
    p50_ms: f64,
    peer_p50_ms: f64,
    p99_9_ms: f64,
    peer_p99_9_ms: f64,
    per_second: f64,
    peer_per_second: f64,
    times_as_many: f64,
    cpu_ms: f64,
    peer_cpu_ms: f64,
    times_less_cpu: f64,
    errors: usize,
    peer_errors: usize,
}

impl Args {
    pub(crate) async fn run(&self, output: &Output) -> anyhow::Result<()> {
        eprintln!("beside {}", self.version()?);
        let mut rows = Vec::new();
        for workload in self.chosen() {
            let name = workload.name();
            eprintln!("{name}");
            let ours = Served::start(workload).await?;
            let peer = match PolicyServer::start(&self.program, self.workers, &ours.folder) {
                Ok(peer) => peer,
                Err(error) => {
                    eprintln!("{name} is left out: {error:#}");
                    continue;
                }
            };
            let servers = [ours.server(), peer.server("measured")];
            let body = Bytes::from(review::pod(false));
            for server in &servers {
                assert_judges(server, &body, &name, workload.admits()).await?;
            }
            let measured = self.rounds.measure(&servers, &body).await?;
            // The figures of the two servers follow each other.
            let mut figures = measured.into_iter().map(|(_, figures)| figures);
            while let (Some(ours), Some(peer)) = (figures.next(), figures.next()) {
                rows.push(Row::new(&name, &ours, &peer));
            }
        }
        print_with_plot(output, &PLOT, &rows)
    }

    /// The name and version of the peer.
    ///
    /// # Errors
    /// When its program is not here.
    pub(crate) fn version(&self) -> anyhow::Result<String> {
        policy_server::version(&self.program)
    }

    /// The workloads that were asked for, or all that both servers have and that can be measured here.
    fn chosen(&self) -> Vec<Workload> {
        if !self.workloads.is_empty() {
            return self.workloads.clone();
        }
        // One webhook for several policies is only ours.
        workload::measurable().into_iter().filter(|workload| workload.is_one_policy()).collect()
    }
}

impl Row {
    fn new(policy: &str, ours: &Figures, peer: &Figures) -> Self {
        Self {
            policy: policy.to_owned(),
            callers: ours.callers,
            p50_ms: ours.p50_ms,
            peer_p50_ms: peer.p50_ms,
            p99_9_ms: ours.p99_9_ms,
            peer_p99_9_ms: peer.p99_9_ms,
            per_second: ours.per_second,
            peer_per_second: peer.per_second,
            times_as_many: ours.per_second / peer.per_second,
            cpu_ms: ours.cpu_ms,
            peer_cpu_ms: peer.cpu_ms,
            times_less_cpu: peer.cpu_ms / ours.cpu_ms,
            errors: ours.errors,
            peer_errors: peer.errors,
        }
    }
}
