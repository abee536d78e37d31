//! The measurements of one variant with one number of policies. Pure.

use std::time::Duration;

use serde::Serialize;

use crate::report::{Samples, median};
use crate::usage::mib;

/// The creates of one round.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// How long the admitted creates took.
    pub(super) times: Samples,
    /// How many creates were not admitted.
    pub(super) failed: u32,
    /// The processor time that the API server used in the meantime.
    pub(super) api_server: Duration,
    pub(super) evaluator: Duration,
    pub(super) memory: Memory,
}

/// The memory of an API server, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Memory {
    /// The anonymous memory that is resident.
    pub(super) resident: u64,
    /// The memory in use after a garbage collection; `None` if the API server does not report it.
    pub(super) live: Option<f64>,
}

/// The measurements of all rounds.
#[derive(Debug, Default)]
pub(super) struct Point {
    batches: Vec<Batch>,
}

/// The figures of a point: medians of the rounds, and the p99 of all creates. `None` if nothing was measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Figures {
    pub(super) creates: usize,
    pub(super) failed: u32,
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    /// Processor time per create.
    pub(super) api_server_cpu_ms: Option<f64>,
    pub(super) evaluator_cpu_ms: Option<f64>,
    pub(super) api_server_mib: Option<f64>,
    pub(super) api_server_live_mib: Option<f64>,
}

impl Batch {
    /// The processor time per create, in milliseconds; `None` without creates.
    fn each(&self, cpu: Duration) -> Option<f64> {
        let admitted = u32::try_from(self.times.len()).unwrap_or(u32::MAX);
        let creates = admitted.saturating_add(self.failed);
        (creates > 0).then(|| cpu.as_secs_f64() * 1e3 / f64::from(creates))
    }

    fn quantile(&self, share: f64) -> Option<f64> {
        (self.times.len() > 0).then(|| self.times.quantile(share))
    }
}

impl Point {
    /// Adds a round.
    pub(super) fn add(&mut self, batch: Batch) {
        self.batches.push(batch);
    }

    /// The figures so far.
    pub(super) fn figures(&self) -> Figures {
        let mut all = Batch::default();
        for batch in &self.batches {
            all.times.extend(batch.times.clone());
            all.failed += batch.failed;
        }
        Figures {
            creates: all.times.len(),
            failed: all.failed,
            p50_ms: self.middle(|batch| batch.quantile(0.5)),
            p99_ms: all.quantile(0.99),
            api_server_cpu_ms: self.middle(|batch| batch.each(batch.api_server)),
            evaluator_cpu_ms: self.middle(|batch| batch.each(batch.evaluator)),
            api_server_mib: self.middle(|batch| Some(mib(batch.memory.resident))),
            api_server_live_mib: self.middle(|batch| batch.memory.live.map(|bytes| bytes / f64::from(1 << 20))),
        }
    }

    /// The median of a figure over the rounds.
    fn middle(&self, figure: impl Fn(&Batch) -> Option<f64>) -> Option<f64> {
        let figures: Vec<f64> = self.batches.iter().filter_map(figure).collect();
        (!figures.is_empty()).then(|| median(figures))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(times: &[u64], failed: u32, cpu: u64, mib: u64) -> Batch {
        let mut batch = Batch { failed, api_server: Duration::from_millis(cpu), ..Batch::default() };
        times.iter().for_each(|ms| batch.times.push(Duration::from_millis(*ms)));
        batch.memory = Memory { resident: mib << 20, live: Some(f64::from(2 << 20)) };
        batch
    }

    #[test]
    fn figures_are_medians_of_the_rounds_and_the_p99_is_of_all_creates() {
        let mut point = Point::default();
        point.add(batch(&[1, 2, 3], 1, 8, 300));
        point.add(batch(&[4, 5, 6], 0, 30, 500));
        point.add(batch(&[90, 90, 90], 0, 90, 400));
        let expected = Figures {
            creates: 9,
            failed: 1,
            p50_ms: Some(5.0),
            p99_ms: Some(90.0),
            api_server_cpu_ms: Some(10.0),
            evaluator_cpu_ms: Some(0.0),
            api_server_mib: Some(400.0),
            api_server_live_mib: Some(2.0),
        };
        assert_eq!(point.figures(), expected);
    }

    #[test]
    fn what_was_not_measured_has_no_figures() {
        assert_eq!(Point::default().figures(), Figures::default());
        let mut failed = Point::default();
        failed.add(batch(&[], 2, 10, 1));
        let figures = failed.figures();
        assert_eq!((figures.creates, figures.failed, figures.p50_ms, figures.p99_ms), (0, 2, None, None));
        assert_eq!(figures.api_server_cpu_ms, Some(5.0));
    }
}
