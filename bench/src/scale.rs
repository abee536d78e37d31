//! The control plane at scale: reports of many replicas on many policies, against a real API server and the real leader.
//!
//! There are no pods: the benchmark writes the reports that reporters of pods would write, one small write per replica and change, and a
//! real reporter holds the Lease and merges them. Goal P11: with 300 replicas and 1000 policies, one edit costs at most one small write
//! per replica and 3 more, the status follows in under 3 s, and no object is larger than 64 KiB.
//!
//! ```text
//!  writers (one per replica) ──► ReplicaReport ──► API server ──► reporter, leading ──► status of policies ──► watcher
//! ```

mod site;
mod watcher;
mod writers;

use std::time::{Duration, Instant};

use anyhow::ensure;
use portcullis_e2e::{Cluster, Options};
use portcullis_process::parse_duration;
use serde::Serialize;

use crate::report::{Output, Samples, print};
use site::Site;
use watcher::{Sizes, Watcher};
use writers::Writers;

/// The time limit for anything that should take seconds.
const LIMIT: Duration = Duration::from_secs(600);
/// The longest message of a failure, in bytes.
const WORDS: usize = 1024;

/// The arguments.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many replicas report.
    #[arg(long, default_value = "300", value_parser = clap::value_parser!(u32).range(1..=1000))]
    replicas: u32,

    /// How many policies there are.
    #[arg(long, default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=5000))]
    policies: u32,

    /// How many edits are measured.
    #[arg(long, default_value = "10")]
    edits: u32,

    /// How long nothing happens but heartbeats.
    #[arg(long, default_value = "1m", value_parser = parse_duration)]
    idle: Duration,

    /// How many reports are written at a time.
    #[arg(long, default_value = "16")]
    writers: usize,
}

/// The results of one phase.
#[derive(Debug, Serialize)]
struct Row {
    phase: &'static str,
    reports_written: u64,
    kib_a_report: u64,
    status_writes: u64,
    /// From the last report to the last status, in seconds.
    status_p50_s: f64,
    status_p99_s: f64,
    writes_a_minute: u64,
    largest_report_kib: u64,
    largest_policy_kib: u64,
    reporter_cpu_s: f64,
    reporter_rss_mib: u64,
}

impl Args {
    /// Runs the benchmark.
    pub(crate) async fn run(self, output: &Output) -> anyhow::Result<()> {
        let cluster = tokio::task::block_in_place(|| Cluster::start(&Options::default()))?;
        eprintln!("making {} policies and {} replicas", self.policies, self.replicas);
        let mut site = Site::start(&cluster, self.replicas, self.policies).await?;
        let watcher = Watcher::start(&site).await?;
        site.start_leader()?;
        let mut writers = Writers::new(&site, self.writers);
        let rows = [
            self.fill(&site, &watcher, &mut writers).await?,
            self.edits(&site, &watcher, &mut writers).await?,
            self.idle(&site, &watcher, &mut writers).await?,
            self.failure(&site, &watcher, &mut writers).await?,
        ];
        drop(watcher);
        tokio::task::block_in_place(|| drop(site));
        print(output, "scale", &rows)
    }

    /// Measures that all replicas come up at once.
    async fn fill(&self, site: &Site<'_>, watcher: &Watcher, writers: &mut Writers) -> anyhow::Result<Row> {
        let phase = Phase::begin("all come up", site, watcher, writers)?;
        writers.write_all().await?;
        let start = Instant::now();
        let summary = format!("{0}/{0}", self.replicas);
        watcher
            .until(LIMIT, |state| state.values().filter(|one| one.summary == summary).count() == site.policies.len())
            .await?;
        let mut samples = Samples::default();
        samples.push(start.elapsed());
        phase.end(site, watcher, writers, &samples)
    }

