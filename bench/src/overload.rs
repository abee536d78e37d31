//! Many more requests than can be judged: how many are judged, how soon the others are refused, and what it does to memory.
//!
//! Goal P10, with five times as many requests as can be judged: at least 90 % as many are judged as at best, refusals take less than
//! 5 ms, and memory stays flat.
//!
//! The policy computes for some milliseconds, because requests are sent from the same machine: if the policy took 0.1 ms, sending five times
//! as many requests as it can judge would take more processor time than judging them.

use std::pin::pin;
use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use portcullis_process::parse_duration;
use portcullis_testkit::wat;
use serde::Serialize;
use serde_json::json;

use crate::load::Load;
use crate::pod::{Evaluator, FILL, Folder, examples};
use crate::report::{Output, Samples, print};
use crate::review;
use crate::usage::mib;

/// How long requests come before anything is measured.
const WARM_UP: Duration = Duration::from_secs(2);
/// The interval at which memory is read.
const LOOK: Duration = Duration::from_millis(50);
/// How long after a load memory is read for the last time.
const SETTLE: Duration = Duration::from_secs(10);
/// How many rounds of arithmetic the guest computes, as its text has it.
const ROUNDS: &str = "40000000";

/// The settings.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many times more requests come than can be judged.
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u32).range(1..=100))]
    factor: u32,

    /// How long each of the three loads takes.
    #[arg(long, default_value = "30s", value_parser = parse_duration)]
    time: Duration,

    /// The number of callers that show how many requests can be judged: more than this machine has cores.
    #[arg(long, default_value = "8", value_parser = clap::value_parser!(u32).range(1..=500))]
    callers: u32,

    /// What the policy computes for a request, in millions of rounds of arithmetic. A million take 1 to 3 ms.
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    work: u32,
}

#[derive(Debug, Serialize)]
struct Row {
    load: String,
    sent_per_second: f64,
    judged_per_second: f64,
    /// The rate of judged requests, as a share of that of the first load.
    of_first_percent: f64,
    judged_p50_ms: Option<f64>,
    judged_p99_ms: Option<f64>,
    refused: usize,
    refused_p50_ms: Option<f64>,
    refused_p99_ms: Option<f64>,
    /// Requests that were neither judged nor refused: the policy's time was over, or there was no answer.
    failed: usize,
    /// The evaluator's resident memory.
    memory_before_mib: f64,
    memory_most_mib: f64,
    memory_after_mib: f64,
}

/// A load, and the evaluator's resident memory before, at most during, and after it, in bytes.
struct Watched {
    load: Load,
    before: u64,
    most: u64,
    after: u64,
}

impl Args {
    pub(crate) async fn run(&self, output: &Output) -> anyhow::Result<()> {
        let folder = Folder::new()?;
        let text = std::fs::read_to_string(examples().join("../guests/wat/heavy.wat"))?;
        folder.policy("heavy", &wat(&guest(&text, self.work)?), &json!({}), false)?;
        let volume = folder.path("volume");
        folder.fill(&volume, 1, FILL)?;
        let evaluator = folder.evaluator(&volume, &folder.path("private"))?;
        let (target, body) = (evaluator.target("cluster/heavy"), Bytes::from(review::pod(false)));
        let callers = self.callers as usize;
        target.load(callers, WARM_UP, &body).await?;

        eprintln!("{callers} callers");
        let first = watched(&evaluator, target.load(callers, self.time, &body)).await?;
        let best = first.load.judged_per_second();
        ensure!(best > 0.0, "{callers} callers got no verdict in {}", humantime::format_duration(self.time));
        let rate = best * f64::from(self.factor);
        eprintln!("{rate:.0} requests a second, of which {best:.0} can be judged");
        let many = watched(&evaluator, target.load_at(rate, self.time, &body)).await?;
        eprintln!("{callers} callers again");
        let last = watched(&evaluator, target.load(callers, self.time, &body)).await?;
        let rows = [
            first.row(format!("{callers} callers"), best),
            many.row(format!("{} times as many requests", self.factor), best),
            last.row(format!("{callers} callers again"), best),
        ];
        print(output, "overload", &rows)
    }
}

/// Runs a load and reads the evaluator's memory meanwhile.
async fn watched(evaluator: &Evaluator, load: impl Future<Output = anyhow::Result<Load>>) -> anyhow::Result<Watched> {
    let before = evaluator.memory()?.resident;
    let (mut most, mut look) = (before, tokio::time::interval(LOOK));
    let mut load = pin!(load);
    let load = loop {
        tokio::select! {
            ended = &mut load => break ended?,
            _ = look.tick() => most = most.max(evaluator.memory()?.resident),
        }
    };
    tokio::time::sleep(SETTLE).await;
    Ok(Watched { load, before, most, after: evaluator.memory()?.resident })
}

impl Watched {
    /// The figures, where the first load had `best` verdicts a second.
    fn row(&self, name: String, best: f64) -> Row {
        let load = &self.load;
        let quantile = |samples: &Samples, share: f64| (samples.len() > 0).then(|| samples.quantile(share));
        Row {
            load: name,
            sent_per_second: load.sent_per_second(),
            judged_per_second: load.judged_per_second(),
            of_first_percent: load.judged_per_second() / best * 100.0,
            judged_p50_ms: quantile(&load.judged, 0.5),
            judged_p99_ms: quantile(&load.judged, 0.99),
            refused: load.refused.len(),
            refused_p50_ms: quantile(&load.refused, 0.5),
            refused_p99_ms: quantile(&load.refused, 0.99),
            failed: load.failed.len() + load.errors,
            memory_before_mib: mib(self.before),
            memory_most_mib: mib(self.most),
            memory_after_mib: mib(self.after),
        }
    }
}

/// The text of the guest, with `work` million rounds of arithmetic.
fn guest(text: &str, work: u32) -> anyhow::Result<String> {
    ensure!(text.contains(ROUNDS), "the guest does not compute {ROUNDS} rounds");
    Ok(text.replace(ROUNDS, &format!("{work}000000")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_computes_as_much_as_is_asked_for() {
        let text = std::fs::read_to_string(examples().join("../guests/wat/heavy.wat")).expect("a guest");
        let (small, large) = (guest(&text, 1).expect("has rounds"), guest(&text, 1000).expect("has rounds"));
        assert!(small.contains("(i32.const 1000000)") && large.contains("(i32.const 1000000000)"));
        assert!([small, large].iter().all(|text| wat(text).starts_with(b"\0asm")));
        assert!(guest("(module)", 1).is_err());
    }

    #[test]
    fn a_row_has_the_shares_and_times_of_a_load() {
        let mut load = Load { time: Duration::from_secs(2), errors: 4, ..Load::default() };
        (0..90).for_each(|_| load.judged.push(Duration::from_millis(80)));
        (0..6).for_each(|_| load.failed.push(Duration::from_millis(900)));
        (1..=100).for_each(|ms| load.refused.push(Duration::from_millis(ms)));
        let row = Watched { load, before: 1 << 20, most: 3 << 20, after: 2 << 20 }.row("all".to_owned(), 50.0);
        assert_eq!((row.sent_per_second, row.judged_per_second, row.of_first_percent), (100.0, 45.0, 90.0));
        assert_eq!((row.judged_p99_ms, row.refused, row.refused_p50_ms), (Some(80.0), 100, Some(50.0)));
        assert_eq!((row.failed, row.memory_before_mib, row.memory_most_mib, row.memory_after_mib), (10, 1.0, 3.0, 2.0));
    }
}
