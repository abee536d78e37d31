//! From the rename of a manifest to the first answer of the new generation, under load.
//!
//! Goal P6: p99 at most 50 ms for settings, at most 100 ms for another module that is compiled already; no failed call, no
//! answer that mixes two generations.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use portcullis_contract::{CandidateContent, MANIFEST_FILE, Manifest};
use portcullis_process::files;
use serde::Serialize;

use crate::load::Target;
use crate::pod::{Folder, examples};
use crate::report::{Output, Samples, print};
use crate::variant::variant;

/// The settings.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The number of swaps of each kind.
    #[arg(long, default_value_t = 200)]
    swaps: i64,

    /// The number of callers, which send requests all the time.
    #[arg(long, default_value_t = 8)]
    callers: usize,

    /// The module for the swaps of modules; `cargo xtask guests` builds one of 3.3 MB. [default: the example against privileged containers]
    #[arg(long)]
    module: Option<PathBuf>,

    /// Settings of that module, as JSON.
    #[arg(long, default_value = "{}")]
    settings: String,
}

#[derive(Serialize)]
struct Row {
    change: &'static str,
    swaps: usize,
    p50_ms: f64,
    p99_ms: f64,
    largest_ms: f64,
    calls: usize,
    failed: usize,
    mixed: usize,
}

impl Args {
    pub(crate) async fn run(&self, output: &Output) -> anyhow::Result<()> {
        let folder = Folder::new()?;
        let volume = folder.path("volume");
        let labels = std::fs::read(examples().join("modules/required-labels.wasm"))?;
        folder.policy("settings", &labels, &settings(1), false)?;
        let path = self.module.clone().unwrap_or_else(|| examples().join("modules/no-privileged.wasm"));
        let module = std::fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
        let own: serde_json::Value = serde_json::from_str(&self.settings)?;
        for (name, number) in [("module", 1), ("other", 2)] {
            folder.policy(name, &variant(&module, number)?, &own, false)?;
        }
        let mut manifest = folder.fill(&volume, 3, Duration::from_secs(300))?;
        let evaluator = folder.evaluator(&volume, &folder.path("private"))?;

        let rows = [
            self.swaps(&mut manifest, &volume, "settings", &evaluator.target("cluster/settings")).await?,
            self.swaps(&mut manifest, &volume, "module", &evaluator.target("cluster/module")).await?,
        ];
        print(output, "swap", &rows)
    }

    async fn swaps(
        &self,
        manifest: &mut Manifest,
        volume: &std::path::Path,
        change: &'static str,
        target: &Target,
    ) -> anyhow::Result<Row> {
        let body = Bytes::from(crate::review::pod(false));
        let stop = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..self.callers)
            .map(|_| tokio::spawn(caller(target.clone(), body.clone(), Arc::clone(&stop), change == "settings")))
            .collect();
        let mut prober = target.connect().await?;
        let mut samples = Samples::default();
        for generation in 2..2 + self.swaps {
            next(manifest, change, generation)?;
            let bytes = manifest.encode()?;
            files::publish(&volume.join(MANIFEST_FILE), &bytes)?;
            let start = Instant::now();
            loop {
                let response = prober.ask(body.clone()).await?;
                if answered_by(&response) == Some(generation) {
                    break;
                }
                anyhow::ensure!(
                    start.elapsed() < Duration::from_secs(20),
                    "generation {generation} never answered: {response}"
                );
            }
            samples.push(start.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stop.store(true, Ordering::Relaxed);
        let (mut calls, mut failed, mut mixed) = (0, 0, 0);
        for caller in callers {
            let seen = caller.await?;
            calls += seen.0;
            failed += seen.1;
            mixed += seen.2;
        }
        Ok(Row {
            change,
            swaps: samples.len(),
            p50_ms: samples.quantile(0.5),
            p99_ms: samples.quantile(0.99),
            largest_ms: samples.quantile(1.0),
            calls,
            failed,
            mixed,
        })
    }
}

/// Sends requests until `stop` is set; counts calls, failures, and answers whose text is not that of the generation they name.
async fn caller(target: Target, body: Bytes, stop: Arc<AtomicBool>, labels: bool) -> (usize, usize, usize) {
    let (mut calls, mut failed, mut mixed) = (0, 0, 0);
    let mut connection = target.connect().await.ok();
    while !stop.load(Ordering::Relaxed) {
        calls += 1;
        let Some(open) = &mut connection else {
            failed += 1;
            connection = target.connect().await.ok();
            continue;
        };
        match open.ask(body.clone()).await {
            Ok(response) => {
                let message = response["status"]["message"].as_str().unwrap_or_default();
                let generation = answered_by(&response).unwrap_or_default();
                let expected = if labels { message.contains(&label(generation)) } else { response["allowed"] == true };
                if generation == 0 {
                    failed += 1;
                    eprintln!("failed: {response}");
                }
                mixed += usize::from(generation != 0 && !expected);
            }
            Err(error) => {
                failed += 1;
                eprintln!("failed: {error:#}");
                connection = target.connect().await.ok();
            }
        }
    }
    (calls, failed, mixed)
}

/// The generation that is named in an answer.
fn answered_by(response: &serde_json::Value) -> Option<i64> {
    response["auditAnnotations"]["generation"].as_str()?.parse().ok()
}

/// Each generation requires a label of its own, so that a denial shows which settings it comes from.
pub(crate) fn settings(generation: i64) -> serde_json::Value {
    serde_json::json!({"labels": [label(generation)]})
}

fn label(generation: i64) -> String {
    format!("generation-{generation}-label")
}

/// Makes the next generation of the policy: other settings, or the module of the third policy and back.
fn next(manifest: &mut Manifest, change: &str, generation: i64) -> anyhow::Result<()> {
    let name = format!("cluster/{change}");
    if change == "settings" {
        return edit_settings(manifest, &name, generation);
    }
    manifest.number += 1;
    let (policy, other) = (position(manifest, &name)?, position(manifest, "cluster/other")?);
    let spare = manifest.policies[other].candidates[0].clone();
    let used = std::mem::replace(&mut manifest.policies[policy].candidates[0], spare);
    manifest.policies[other].candidates[0] = used;
    // The spare policy keeps its generation; only its artifact is a different one.
    let kept = manifest.policies[other].generation + 1;
    manifest.policies[other].generation = kept;
    manifest.policies[other].candidates[0].generation = kept;
    manifest.policies[policy].generation = generation;
    manifest.policies[policy].candidates[0].generation = generation;
    Ok(())
}

/// Makes the next generation of a policy, with other settings.
pub(crate) fn edit_settings(manifest: &mut Manifest, policy: &str, generation: i64) -> anyhow::Result<()> {
    manifest.number += 1;
    let policy = position(manifest, policy)?;
    let policy = &mut manifest.policies[policy];
    let CandidateContent::Module(module) = &mut policy.candidates[0].content else {
        anyhow::bail!("the policy is a group");
    };
    module.settings = serde_json::value::to_raw_value(&settings(generation))?;
    policy.generation = generation;
    policy.candidates[0].generation = generation;
    Ok(())
}

fn position(manifest: &Manifest, name: &str) -> anyhow::Result<usize> {
    manifest.policies.iter().position(|policy| policy.id.as_str() == name).context("a policy is gone")
}
