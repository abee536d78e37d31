//! A scan of many objects with many policies: how long it takes, how much it asks of the API server and of the evaluator, and
//! how admission is affected.
//!
//! The API server, the reporter and the evaluator are real; processes stand in for pods. The reporter is stopped while the policies
//! are created, so that at its first scan all of them are served, no report exists, and it remembers nothing.
//!
//! ```text
//!  ConfigMaps ──► API server ──► reporter ──► evaluator ◄── API server ◄── canary
//!                     ▲             │
//!                     └── reports ──┘
//! ```

mod counters;
mod site;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use portcullis_e2e::{Cluster, Options, Program};
use portcullis_process::parse_duration;
use serde::Serialize;
use tokio::task::block_in_place;

use crate::api;
use crate::canary::{self, Canary, Seen};
use crate::report::{Output, print};
use counters::Counters;
use site::Site;

/// How long a scan may take.
const LIMIT: Duration = Duration::from_secs(4 * 3600);
/// The interval at which memory and counters are read.
const LOOK: Duration = Duration::from_millis(500);
/// The interval of lines about the progress of a scan.
const TELL: Duration = Duration::from_secs(60);

/// The arguments.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many objects there are: ConfigMaps of 1 KiB in 20 namespaces.
    #[arg(long, default_value = "20000", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    objects: u32,

    /// How many policies are asked about each object.
    #[arg(long, default_value = "50", value_parser = clap::value_parser!(u32).range(1..=500))]
    policies: u32,

    /// How many of a hundred objects one in ten policies rejects; each of them gets a report.
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u32).range(0..=100))]
    violating: u32,

    /// The evaluator's --audit-share: the percentage of one core that audits may take.
    #[arg(long, default_value = "25", value_parser = clap::value_parser!(u8).range(1..=100))]
    audit_share: u8,

    /// How many objects are edited before the last scan.
    #[arg(long, default_value = "100")]
    edits: u32,

    /// How long admission is measured without a scan.
    #[arg(long, default_value = "1m", value_parser = parse_duration)]
    calm: Duration,
}

/// The results of one phase.
#[derive(Debug, Serialize)]
struct Row {
    phase: &'static str,
    /// How long the scan took, as the reporter says.
    seconds: f64,
    questions: u64,
    /// Pages of objects and reports that the API server has listed.
    lists: u64,
    report_writes: u64,
    violations: u64,
    reporter_cpu_s: f64,
    /// The largest anonymous memory during the phase.
    reporter_mib: u64,
    evaluator_cpu_s: f64,
    evaluator_mib: u64,
    /// The evaluator's processor time as a share of one core.
    evaluator_percent: f64,
    api_server_cpu_s: f64,
    canary_p50_ms: f64,
    canary_p99_ms: f64,
    /// The p99 as a multiple of the p99 without a scan.
    canary_times_undisturbed: Option<f64>,
    canary_errors: usize,
}

/// What was measured while a phase ran.
#[derive(Debug, Default)]
struct Watched {
    seconds: f64,
    /// The largest anonymous memory, in bytes.
    reporter: u64,
    evaluator: u64,
}

impl Args {
    /// Runs the benchmark.
    pub(crate) async fn run(self, output: &Output) -> anyhow::Result<()> {
        Cluster::require_own_network();
        let cluster = block_in_place(|| Cluster::start(&Options::default()))?;
        let client = api::client(&cluster).await?;
        let site = block_in_place(|| Site::start(&cluster, client, self.audit_share))?;
        let start = Instant::now();
        site.fill(self.objects, self.violating).await?;
        eprintln!("made {} objects in {:.0} s", self.objects, start.elapsed().as_secs_f64());
        canary::wait_enforced(&site.client, &site.canary).await?;
        let calm = self.undisturbed(&site).await?;
        let p99 = calm.canary_p99_ms;
        let rows = [calm, self.first(&site, p99).await?, unchanged(&site, p99).await?, self.edited(&site, p99).await?];
        block_in_place(|| drop(site));
        print(output, "audit", &rows)
    }

    /// Measures without a scan.
    async fn undisturbed(&self, site: &Site<'_>) -> anyhow::Result<Row> {
        eprintln!("no scan, {}", humantime::format_duration(self.calm));
        let before = block_in_place(|| Counters::of(site))?;
        let canary = Canary::start(&site.client, &site.canary);
        let start = Instant::now();
        let is_over = || anyhow::Ok((start.elapsed() >= self.calm).then(|| start.elapsed().as_secs_f64()));
        let watched = block_in_place(|| watch(site, is_over))?;
        let seen = canary.stop().await?;
        block_in_place(|| row("no scan", site, &before, &watched, &seen, None))
    }

