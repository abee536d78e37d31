//! Removes the reports of pods that are gone: a few at a time, and after a pause where the API server has refused. Pure, except for the calls.

use std::time::Instant;

use portcullis_kubernetes::{CallError, Failures, Retry};
use tokio::task::{JoinError, JoinSet};

use super::object::Meta;

/// Most removals at the same time. Those that are left come with the next tick.
const AT_ONCE: usize = 8;

/// The answer to a removal; none, without a call, if this reporter does not lead any more.
pub(crate) type Removed = Option<Result<(), CallError>>;

/// The removals that are under way.
pub(crate) struct Removals {
    calls: JoinSet<Removed>,
    failures: Failures,
    retry: Retry,
    /// No removal begins before this, after a failure: its cause may concern all reports.
    not_before: Instant,
    /// The name of the last report whose removal was begun.
    last: String,
}

impl Removals {
    pub(crate) fn new(failures: Failures, now: Instant) -> Self {
        Self { calls: JoinSet::new(), failures, retry: Retry::default(), not_before: now, last: String::new() }
    }

    /// Whether others may be begun.
    pub(crate) fn may_begin(&self, now: Instant) -> bool {
        self.calls.is_empty() && now >= self.not_before
    }

    /// Begins to remove some of these reports.
    pub(crate) fn begin<F>(&mut self, reports: Vec<Meta>, remove: impl Fn(Meta) -> F)
    where
        F: Future<Output = Removed> + Send + 'static,
    {
        for report in some_behind(&self.last, reports) {
            self.last.clone_from(&report.name);
            self.calls.spawn(remove(report));
        }
    }

    /// The next answer; none if no removal is under way.
    pub(crate) async fn join_next(&mut self) -> Option<Result<Removed, JoinError>> {
        self.calls.join_next().await
    }

    /// Takes in an answer. `random` is from 0 to 1.
    pub(crate) fn ended(&mut self, answer: Result<(), CallError>, random: f64, now: Instant) {
        match answer {
            Ok(()) => {
                self.failures.over();
                self.retry.reset();
            }
            Err(error) => {
                self.failures.failed_at(&error, now);
                // Those that were under way beside it fail in the same way, and are one failure.
                if now >= self.not_before {
                    self.not_before = now + self.retry.pause(&error, random);
                }
            }
        }
    }
}

/// Some of these reports, those with names behind the last one first: reports that stay hold up no others.
fn some_behind(last: &str, mut reports: Vec<Meta>) -> Vec<Meta> {
    reports.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let tried = reports.partition_point(|report| *report.name <= *last);
    reports.rotate_left(tried);
    reports.truncate(AT_ONCE);
    reports
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use portcullis_util::lock;

    use super::*;
    use crate::kubernetes::stub::{api_server, leads, refused};
    use crate::kubernetes::write::remove_report;

    #[tokio::test]
    async fn removals_that_are_refused_are_a_few_calls_and_not_some_every_second() {
        portcullis_process::install_crypto();
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let client = api_server(move |_, _| {
            counted.fetch_add(1, Ordering::Relaxed);
            refused(403)
        });
        let (leadership, _held) = leads(&client).await;
        let (start, mut batches) = (Instant::now(), 0);
        let mut removals = Removals::new(Failures::new("remove reports", |_| ()), start);
        for second in 0..60 {
            let now = start + Duration::from_secs(second);
            if removals.may_begin(now) {
                batches += 1;
                let reports =
                    (0..100).map(|number| Meta { name: format!("pod-{number}"), ..Meta::default() }).collect();
                removals
                    .begin(reports, |report| remove_report(client.clone(), leadership.clone(), "n".to_owned(), report));
            }
            while let Some(removed) = removals.join_next().await {
                removals.ended(removed.expect("no panic").expect("it leads"), 1.0, now);
            }
        }
        // At 0, 1, 2, 3, 5, 9, 17, 32 and 47 seconds.
        assert_eq!(batches, 9);
        assert_eq!(calls.load(Ordering::Relaxed), batches * AT_ONCE);
        assert!(!removals.may_begin(start));
        removals.ended(Ok(()), 1.0, start);
        assert_eq!(removals.retry, Retry::default());
    }

    #[test]
    fn reports_that_stay_hold_up_no_others() {
        let names = |last: &str, count: usize| {
            let reports = (0..count).rev().map(|number| Meta { name: format!("pod-{number:02}"), ..Meta::default() });
            let some = some_behind(last, reports.collect());
            some.iter().map(|report| report.name["pod-".len()..].parse().expect("a number")).collect::<Vec<usize>>()
        };
        assert_eq!(names("", 20), Vec::from_iter(0..8));
        assert_eq!(names("pod-07", 20), Vec::from_iter(8..16));
        assert_eq!(names("pod-15", 20), [16, 17, 18, 19, 0, 1, 2, 3]);
        assert_eq!(names("pod-03a", 6), [4, 5, 0, 1, 2, 3], "the last one may be gone");
        assert_eq!(names("pod-19", 2), [0, 1]);
        assert!(names("pod-19", 0).is_empty());
    }

    #[tokio::test]
    async fn after_eight_reports_others_are_tried() {
        let mut removals = Removals::new(Failures::new("remove reports", |_| ()), Instant::now());
        let tried = Arc::new(Mutex::new(BTreeSet::new()));
        for _ in 0..2 {
            let reports = (0..2 * AT_ONCE).map(|number| Meta { name: format!("pod-{number}"), ..Meta::default() });
            removals.begin(reports.collect(), |report| {
                lock(&tried).insert(report.name);
                async { Some(Ok(())) }
            });
            while removals.join_next().await.is_some() {}
        }
        assert_eq!(lock(&tried).len(), 2 * AT_ONCE);
    }
}
