//! Whether too many evaluations of a policy fail, and for how long (docs/design/status-api.md, section 4.2). Pure.
//!
//! Requests without a verdict because nothing is loaded are not counted here: the policy's conditions report that.

use std::collections::BTreeMap;

use jiff::Timestamp;
use portcullis_contract::Reason;

use crate::metrics::Counts;

/// The share of failed evaluations, in percent, above which an interval is bad.
const PERCENT: u64 = 5;
/// How many intervals the failing must last to be reported; after as many without a request, it is over.
pub(crate) const INTERVALS: u32 = 5;

/// The share of failures of one policy over time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ErrorShare {
    seen: Counts,
    run: Option<Run>,
}

/// A run of bad intervals, without a good one that had requests between them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    since: Timestamp,
    /// The number of intervals from the first bad one to the last, both included.
    length: u32,
    /// The number of intervals without a request since the last bad one.
    quiet: u32,
    failures: BTreeMap<Reason, u64>,
}

impl ErrorShare {
    /// The share of what comes after these counts.
    pub(crate) fn after(counts: Counts) -> Self {
        Self { seen: counts, run: None }
    }

    /// Takes in the counts at the end of an interval that began at `begin`.
    pub(crate) fn turn(&mut self, counts: Counts, begin: Timestamp) {
        let verdicts = counts.verdicts.saturating_sub(self.seen.verdicts);
        let failures: BTreeMap<Reason, u64> = counts
            .failures
            .iter()
            .map(|(reason, count)| {
                (*reason, count.saturating_sub(self.seen.failures.get(reason).copied().unwrap_or(0)))
            })
            .collect();
        self.seen = counts;
        let failed: u64 = failures.values().sum();
        if verdicts + failed == 0 {
            self.run = self.run.take().filter(|run| run.quiet + 1 < INTERVALS);
            self.run.iter_mut().for_each(|run| run.quiet += 1);
        } else if failed * 100 <= (verdicts + failed) * PERCENT {
            self.run = None;
        } else {
            let new = Run { since: begin, length: 0, quiet: 0, failures: BTreeMap::new() };
            let run = self.run.get_or_insert(new);
            run.length = run.length.saturating_add(run.quiet + 1);
            run.quiet = 0;
            for (reason, count) in failures {
                *run.failures.entry(reason).or_default() += count;
            }
        }
    }

    /// Since when too many evaluations fail, and the most frequent reason; none if it has not lasted long enough.
    pub(crate) fn failing(&self) -> Option<(Timestamp, Reason)> {
        let run = self.run.as_ref().filter(|run| run.length >= INTERVALS)?;
        let (reason, _) = run.failures.iter().max_by_key(|(_, count)| **count)?;
        Some((run.since, *reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the intervals after which the policy counts as failing. `intervals` has the verdicts and failures of each; they are one
    /// second long and begin at the epoch.
    fn failing_after(intervals: &[(u64, u64)]) -> Vec<usize> {
        let (mut share, mut counts) = (ErrorShare::default(), Counts::default());
        let mut found = Vec::new();
        for (number, (verdicts, failures)) in intervals.iter().enumerate() {
            counts.verdicts += verdicts;
            *counts.failures.entry(Reason::EvaluationTrapped).or_default() += failures;
            share.turn(counts.clone(), at(number));
            if share.failing().is_some() {
                found.push(number + 1);
            }
        }
        found
    }

    fn at(second: usize) -> Timestamp {
        Timestamp::from_second(i64::try_from(second).expect("small")).expect("a time")
    }

    #[test]
    fn more_than_five_percent_for_five_intervals_is_failing() {
        assert_eq!(failing_after(&[(94, 6); 6]), [5, 6]);
        assert_eq!(failing_after(&[(95, 5); 6]), [0_usize; 0]);
    }

    #[test]
    fn one_good_interval_begins_anew() {
        let mut intervals = [(0, 1); 11];
        intervals[4] = (99, 1);
        assert_eq!(failing_after(&intervals), [10, 11]);
    }

    #[test]
    fn one_failure_is_no_story_and_quiet_intervals_neither_begin_nor_end_one() {
        let quiet = (0, 0);
        assert_eq!(failing_after(&[(0, 1), quiet, quiet, quiet, quiet, quiet]), [0_usize; 0]);
        assert_eq!(failing_after(&[(0, 1), quiet, quiet, quiet, (0, 1), quiet]), [5, 6]);
    }

    #[test]
    fn it_is_over_when_it_is_good_again_or_nobody_asks() {
        let bad = [(0, 1); 5];
        assert_eq!(failing_after(&[&bad[..], &[(1, 0), (0, 0)]].concat()), [5]);
        assert_eq!(failing_after(&[&bad[..], &[(0, 0); 6]].concat()), [5, 6, 7, 8, 9]);
    }

    #[test]
    fn it_says_since_when_and_the_most_frequent_reason() {
        let mut share = ErrorShare::default();
        for second in 1..=6_u64 {
            let failures = [(Reason::EvaluationTrapped, second * 2), (Reason::EvaluationTimedOut, second * 3)];
            share.turn(Counts { verdicts: 0, failures: failures.into() }, at(usize::try_from(second).expect("small")));
        }
        assert_eq!(share.failing(), Some((at(1), Reason::EvaluationTimedOut)));
    }

    #[test]
    fn what_failed_before_a_policy_was_made_again_is_not_counted() {
        let failed = |failures| Counts { verdicts: 10, failures: [(Reason::EvaluationTrapped, failures)].into() };
        let mut share = ErrorShare::after(failed(100));
        for second in 0..INTERVALS as usize - 1 {
            share.turn(failed(100), at(second));
        }
        share.turn(failed(101), at(INTERVALS as usize));
        assert_eq!(share.failing(), None);
    }
}