    /// Measures the first scan, in which each policy is asked about each object.
    async fn first(&self, site: &Site<'_>, undisturbed: f64) -> anyhow::Result<Row> {
        eprintln!("making {} policies", self.policies);
        let before = block_in_place(|| {
            site.stop_reporter();
            site.add_policies(self.policies)?;
            let before = Counters::of(site)?;
            site.start_reporter();
            anyhow::Ok(before)
        })?;
        canary::wait_enforced(&site.client, &site.canary).await?;
        let questions = u64::from(self.objects) * u64::from(self.policies);
        scan("first scan", site, &before, questions, undisturbed).await
    }

    /// Measures a scan after some objects were edited.
    async fn edited(&self, site: &Site<'_>, undisturbed: f64) -> anyhow::Result<Row> {
        let edits = self.edits.min(self.objects);
        let before = block_in_place(|| {
            let before = Counters::of(site)?;
            site.edit(edits)?;
            site.request_scan()?;
            anyhow::Ok(before)
        })?;
        let questions = u64::from(edits) * u64::from(self.policies);
        scan("some edited", site, &before, questions, undisturbed).await
    }
}

/// Measures a second scan, before which no object and no policy has changed.
async fn unchanged(site: &Site<'_>, undisturbed: f64) -> anyhow::Result<Row> {
    let before = block_in_place(|| {
        let before = Counters::of(site)?;
        site.request_scan()?;
        anyhow::Ok(before)
    })?;
    scan("nothing changed", site, &before, 0, undisturbed).await
}

/// Waits for the end of a scan that asks at least this many questions.
async fn scan(
    phase: &'static str,
    site: &Site<'_>,
    before: &Counters,
    questions: u64,
    undisturbed: f64,
) -> anyhow::Result<Row> {
    eprintln!("{phase}");
    let canary = Canary::start(&site.client, &site.canary);
    let watched = block_in_place(|| {
        let (start, mut last, mut scans) = (Instant::now(), Instant::now(), before.scans);
        watch(site, || {
            // Scans are read before questions: if questions are still missing then, these scans do not include the one
            // that is waited for.
            let Ok(reporter) = site.metrics(Program::Reporter) else { return Ok(None) };
            let Ok(evaluator) = site.metrics(Program::Evaluator) else { return Ok(None) };
            let asked = counters::questions(&evaluator).saturating_sub(before.questions);
            let done = counters::scans(&reporter);
            if asked < questions {
                scans = scans.max(done);
            }
            ensure!(start.elapsed() < LIMIT, "{phase}: no end after {asked} of {questions} questions");
            if last.elapsed() >= TELL {
                last = Instant::now();
                eprintln!("{asked} of {questions} questions");
            }
            let is_over = asked >= questions && done > scans;
            Ok(is_over.then(|| reporter.sum("portcullis_audit_scan_seconds", &[])))
        })
    })?;
    let seen = canary.stop().await?;
    block_in_place(|| row(phase, site, before, &watched, &seen, Some(undisturbed)))
}

/// Watches the memory of reporter and evaluator until `is_over` returns how many seconds the phase took.
fn watch(site: &Site<'_>, mut is_over: impl FnMut() -> anyhow::Result<Option<f64>>) -> anyhow::Result<Watched> {
    let mut watched = Watched::default();
    loop {
        watched.reporter = site.memory(Program::Reporter)?.max(watched.reporter);
        watched.evaluator = site.memory(Program::Evaluator)?.max(watched.evaluator);
        let seconds = is_over()?;
        // Sleeps after the last look too, because some figures are updated a moment after the end of a scan.
        thread::sleep(LOOK);
        if let Some(seconds) = seconds {
            return Ok(Watched { seconds, ..watched });
        }
    }
}

fn row(
    phase: &'static str,
    site: &Site<'_>,
    before: &Counters,
    watched: &Watched,
    seen: &Seen,
    undisturbed: Option<f64>,
) -> anyhow::Result<Row> {
    let after = Counters::of(site)?;
    let cpu = |before: Duration, after: Duration| after.saturating_sub(before).as_secs_f64();
    let evaluator_cpu_s = cpu(before.evaluator_cpu, after.evaluator_cpu);
    let p99 = seen.times.quantile(0.99);
    Ok(Row {
        phase,
        seconds: watched.seconds,
        questions: after.questions.saturating_sub(before.questions),
        lists: after.lists.saturating_sub(before.lists),
        report_writes: after.report_writes.saturating_sub(before.report_writes),
        violations: after.violations,
        reporter_cpu_s: cpu(before.reporter_cpu, after.reporter_cpu),
        reporter_mib: watched.reporter >> 20,
        evaluator_cpu_s,
        evaluator_mib: watched.evaluator >> 20,
        evaluator_percent: evaluator_cpu_s / watched.seconds * 100.0,
        api_server_cpu_s: cpu(before.api_server_cpu, after.api_server_cpu),
        canary_p50_ms: seen.times.quantile(0.5),
        canary_p99_ms: p99,
        canary_times_undisturbed: undisturbed.map(|undisturbed| p99 / undisturbed),
        canary_errors: seen.errors,
    })
}
