//! The worker that asks policies about objects that exist: one at a time, with pauses.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt as _;
use portcullis_contract::{AuditAnswer, AuditRefusal, AuditVerdict};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::sleep;

use crate::admission::Admission;
use crate::audit::pace::Pace;
use crate::audit::refusal::Refusal;
use crate::audit::{MOST_WAITING, PATIENCE};
use crate::review::Review;
use crate::table::{ServedPolicy, Serving};

/// Where audits are handed to the worker.
pub(crate) type Jobs = mpsc::Sender<Job>;

/// A question of the reporter.
pub(crate) struct Job {
    /// The policy, as it was served when the head of the question came.
    pub(super) policy: Arc<ServedPolicy>,
    /// The AdmissionReview.
    pub(super) body: Bytes,
    /// Where the answer goes; closed if nobody waits for it any more.
    pub(super) answer: oneshot::Sender<Result<AuditAnswer, Refusal>>,
    /// The body's part of the memory for bodies.
    pub(super) room: OwnedSemaphorePermit,
    /// When it came into the queue.
    pub(super) arrived: Instant,
}

/// Works on the queue.
pub(crate) struct Worker {
    jobs: mpsc::Receiver<Job>,
    pace: Pace,
}

/// A queue, and the worker that takes from it. `percent` is the share of one core's time that audits may take.
pub(crate) fn queue(percent: u8) -> (Jobs, Worker) {
    let (sender, jobs) = mpsc::channel(MOST_WAITING);
    (sender, Worker { jobs, pace: Pace::new(percent) })
}

impl Worker {
    /// Works until nobody can ask any more.
    pub(crate) async fn run(mut self, admission: Admission) {
        loop {
            let pause = self.pace.pause(Instant::now());
            // Even a sleep of no time takes a millisecond.
            if !pause.is_zero() {
                sleep(pause).await;
            }
            let Some(job) = self.jobs.recv().await else { return };
            let begin = Instant::now();
            work(&admission, job, begin).await;
            self.pace.took(begin, Instant::now());
        }
    }
}

/// Answers one question, unless its sender hangs up before that.
async fn work(admission: &Admission, job: Job, begin: Instant) {
    let Job { policy, body, mut answer, room, arrived } = job;
    if answer.is_closed() {
        return;
    }
    if !is_in_time(begin.saturating_duration_since(arrived), longest(&policy)) {
        // An error means that nobody waits for the answer.
        let _ = answer.send(Err(Refusal::TooLate));
        return;
    }
    let asking = AssertUnwindSafe(verdict(admission, &policy, &body)).catch_unwind();
    let verdict = tokio::select! {
        verdict = asking => verdict,
        () = answer.closed() => return,
    };
    drop(room);
    let verdict = verdict.unwrap_or_else(|_| {
        admission.metrics.panics.inc();
        Err(Refusal::Panicked)
    });
    let microseconds = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
    let _ = answer.send(timed(verdict, microseconds));
}

/// The answer after an evaluation of this length. One that gives no verdict has held up the others as well, so its refusal says how long it took.
fn timed(verdict: Result<AuditVerdict, Refusal>, microseconds: u64) -> Result<AuditAnswer, Refusal> {
    match verdict {
        Ok(verdict) => Ok(AuditAnswer { verdict, microseconds }),
        Err(Refusal::Contended(refusal)) => Err(Refusal::Contended(AuditRefusal { microseconds, ..refusal })),
        Err(refusal) => Err(refusal),
    }
}

/// How long an evaluation of this policy may take.
fn longest(policy: &ServedPolicy) -> Duration {
    match &policy.serving {
        Serving::Ready(loaded) => loaded.timeout(),
        Serving::Unserved(_) => Duration::ZERO,
    }
}

/// Whether an evaluation of at most this length ends while its sender still waits, after so long a wait. One that is cut short costs others as
/// much as any, without an answer that says so.
fn is_in_time(waited: Duration, longest: Duration) -> bool {
    waited.saturating_add(longest) <= PATIENCE
}

async fn verdict(admission: &Admission, policy: &Arc<ServedPolicy>, body: &[u8]) -> Result<AuditVerdict, Refusal> {
    let review = Review::parse(body)?;
    admission.audit(policy, &review).await.map_err(Refusal::Contended)
}

#[cfg(test)]
mod tests {
    use portcullis_contract::AuditOutcome;

    use super::*;

    #[test]
    fn an_evaluation_without_a_verdict_says_how_long_it_took() {
        let refusal = AuditRefusal { message: "no memory".to_owned(), ..AuditRefusal::default() };
        let timed_refusal = AuditRefusal { microseconds: 7, ..refusal.clone() };
        assert_eq!(timed(Err(Refusal::Contended(refusal)), 7), Err(Refusal::Contended(timed_refusal)));
        assert_eq!(timed(Err(Refusal::Panicked), 7), Err(Refusal::Panicked));
        let verdict = AuditVerdict { outcome: AuditOutcome::Allowed, generation: 1, message: None, reason: None };
        assert_eq!(timed(Ok(verdict.clone()), 7), Ok(AuditAnswer { verdict, microseconds: 7 }));
    }

    #[test]
    fn an_evaluation_begins_only_if_it_can_end_in_time() {
        let seconds = Duration::from_secs;
        assert!(is_in_time(seconds(20), seconds(30)) && is_in_time(seconds(48), seconds(2)));
        assert!(!is_in_time(seconds(21), seconds(30)) && !is_in_time(seconds(49), seconds(2)));
        assert!(is_in_time(PATIENCE, Duration::ZERO), "a policy that does not serve is answered at once");
    }
}