    /// Measures edits: one policy is edited, and all replicas follow.
    async fn edits(&self, site: &Site<'_>, watcher: &Watcher, writers: &mut Writers) -> anyhow::Result<Row> {
        let phase = Phase::begin("one edit", site, watcher, writers)?;
        let mut samples = Samples::default();
        let summary = format!("{0}/{0}", self.replicas);
        for edit in 0..self.edits {
            let policy = edit as usize % site.policies.len();
            let generation = site.edit(policy, &format!("edit {edit}")).await?;
            writers.serve(policy, generation);
            writers.write_all().await?;
            let start = Instant::now();
            let name = &site.policies[policy].name;
            watcher
                .until(LIMIT, |state| {
                    state.get(name).is_some_and(|one| one.generation >= generation && one.summary == summary)
                })
                .await?;
            samples.push(start.elapsed());
        }
        phase.end(site, watcher, writers, &samples)
    }

    /// Measures an idle fleet: each replica renews its report once a minute, and no policy changes.
    async fn idle(&self, site: &Site<'_>, watcher: &Watcher, writers: &mut Writers) -> anyhow::Result<Row> {
        let phase = Phase::begin("idle", site, watcher, writers)?;
        let mut pace = tokio::time::interval(Duration::from_secs(60) / self.replicas);
        let start = Instant::now();
        let mut replica = 0;
        while start.elapsed() < self.idle {
            pace.tick().await;
            writers.write_one(replica).await?;
            replica = (replica + 1) % self.replicas as usize;
        }
        phase.end(site, watcher, writers, &Samples::default())
    }

    /// Measures a failure: one policy fails on all replicas, with the longest possible message.
    async fn failure(&self, site: &Site<'_>, watcher: &Watcher, writers: &mut Writers) -> anyhow::Result<Row> {
        let phase = Phase::begin("one fails everywhere", site, watcher, writers)?;
        let generation = site.edit(0, "a failure").await?;
        writers.fail(0, generation, &"x".repeat(WORDS));
        writers.write_all().await?;
        let start = Instant::now();
        let name = &site.policies[0].name;
        watcher
            .until(LIMIT, |state| {
                state
                    .get(name)
                    .is_some_and(|one| one.generation >= generation && one.failed == i64::from(self.replicas))
            })
            .await?;
        let mut samples = Samples::default();
        samples.push(start.elapsed());
        phase.end(site, watcher, writers, &samples)
    }
}

/// The counters at the beginning of a phase.
struct Phase {
    name: &'static str,
    start: Instant,
    written: (u64, u64),
    status_writes: u64,
    cpu: Duration,
}

impl Phase {
    fn begin(name: &'static str, site: &Site<'_>, watcher: &Watcher, writers: &Writers) -> anyhow::Result<Self> {
        eprintln!("{name}");
        let (cpu, _) = site.leader_usage()?;
        Ok(Self {
            name,
            start: Instant::now(),
            written: writers.written(),
            status_writes: watcher.status_writes(),
            cpu,
        })
    }

    fn end(self, site: &Site<'_>, watcher: &Watcher, writers: &Writers, samples: &Samples) -> anyhow::Result<Row> {
        let (writes, bytes) = writers.written();
        let (writes, bytes) = (writes - self.written.0, bytes - self.written.1);
        ensure!(writes > 0, "{}: no report was written", self.name);
        let status_writes = watcher.status_writes() - self.status_writes;
        let Sizes { report, policy } = watcher.sizes(writers);
        let (cpu, rss) = site.leader_usage()?;
        let minutes = self.start.elapsed().as_secs_f64() / 60.0;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "writes of a minute are few and positive"
        )]
        let writes_a_minute = ((writes + status_writes) as f64 / minutes) as u64;
        Ok(Row {
            phase: self.name,
            reports_written: writes,
            kib_a_report: (bytes / writes).div_ceil(1024),
            status_writes,
            status_p50_s: samples.quantile(0.5) / 1e3,
            status_p99_s: samples.quantile(0.99) / 1e3,
            writes_a_minute,
            largest_report_kib: report.div_ceil(1024),
            largest_policy_kib: policy.div_ceil(1024),
            reporter_cpu_s: cpu.saturating_sub(self.cpu).as_secs_f64(),
            reporter_rss_mib: rss >> 20,
        })
    }
}
