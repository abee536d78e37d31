//! When progress of a long download is logged.

use std::time::{Duration, Instant};

/// How long a job runs before the first line.
const FIRST: Duration = Duration::from_secs(10);

/// How long one job has run, and when its next line is due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProgressLog {
    since: Instant,
    next: Duration,
}

impl ProgressLog {
    /// The job begins to run.
    pub(crate) fn new(since: Instant) -> Self {
        Self { since, next: FIRST }
    }

    /// How long the job has run.
    pub(crate) fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// How long the job has run, if a line is due: after ten seconds, and then each time this has doubled.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Duration> {
        let elapsed = self.elapsed(now);
        if elapsed < self.next {
            return None;
        }
        while self.next <= elapsed {
            self.next *= 2;
        }
        Some(elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_told_more_and_more_seldom() {
        let start = Instant::now();
        let mut progress_log = ProgressLog::new(start);
        let told = (0..=100).filter(|second| progress_log.due(start + Duration::from_secs(*second)).is_some());
        assert_eq!(told.collect::<Vec<u64>>(), [10, 20, 40, 80]);
        let mut progress_log = ProgressLog::new(start);
        assert_eq!(progress_log.due(start + Duration::from_secs(75)), Some(Duration::from_secs(75)));
        assert_eq!(progress_log.due(start + Duration::from_secs(79)), None);
    }
}
