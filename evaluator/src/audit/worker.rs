//! The worker that asks policies about objects that exist: one at a time, with pauses.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures::FutureExt as _;
use portcullis_contract::AuditVerdict;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::sleep;

use crate::admission::Admission;
use crate::audit::MOST_WAITING;
use crate::audit::pace::Pace;
use crate::audit::refusal::Refusal;
use crate::review::Review;
use crate::table::ServedPolicy;

/// Where audits are handed to the worker.
pub(crate) type Jobs = mpsc::Sender<Job>;

/// A question of the reporter.
pub(crate) struct Job {
    /// The policy, as it was served when the head of the question came.
    pub(super) policy: Arc<ServedPolicy>,
    /// The AdmissionReview.
    pub(super) body: Bytes,
    /// Where the answer goes; closed if nobody waits for it any more.
    pub(super) answer: oneshot::Sender<Result<AuditVerdict, Refusal>>,
    /// The body's part of the memory for bodies.
    pub(super) room: OwnedSemaphorePermit,
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
        while let Some(job) = self.jobs.recv().await {
            let pause = self.pace.pause(Instant::now());
            // Even a sleep of no time takes a millisecond.
            if !pause.is_zero() {
                sleep(pause).await;
            }
            let begin = Instant::now();
            work(&admission, job).await;
            self.pace.took(begin, Instant::now());
        }
    }
}

/// Answers one question, unless its sender hangs up before that.
async fn work(admission: &Admission, job: Job) {
    let Job { policy, body, mut answer, room } = job;
    if answer.is_closed() {
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
    // An error means that nobody waits for the answer.
    let _ = answer.send(verdict);
}

async fn verdict(admission: &Admission, policy: &Arc<ServedPolicy>, body: &[u8]) -> Result<AuditVerdict, Refusal> {
    let review = Review::parse(body)?;
    admission.audit(policy, &review).await.map_err(|contended| Refusal::Contended(contended.0))
}
