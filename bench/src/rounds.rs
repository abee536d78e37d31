//! Rounds of a load on servers that take turns: latency, throughput, and processor time for each request. Medians of the rounds are the
//! figures.

use std::time::Duration;

use bytes::Bytes;
use portcullis_process::parse_duration;
use serde::Serialize;

use crate::load::{Load, Target};
use crate::pod::Evaluator;
use crate::report::median;
use crate::usage::Usage;

/// The settings of rounds.
#[derive(clap::Args)]
pub(crate) struct Rounds {
    /// The number of concurrent callers.
    #[arg(long, value_delimiter = ',', default_value = "1,8,64")]
    callers: Vec<usize>,

    /// How long a round takes.
    #[arg(long, default_value = "3s", value_parser = parse_duration)]
    time: Duration,

    /// The number of rounds; the medians of their figures are printed.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// A server that is measured.
pub(crate) struct Server {
    /// Its name in the results.
    pub(crate) name: String,
    /// The path at which it is asked.
    pub(crate) target: Target,
    /// The process whose time is counted.
    pub(crate) pid: u32,
}

/// The figures for one number of callers.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) callers: usize,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) p99_9_ms: f64,
    pub(crate) per_second: f64,
    /// Processor time per request.
    pub(crate) cpu_ms: f64,
    /// Calls without a verdict.
    pub(crate) errors: usize,
}

/// The figures of all rounds.
#[derive(Debug, Default)]
struct Measured {
    p50: Vec<f64>,
    p99: Vec<f64>,
    p99_9: Vec<f64>,
    per_second: Vec<f64>,
    cpu: Vec<f64>,
    errors: usize,
}

impl Server {
    /// An evaluator of this repository.
    pub(crate) fn portcullis(target: Target, evaluator: &Evaluator) -> Self {
        Self { name: "portcullis".to_owned(), target, pid: evaluator.pid() }
    }
}

impl Rounds {
    /// Measures the servers with each number of callers. Returns the name of a server with each of its figures.
    pub(crate) async fn measure(&self, servers: &[Server], body: &Bytes) -> anyhow::Result<Vec<(String, Figures)>> {
        let mut figures = Vec::new();
        for &callers in &self.callers {
            let mut all: Vec<Measured> = servers.iter().map(|_| Measured::default()).collect();
            for _ in 0..self.rounds {
                for (server, measured) in servers.iter().zip(&mut all) {
                    let before = Usage::of(server.pid)?.cpu;
                    let load = server.target.load(callers, self.time, body).await?;
                    measured.add(&load, Usage::of(server.pid)?.cpu.saturating_sub(before));
                }
            }
            for (server, measured) in servers.iter().zip(all) {
                figures.push((server.name.clone(), measured.figures(callers)));
            }
        }
        Ok(figures)
    }
}

impl Measured {
    /// Adds a round, in which the server used this processor time.
    fn add(&mut self, load: &Load, cpu: Duration) {
        #[expect(clippy::cast_precision_loss, reason = "far fewer calls than a float has exact integers")]
        let answers = load.answers().max(1) as f64;
        self.p50.push(load.judged.quantile(0.5));
        self.p99.push(load.judged.quantile(0.99));
        self.p99_9.push(load.judged.quantile(0.999));
        self.per_second.push(load.judged_per_second());
        self.cpu.push(cpu.as_secs_f64() * 1e3 / answers);
        self.errors += load.unjudged();
    }

    fn figures(self, callers: usize) -> Figures {
        Figures {
            callers,
            p50_ms: median(self.p50),
            p99_ms: median(self.p99),
            p99_9_ms: median(self.p99_9),
            per_second: median(self.per_second),
            cpu_ms: median(self.cpu),
            errors: self.errors,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(ms: u64) -> Load {
        let mut load = Load { errors: 1, time: Duration::from_millis(10 * ms), ..Load::default() };
        (0..10).for_each(|_| load.judged.push(Duration::from_millis(ms)));
        load
    }

    #[test]
    fn figures_are_medians_of_the_rounds_and_all_errors() {
        let mut measured = Measured::default();
        for ms in [2, 50, 4] {
            measured.add(&load(ms), Duration::from_millis(10 * ms));
        }
        let figures = measured.figures(8);
        assert_eq!((figures.callers, figures.errors, figures.cpu_ms), (8, 3, 4.0));
        assert_eq!((figures.p50_ms, figures.p99_9_ms, figures.per_second), (4.0, 4.0, 250.0));
    }
}
