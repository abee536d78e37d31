//! The worker that asks policies about objects that exist: one at a time, from two queues in turn, with pauses for each.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt as _;
use portcullis_contract::{AuditAnswer, AuditRefusal, AuditVerdict, PolicyId};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::sleep;

use crate::admission::Admission;
use crate::admission::audit::longest;
use crate::audit::pace::Pace;
use crate::audit::refusal::Refusal;
use crate::audit::{MOST_WAITING, PATIENCE};
use crate::review::Review;
use crate::table::ServedPolicy;

/// Where audits are handed to the worker.
pub(crate) type Jobs = Asked<mpsc::Sender<Job>>;

/// The same for the policies of the installation, which the reporter asks, and for those that are only checked, which the loader asks.
pub(crate) struct Asked<T> {
    pub(super) stored: T,
    pub(super) checked: T,
}

impl<T> Asked<T> {
    /// What is for this policy.
    pub(super) fn of(&self, id: &PolicyId) -> &T {
        if id.is_check() { &self.checked } else { &self.stored }
    }
}

/// A question about an object.
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

/// Works on the queues.
pub(crate) struct Worker<J = Job> {
    stored: Queue<J>,
    checked: Queue<J>,
}

/// Questions, and the pauses between them.
struct Queue<J> {
    jobs: mpsc::Receiver<J>,
    pace: Pace,
}

/// The queues, and the worker that takes from them. `percent` is the share of one core's time that audits may take: each queue has half of it while
/// both are asked.
pub(crate) fn queues(percent: u8) -> (Jobs, Worker) {
    Worker::of(percent)
}

impl<J> Queue<J> {
    fn new(percent: u8) -> (mpsc::Sender<J>, Self) {
        let (sender, jobs) = mpsc::channel(MOST_WAITING);
        (sender, Self { jobs, pace: Pace::new(percent) })
    }

    /// The next question, after the pause that is due; `None` if nobody can ask any more. Nothing is lost if this is dropped.
    async fn next(&mut self) -> Option<J> {
        let pause = self.pace.pause(Instant::now());
        // Even a sleep of no time takes a millisecond.
        if !pause.is_zero() {
            sleep(pause).await;
        }
        self.jobs.recv().await
    }

    /// Whether it uses its share at present.
    fn is_used(&self, now: Instant) -> bool {
        !self.jobs.is_empty() || self.pace.is_due(now)
    }
}

impl Worker {
    /// Works until nobody can ask any more.
    pub(crate) async fn run(self, admission: Admission) {
        let admission = Arc::new(admission);
        let work = move |job, begin| {
            let admission = Arc::clone(&admission);
            async move { work(&admission, job, begin).await }
        };
        self.answer(work).await;
    }
}

impl<J> Worker<J> {
    fn of(percent: u8) -> (Asked<mpsc::Sender<J>>, Self) {
        let ((to_stored, stored), (to_checked, checked)) = (Queue::new(percent), Queue::new(percent));
        (Asked { stored: to_stored, checked: to_checked }, Self { stored, checked })
    }

