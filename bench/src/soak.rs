//! Load for a long time, with an edit of the policy's settings every few seconds. What grows from line to line is a leak or a slowdown.

use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use portcullis_contract::{MANIFEST_FILE, Manifest};
use portcullis_process::{files, parse_duration};
use serde::Serialize;
use serde_json::json;

use crate::plot::{Axis, Panel, Plot, Scale};
use crate::pod::{FILL, Folder, examples};
use crate::report::{Output, print_with_plot};
use crate::review;
use crate::swap::{edit_settings, settings};
use crate::usage::mib;

/// Latency and memory in the course of time.
pub(crate) const PLOT: Plot = Plot {
    benchmark: "soak",
    description: "Median and 99th percentile of the latency, and resident memory of an evaluator, in the course of the load",
    x: Axis { field: "until_s", title: "time since the start, s", scale: Scale::Linear },
    panels: &[
        Panel { title: "latency, ms", scale: Scale::Linear, fields: &["p50_ms", "p99_ms"] },
        Panel { title: "memory, MiB", scale: Scale::Linear, fields: &["anonymous_mib", "file_mib"] },
    ],
    panel_for_each: &[],
    line_for_each: &[],
};

/// The settings.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long requests come.
    #[arg(long, default_value = "10m", value_parser = parse_duration)]
    time: Duration,

    /// The time that a line of the result is about.
    #[arg(long, default_value = "1m", value_parser = parse_duration)]
    line: Duration,

    /// The time between two edits of the policy.
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    edit_every: Duration,

    /// The number of callers, which send requests all the time.
    #[arg(long, default_value_t = 8)]
    callers: usize,
}

#[derive(Debug, Serialize)]
struct Row {
    until_s: f64,
    edits: i64,
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Requests that were not judged.
    unjudged: usize,
    cpu_us_per_request: f64,
    anonymous_mib: f64,
    file_mib: f64,
}

impl Args {
    pub(crate) async fn run(&self, output: &Output) -> anyhow::Result<()> {
        let folder = Folder::new()?;
        let labels = std::fs::read(examples().join("modules/required-labels.wasm"))?;
        folder.policy("settings", &labels, &settings(1), false)?;
        folder.policy("other", &labels, &json!({"labels": ["other"]}), false)?;
        let volume = folder.path("volume");
        let mut manifest = folder.fill(&volume, 2, FILL)?;
        let evaluator = folder.evaluator(&volume, &folder.path("private"))?;
        let (target, body) = (evaluator.target("cluster/settings"), Bytes::from(review::pod(false)));
        let (mut rows, mut generation, mut until) = (Vec::new(), 1, Duration::ZERO);
        while until < self.time {
            let (before, first) = (evaluator.cpu()?, generation);
            let load = tokio::select! {
                load = target.load(self.callers, self.line.min(self.time - until), &body) => load?,
                error = edits(&mut manifest, &volume, &mut generation, self.edit_every) => bail!("an edit failed: {error:#}"),
            };
            until += load.time;
            let (cpu, memory) = (evaluator.cpu()? - before, evaluator.memory()?);
            let row = Row {
                until_s: until.as_secs_f64(),
                edits: generation - first,
                per_second: load.judged_per_second(),
                p50_ms: load.judged.quantile(0.5),
                p99_ms: load.judged.quantile(0.99),
                unjudged: load.unjudged(),
                cpu_us_per_request: cpu.as_secs_f64() * 1e6 / load.answers().max(1) as f64,
                anonymous_mib: mib(memory.anonymous),
                file_mib: mib(memory.file),
            };
            eprintln!("{:.0} s: {:.0} a second, {:.1} MiB", row.until_s, row.per_second, row.anonymous_mib);
            rows.push(row);
        }
        print_with_plot(output, &PLOT, &rows)
    }
}

/// Gives the policy other settings again and again, until one edit fails.
async fn edits(manifest: &mut Manifest, volume: &Path, generation: &mut i64, every: Duration) -> anyhow::Error {
    loop {
        tokio::time::sleep(every).await;
        let next = *generation + 1;
        let edited = edit_settings(manifest, "cluster/settings", next)
            .and_then(|()| Ok(files::publish(&volume.join(MANIFEST_FILE), &manifest.encode()?)?));
        match edited {
            Ok(()) => *generation = next,
            Err(error) => return error,
        }
    }
}
