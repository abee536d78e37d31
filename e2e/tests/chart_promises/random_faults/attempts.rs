//! I6: how often the loaders asked the source.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use portcullis_e2e::Source;

/// The span in which attempts are counted.
const MINUTE: Duration = Duration::from_secs(60);

/// How often a loader may ask for one module in a minute. Its pauses are random ones below two seconds, so one second on average, and the
/// first ones are shorter: 64 attempts are usual, and so many are hardly ever made.
const OF_A_LOADER: usize = 90;

/// How many loaders may begin, or go on, in one minute: those of four replicas, of four more that replace them in a rollout, and of four
/// that were killed. Each begins with short pauses.
const LOADERS: usize = 12;

/// How many policies there are at a time.
const POLICIES: usize = 5;

/// The attempts of a run.
#[derive(Debug)]
pub(super) struct Attempts {
    /// All requests.
    pub(super) requests: usize,
    /// The most requests for one module within a minute. A policy has one module at a time.
    pub(super) most_of_a_module: usize,
    /// The most connections within a minute, also those that the source closed at once.
    pub(super) most_connections: usize,
}

impl Attempts {
    /// The attempts since this moment.
    pub(super) fn since(start: Instant, source: &Source) -> Self {
        let mut modules: HashMap<String, Vec<Instant>> = HashMap::new();
        for (path, at) in source.all_requests().into_iter().filter(|(_, at)| *at >= start) {
            modules.entry(path).or_default().push(at);
        }
        let connections = source.connections().into_iter().filter(|at| *at >= start).collect();
        Self {
            requests: modules.values().map(Vec::len).sum(),
            most_of_a_module: modules.into_values().map(most_in_a_minute).max().unwrap_or(0),
            most_connections: most_in_a_minute(connections),
        }
    }

    /// Asserts that there were no more of them than the pauses between retries allow.
    pub(super) fn assert_bounded(&self) {
        let limit = OF_A_LOADER * LOADERS;
        assert!(self.most_of_a_module <= limit, "more than {limit} a minute for one module (I6): {self:?}");
        assert!(self.most_connections <= limit * POLICIES, "too many connections (I6): {self:?}");
    }
}

/// The largest number of these times within a minute.
fn most_in_a_minute(mut times: Vec<Instant>) -> usize {
    times.sort_unstable();
    let within = |(index, first): (usize, &Instant)| times.partition_point(|at| *at < *first + MINUTE) - index;
    times.iter().enumerate().map(within).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_minute_counts() {
        let start = Instant::now();
        let at = |seconds: &[u64]| seconds.iter().map(|second| start + Duration::from_secs(*second)).collect();
        assert_eq!(most_in_a_minute(at(&[])), 0);
        assert_eq!(most_in_a_minute(at(&[0, 59, 60, 61, 200])), 3);
        assert_eq!(most_in_a_minute(at(&[100, 0, 101])), 2, "they need not be in order");
    }
}
