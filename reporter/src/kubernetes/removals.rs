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
    /// When any report may be removed again after a failure. It may concern all of them.
    not_before: Instant,
}

impl Removals {
    pub(crate) fn new(failures: Failures, now: Instant) -> Self {
        Self { calls: JoinSet::new(), failures, retry: Retry::default(), not_before: now }
    }

    /// Whether others may be begun.
    pub(crate) fn are_over(&self, now: Instant) -> bool {
        self.calls.is_empty() && now >= self.not_before
    }

    /// Begins to remove some of these reports.
    pub(crate) fn begin<F>(&mut self, reports: Vec<Meta>, remove: impl Fn(Meta) -> F)
    where
        F: Future<Output = Removed> + Send + 'static,
    {
        for report in reports.into_iter().take(AT_ONCE) {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

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
            if removals.are_over(now) {
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
        assert!(!removals.are_over(start));
        removals.ended(Ok(()), 1.0, start);
        assert_eq!(removals.retry, Retry::default());
    }
}