    async fn answer<F: Future<Output = ()>>(mut self, mut work: impl FnMut(J, Instant) -> F) {
        // The queue whose turn it is, and the other one.
        let (mut next, mut after) = (&mut self.stored, &mut self.checked);
        loop {
            let (job, asked, other) = tokio::select! {
                biased;
                job = next.next() => (job, next, after),
                job = after.next() => (job, after, next),
            };
            let Some(job) = job else { return };
            let begin = Instant::now();
            work(job, begin).await;
            asked.pace.took(begin, Instant::now(), other.is_used(begin));
            (next, after) = (other, asked);
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
    use portcullis_contract::{
        AuditOutcome, Candidate, CandidateContent, CandidatePolicyGroup, Digest, FailurePolicy, Mode,
    };
    use portcullis_expression::Expression;
    use tokio::sync::Semaphore;
    use tokio::time::timeout;

    use super::*;
    use crate::admission::last_call::LastCall;
    use crate::guest::loaded::{Content, Loaded, LoadedPolicyGroup};
    use crate::guest::{GuestLog, LogShares};
    use crate::lanes::{LaneLimits, Lanes, Share};
    use crate::memory::MemoryPlan;
    use crate::metrics::Metrics;
    use crate::review::tests::LEAST;
    use crate::table::Serving;

    /// A question of a test: how long the answer takes, and what hears of it.
    struct Question(Duration, oneshot::Sender<()>);

    /// Asks one thing and waits for the answer.
    async fn ask(jobs: &mpsc::Sender<Question>, takes: Duration) {
        let (sender, answer) = oneshot::channel();
        assert!(jobs.send(Question(takes, sender)).await.is_ok(), "the worker is there");
        answer.await.expect("an answer");
    }

    #[tokio::test]
    async fn questions_of_a_check_that_never_end_leave_the_reporter_its_own_pace() {
        const QUICK: usize = 20;
        let (jobs, worker) = Worker::<Question>::of(25);
        let Asked { stored, checked } = jobs;
        tokio::spawn(worker.answer(|Question(takes, answer), _| async move {
            if !takes.is_zero() {
                sleep(takes).await;
            }
            // An error means that the test is over.
            let _ = answer.send(());
        }));
        // A check asks eight at a time. After each answer a pause is due that is seven times as long, or three times before the reporter asks.
        let (count, mut counted) = tokio::sync::watch::channel(0);
        for _ in 0..8 {
            let (checked, count) = (checked.clone(), count.clone());
            tokio::spawn(async move {
                loop {
                    ask(&checked, Duration::from_millis(100)).await;
                    count.send_modify(|count| *count += 1);
                }
            });
        }
        let long = Duration::from_secs(60);
        timeout(long, counted.wait_for(|count| *count > 0)).await.expect("in time").expect("asks");
        let reporter = async {
            for _ in 0..QUICK {
                ask(&stored, Duration::ZERO).await;
            }
        };
        timeout(long, reporter).await.expect("in time");
        let meanwhile = *counted.borrow();
        assert!(meanwhile < QUICK, "the reporter waited for {meanwhile} questions of the check");
        // Nor does the reporter keep the check waiting.
        let count = *counted.borrow();
        timeout(long, counted.wait_for(|more| *more > count)).await.expect("in time").expect("asks");
    }

    /// A policy group that admits everything, with this time limit.
    fn policy_group(limit: Duration, metrics: &Metrics) -> ServedPolicy {
        let lanes = Lanes::new(LaneLimits::new(16, 1), MemoryPlan::unlimited(), metrics).expect("starts");
        let id: PolicyId = "cluster/a".parse().expect("an id");
        let of_policy = metrics.policy(&id);
        let group = CandidatePolicyGroup { expression: "true".to_owned(), members: [].into() };
        let expression = Expression::parse(&group.expression, []).expect("an expression");
        let content = Content::PolicyGroup(Arc::new(LoadedPolicyGroup { expression, members: [].into() }));
        let candidate = Candidate {
            generation: 1,
            digest: Digest::of(b"group"),
            mutating: false,
            message: None,
            timeout_eval_seconds: None,
            content: CandidateContent::Group(group),
        };
        let log_share = LogShares::default().of(&id, Instant::now());
        let log = GuestLog::new(id.clone(), 1, log_share, Arc::clone(&of_policy));
        ServedPolicy {
            uid: "u".to_owned(),
            generation: 1,
            mode: Mode::Protect,
            failure_policy: FailurePolicy::Fail,
            suspend: false,
            is_group: true,
            enforced: true,
            serving: Serving::Ready(Arc::new(Loaded::new(&candidate, limit, content, log))),
            failure: None,
            share: Arc::new(Share::new(lanes, &id, Arc::clone(&of_policy))),
            metrics: of_policy,
            id,
        }
    }

    #[tokio::test]
    async fn a_limit_longer_than_the_patience_is_cut() {
        let metrics = Metrics::new().expect("registers");
        let (limit, arrived) = (16 * Duration::from_secs(10), Instant::now());
        assert!(limit > PATIENCE);
        let (answer, answered) = oneshot::channel();
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("room");
        let policy = Arc::new(policy_group(limit, &metrics));
        let body = Bytes::from_static(LEAST.as_bytes());
        let admission = Admission { metrics, last_call: LastCall::default() };
        work(&admission, Job { policy, body, answer, room, arrived }, arrived).await;
        let verdict = answered.await.expect("an answer").expect("a verdict").verdict;
        assert_eq!(verdict.outcome, AuditOutcome::Allowed);
    }

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
