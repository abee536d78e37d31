//! The latency of other policies while some callers run an endless loop.
//!
//! Goal P7: p99 at most three times the undisturbed one, with up to four times as many offenders as cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use portcullis_testkit::guest;
use serde::Serialize;

use crate::plot::{Axis, Panel, Plot, Scale};
use crate::pod::{FILL, Folder, examples};
use crate::report::{Output, median, print_with_plot};

/// Latencies of the other policy, by the number of offenders.
pub(crate) const PLOT: Plot = Plot {
    benchmark: "isolation",
    description: "Median and 99th percentile of the latency of another policy by the number of callers of an endless loop",
    x: Axis { field: "offenders", title: "callers of the endless loop", scale: Scale::Linear },
    panels: &[Panel { title: "latency, ms", scale: Scale::Linear, fields: &["p50_ms", "p99_ms"] }],
    panel_for_each: &[],
    line_for_each: &[],
};

/// The settings.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The numbers of concurrent callers of the endless policy; a line for each.
    #[arg(long, value_delimiter = ',', default_value = "0,1,2,4,8")]
    offenders: Vec<usize>,

    /// How long a round takes.
    #[arg(long, default_value = "4s", value_parser = portcullis_process::parse_duration)]
    time: Duration,

    /// The number of rounds; the medians of their figures are printed.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

#[derive(Serialize)]
struct Row {
    offenders: usize,
    p50_ms: f64,
    p99_ms: f64,
    largest_ms: f64,
    /// The p99 as a multiple of the p99 in the first line.
    times_undisturbed: f64,
    per_second: f64,
    errors: usize,
    offender_answers: usize,
}

#[derive(Default)]
struct Rounds {
    p50: Vec<f64>,
    p99: Vec<f64>,
    largest: Vec<f64>,
    per_second: Vec<f64>,
    errors: usize,
    offender_answers: usize,
}

impl Args {
    pub(crate) async fn run(&self, output: &Output) -> anyhow::Result<()> {
        let folder = Folder::new()?;
        folder.policy("endless", &guest("endless_loop"), &serde_json::json!({}), false)?;
        let canary = std::fs::read(examples().join("modules/no-privileged.wasm"))?;
        folder.policy("canary", &canary, &serde_json::json!({}), false)?;
        folder.fill(&folder.path("volume"), 2, FILL)?;
        let evaluator = folder.evaluator(&folder.path("volume"), &folder.path("private"))?;
        let body = Bytes::from(crate::review::pod(false));
        let (canary, endless) = (evaluator.target("cluster/canary"), evaluator.target("cluster/endless"));
        canary.load(1, Duration::from_millis(500), &body).await?;

        let mut all: Vec<Rounds> = self.offenders.iter().map(|_| Rounds::default()).collect();
        for _ in 0..self.rounds {
            for (offenders, rounds) in self.offenders.iter().zip(&mut all) {
                let stop = Arc::new(AtomicBool::new(false));
                let attack = tokio::spawn({
                    let (endless, body, stop, offenders) =
                        (endless.clone(), body.clone(), Arc::clone(&stop), *offenders);
                    async move { endless.load_until(offenders, &body, stop, None).await }
                });
                tokio::time::sleep(Duration::from_millis(200)).await;
                let load = canary.load(1, self.time, &body).await?;
                stop.store(true, Ordering::Relaxed);
                rounds.offender_answers += attack.await??.answers();
                rounds.p50.push(load.judged.quantile(0.5));
                rounds.p99.push(load.judged.quantile(0.99));
                rounds.largest.push(load.judged.quantile(1.0));
                rounds.per_second.push(load.judged_per_second());
                rounds.errors += load.unjudged();
            }
        }
        let undisturbed = all.first().map_or(1.0, |rounds| median(rounds.p99.clone()));
        let rows: Vec<Row> = self
            .offenders
            .iter()
            .zip(all)
            .map(|(offenders, rounds)| {
                let p99 = median(rounds.p99);
                Row {
                    offenders: *offenders,
                    p50_ms: median(rounds.p50),
                    p99_ms: p99,
                    largest_ms: median(rounds.largest),
                    times_undisturbed: p99 / undisturbed,
                    per_second: median(rounds.per_second),
                    errors: rounds.errors,
                    offender_answers: rounds.offender_answers,
                }
            })
            .collect();
        print_with_plot(output, &PLOT, &rows)
    }
}
