//! How long after its timeout an evaluation that never ends is answered.
//!
//! Rows M13 and M15 of the fault catalogue: at most 20 ms later for an endless loop, and at most 50 ms for copies of the whole memory, each
//! of which is one instruction.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::json;

use crate::pod::{FILL, Folder};
use crate::report::{Output, Samples, print};

const BENCHMARK: &str = "timeout";

/// The guests, below `guests/wat`.
const GUESTS: [&str; 2] = ["endless_loop", "bulk_copy_loop"];
/// The timeout of their policies.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The settings.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The numbers of concurrent callers; a line for each, for each guest.
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    callers: Vec<usize>,

    /// How long a round takes.
    #[arg(long, default_value = "10s", value_parser = portcullis_process::parse_duration)]
    time: Duration,

    /// The number of rounds, whose answers count together.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

#[derive(Serialize)]
struct Row {
    guest: &'static str,
    callers: usize,
    /// How long after the timeout the median answer came.
    after_p50_ms: f64,
    /// How long after the timeout the last answer came.
    after_largest_ms: f64,
    timed_out: usize,
    /// Calls that were answered in another way, or not at all.
    others: usize,
}

impl Args {
    pub(crate) async fn run(&self, output: &Output) -> anyhow::Result<()> {
        let folder = Folder::new()?;
        for guest in GUESTS {
            let name = policy(guest);
            let file = folder.module(&name, &portcullis_testkit::guest(guest))?;
            folder.manifest(&name, json!({"module": file, "timeoutEvalSeconds": TIMEOUT.as_secs()}))?;
        }
        folder.fill(&folder.path("volume"), GUESTS.len(), FILL)?;
        let evaluator = folder.evaluator(&folder.path("volume"), &folder.path("private"))?;
        let body = Bytes::from(crate::review::pod(false));

        let lines: Vec<_> = self.callers.iter().flat_map(|callers| GUESTS.map(|guest| (guest, *callers))).collect();
        let mut all: Vec<(Samples, usize)> = lines.iter().map(|_| Default::default()).collect();
        for _ in 0..self.rounds {
            for ((guest, callers), (timed_out, others)) in lines.iter().zip(&mut all) {
                let target = evaluator.target(&format!("cluster/{}", policy(guest)));
                let load = target.load(*callers, self.time, &body).await?;
                *others += load.judged.len() + load.refused.len() + load.errors;
                timed_out.extend(load.failed);
            }
        }
        let rows: Vec<Row> = lines
            .into_iter()
            .zip(all)
            .map(|((guest, callers), (samples, others))| Row {
                guest,
                callers,
                after_p50_ms: after(samples.quantile(0.5)),
                after_largest_ms: after(samples.quantile(1.0)),
                timed_out: samples.len(),
                others,
            })
            .collect();
        print(output, BENCHMARK, &rows)
    }
}

/// The name of the policy with this guest.
fn policy(guest: &str) -> String {
    guest.replace('_', "-")
}

/// The part of a latency in milliseconds that is after the timeout.
fn after(latency_ms: f64) -> f64 {
    latency_ms - TIMEOUT.as_secs_f64() * 1e3
}
