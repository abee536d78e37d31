//! How long no scan begins after the last one, so that users whose edits and requests cause scans do not keep the audit reading the whole
//! cluster. Pure.

use std::time::{Duration, Instant};

/// How many times as long as the last scan read is the rest after it: at most a tenth of the time is for reading.
const TIMES: u32 = 9;

/// How long scans read: the time that they take without that in which they wait for answers of policies and write reports. Policies are not
/// asked twice, have a budget, and the evaluator limits their share of the time. So that part neither harms others nor may it, as a slow
/// policy would, put off the scans that others wait for.
#[derive(Debug, Default)]
pub(super) struct Reading {
    read: Duration,
    since: Option<Instant>,
}

impl Reading {
    /// Reading begins or goes on.
    pub(super) fn begin(&mut self, now: Instant) {
        self.stop(now);
        self.since = Some(now);
    }

    /// Reading stops for a while.
    pub(super) fn stop(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.read += now.saturating_duration_since(since);
        }
    }

    /// Ends the scan, or the scans if one was interrupted, and gives the rest after it. With the next scan, or without a change, it is over
    /// after `interval` anyway.
    pub(super) fn rest(&mut self, interval: Duration, now: Instant) -> Duration {
        self.stop(now);
        std::mem::take(&mut self.read).saturating_mul(TIMES).min(interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(60 * 60);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The rest after scans that read in these seconds, each from and to.
    fn rest_after(read: &[(u64, u64)], end: u64) -> Duration {
        let (begin, mut reading) = (Instant::now(), Reading::default());
        for (from, to) in read {
            reading.begin(begin + seconds(*from));
            reading.stop(begin + seconds(*to));
        }
        reading.rest(HOUR, begin + seconds(end))
    }

    #[test]
    fn at_most_a_tenth_of_the_time_is_for_reading() {
        assert_eq!(rest_after(&[], 0), seconds(0), "before the first scan");
        assert_eq!(rest_after(&[(0, 1)], 1), seconds(9));
        assert_eq!(rest_after(&[(0, 60)], 60), seconds(540));
    }

    #[test]
    fn no_rest_is_longer_than_the_interval() {
        assert_eq!(rest_after(&[(0, 1000)], 1000), HOUR);
    }

    #[test]
    fn policies_that_are_slow_put_no_scan_off() {
        assert_eq!(rest_after(&[(0, 1), (301, 302)], 600), seconds(18));
    }

    #[test]
    fn a_scan_that_was_interrupted_counts_and_each_scan_counts_once() {
        let (begin, mut reading) = (Instant::now(), Reading::default());
        reading.begin(begin);
        // The scan was dropped, and another one began.
        reading.begin(begin + seconds(2));
        assert_eq!(reading.rest(HOUR, begin + seconds(5)), seconds(45));
        assert_eq!(reading.rest(HOUR, begin + seconds(500)), seconds(0));
    }
}
