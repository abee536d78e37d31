//! Who may run, and where: a bound for each policy, and a lane of its own for what takes long.
//!
//! ```text
//!  request ──► share (bound, short queue) ──► fast lane: the thread that accepted the request, up to two ticks
//!                       │                          │ still running
//!                       └─ full: refused at once   └──► slow lane: threads of low priority, a turn of one tick each
//! ```
//!
//! A short evaluation never changes threads. A long one, an endless loop for instance, costs the fast lane at most two
//! ticks and then competes with other long ones only: the slow lane's threads are so nice that the kernel takes them off
//! the processor whenever a short evaluation wants it.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use portcullis_contract::Reason;
use prometheus::{IntCounter, IntGauge};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout_at;
use tokio_util::task::AbortOnDropHandle;

use crate::metrics::{Metrics, PolicyMetrics};
use crate::verdict::EvaluationError;

/// How nice the slow lane's threads are. A thread of niceness 10 has a tenth of the weight of a normal one, and a normal
/// one that wakes up takes its place at once; yet on a busy machine it still gets on.
const NICENESS: i32 = 10;
/// Requests of one policy that may wait for each one that may run.
const QUEUE_FACTOR: usize = 8;

/// How long a load may still run after its deadline.
const GRACE: Duration = Duration::from_millis(500);

/// The bounds.
#[derive(Debug, Clone, Copy)]
pub struct LaneLimits {
    /// Instances at the same time, over all policies; what the engine's pool has.
    pub instances: usize,
    /// Threads of the slow lane.
    pub threads: usize,
    /// Evaluations of one policy at the same time.
    pub running: usize,
    /// Of these, how many may have turns in the slow lane.
    pub slow: usize,
}

impl LaneLimits {
    /// The bounds for a machine of `cores` cores.
    pub fn new(instances: usize, cores: usize) -> Self {
        let instances = instances.max(1);
        let running = (4 * cores).max(8).min(instances);
        Self { instances, threads: cores.max(1), running, slow: (2 * cores).clamp(1, running) }
    }
}

/// The slow lane, and the instances that all policies share.
pub struct Lanes {
    limits: LaneLimits,
    instances: Arc<Semaphore>,
    /// Instances that long evaluations may hold; the rest is always there for short ones.
    long: Arc<Semaphore>,
    /// Candidates that may be started and checked at the same time.
    loading: Arc<Semaphore>,
    in_use: IntGauge,
    refused: IntCounter,
    /// `None` only while dropping.
    slow: Option<Runtime>,
}

/// One policy's share: a bound on its evaluations, not a reservation.
pub struct Share {
    lanes: Arc<Lanes>,
    running: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    waiting: AtomicUsize,
    /// Whether the policy's latest evaluations took long: the next one then starts in the slow lane.
    is_long: Arc<AtomicBool>,
    metrics: Arc<PolicyMetrics>,
}

/// An evaluation that did not end with a result of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Too much of the same policy is under way, or too much of everything.
    Overloaded {
        /// What is full, and its bound.
        text: String,
    },
    /// The deadline passed while it ran.
    TimedOut,
    /// The evaluation panicked: a mistake of this program.
    Panicked,
}

/// What policy-abi section 11 fixes for an evaluation beyond its time limit.
pub(crate) const TIMED_OUT: &str = "Policy execution interrupted because it exceeded the allowed execution time";

impl From<Refusal> for EvaluationError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Overloaded { text } => Self::new(Reason::Overloaded, text),
            Refusal::TimedOut => Self::new(Reason::EvaluationTimedOut, TIMED_OUT),
            Refusal::Panicked => {
                Self::new(Reason::InternalError, "internal server error: the evaluation ended with a panic")
            }
        }
    }
}

impl Lanes {
    /// Starts the slow lane.
    ///
    /// # Errors
    /// When its threads cannot be had.
    pub fn new(limits: LaneLimits, metrics: &Metrics) -> io::Result<Arc<Self>> {
        let slow = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(limits.threads)
            .thread_name("slow-lane")
            .enable_time()
            .on_thread_start(|| {
                // Where the kernel does not allow it, long evaluations compete on equal terms: slower, still right.
                if let Err(error) = rustix::process::nice(NICENESS) {
                    tracing::debug!(%error, "failed to lower the priority of a thread");
                }
            })
            .build()?;
        metrics.instance_limit.set(i64::try_from(limits.instances).unwrap_or(i64::MAX));
        Ok(Arc::new(Self {
            limits,
            instances: Arc::new(Semaphore::new(limits.instances)),
            long: Arc::new(Semaphore::new((limits.instances / 2).max(1))),
            loading: Arc::new(Semaphore::new((limits.instances / 4).max(1))),
            in_use: metrics.instances.clone(),
            refused: metrics.overloaded.clone(),
            slow: Some(slow),
        }))
    }

    /// The bounds.
    pub fn limits(&self) -> LaneLimits {
        self.limits
    }

    /// The share of a policy with these metrics.
    pub fn share(self: &Arc<Self>, metrics: Arc<PolicyMetrics>) -> Arc<Share> {
        Arc::new(Share {
            lanes: Arc::clone(self),
            running: Arc::new(Semaphore::new(self.limits.running)),
            slow: Arc::new(Semaphore::new(self.limits.slow)),
            waiting: AtomicUsize::new(0),
            is_long: Arc::default(),
            metrics,
        })
    }

    /// Runs what `start` makes of its deadline, outside any policy's share: for loading. The time begins when there is room.
    pub(crate) async fn load<F>(
        &self,
        timeout: Duration,
        start: impl FnOnce(Instant) -> F,
    ) -> Result<F::Output, Refusal>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let loading = Arc::clone(&self.loading).acquire_owned().await.expect("the semaphore is never closed");
        let instance = Arc::clone(&self.instances).acquire_owned().await.expect("the semaphore is never closed");
        let permits = (loading, InstancePermit::new(instance, self.in_use.clone()));
        let deadline = Instant::now() + timeout;
        let mut future = Box::pin(AssertUnwindSafe(start(deadline)).catch_unwind());
        if let Poll::Ready(output) = first_turn(&mut future).await {
            return output.map_err(panicked);
        }
        let turns = async move {
            let output = future.await;
            drop(permits);
            output
        };
        // A guest that notices the deadline itself can say what it was at; only one that cannot is ended from outside.
        self.slow_turns(deadline + GRACE, turns).await
    }

    /// Runs `turns` in the slow lane, no longer than until `deadline`.
    async fn slow_turns<T: Send + 'static>(
        &self,
        deadline: Instant,
        turns: impl Future<Output = std::thread::Result<T>> + Send + 'static,
    ) -> Result<T, Refusal> {
        let task = AbortOnDropHandle::new(self.slow().spawn(turns));
        // The clock of the caller's own lane: however full the slow lane is, the answer is on time.
        match timeout_at(deadline.into(), task).await {
            Ok(Ok(output)) => output.map_err(panicked),
            // The task ends early only by a panic outside the future or with the slow lane itself.
            Ok(Err(_)) => Err(Refusal::Panicked),
            Err(_) => Err(Refusal::TimedOut),
        }
    }

    fn overloaded(&self, text: String) -> Refusal {
        self.refused.inc();
        Refusal::Overloaded { text }
    }

    fn slow(&self) -> &Runtime {
        self.slow.as_ref().expect("the runtime is taken in drop only")
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        // Dropping a runtime waits for its threads, which is not allowed on a thread of another runtime.
        if let Some(slow) = self.slow.take() {
            slow.shutdown_background();
        }
    }
}

/// The right to one instance.
struct InstancePermit {
    in_use: IntGauge,
    _permit: OwnedSemaphorePermit,
}

impl InstancePermit {
    fn new(permit: OwnedSemaphorePermit, in_use: IntGauge) -> Self {
        in_use.inc();
        Self { in_use, _permit: permit }
    }
}

impl Drop for InstancePermit {
    fn drop(&mut self) {
        self.in_use.dec();
    }
}

/// What an evaluation holds while it runs.
struct Permits {
    _running: OwnedSemaphorePermit,
    _instance: InstancePermit,
}

impl Share {
    /// Runs `future` when the policy's share allows, and gives its output. Counts waiting, running and refusals.
    ///
    /// Dropping the returned future drops `future`: a caller that hangs up costs nothing more.
    ///
    /// # Errors
    /// When there is no room until `deadline`, when the deadline passes meanwhile, or when `future` panics.
    pub fn run<F>(&self, deadline: Instant, future: F) -> impl Future<Output = Result<F::Output, Refusal>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let arrived = Instant::now();
        // On the heap from the first: it may have to move to another lane, and it is large for whoever waits for it.
        let future = Box::pin(AssertUnwindSafe(future).catch_unwind());
        async move {
            let permits = self.admit(deadline).await?;
            let started = Instant::now();
            self.metrics.wait_seconds.observe((started - arrived).as_secs_f64());
            let result = self.run_admitted(deadline, permits, future).await;
            self.metrics.seconds.observe(started.elapsed().as_secs_f64());
            result
        }
    }

    async fn run_admitted<T, F>(
        &self,
        deadline: Instant,
        permits: Permits,
        mut future: Pin<Box<F>>,
    ) -> Result<T, Refusal>
    where
        F: Future<Output = std::thread::Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        if !self.is_long.load(Ordering::Relaxed)
            && let Poll::Ready(output) = first_turn(&mut future).await
        {
            return output.map_err(panicked);
        }
        let Ok(long) = Arc::clone(&self.lanes.long).try_acquire_owned() else {
            return Err(self.lanes.overloaded("too many long evaluations are under way on this replica".to_owned()));
        };
        let (slow, is_long) = (Arc::clone(&self.slow), Arc::clone(&self.is_long));
        let turns = async move {
            let turn = slow.acquire_owned().await.expect("the semaphore is never closed");
            let output = Metered { future, used: Duration::ZERO, is_long }.await;
            drop((turn, long, permits));
            output
        };
        self.lanes.slow_turns(deadline, turns).await
    }

    async fn admit(&self, deadline: Instant) -> Result<Permits, Refusal> {
        let running = match Arc::clone(&self.running).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => self.queue(deadline).await?,
        };
        let instance = match Arc::clone(&self.lanes.instances).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => wait(&self.lanes.instances, deadline).await.ok_or_else(|| {
                let limit = self.lanes.limits.instances;
                self.lanes.overloaded(format!("all {limit} policy instances of this replica are in use"))
            })?,
        };
        let instance = InstancePermit::new(instance, self.lanes.in_use.clone());
        Ok(Permits { _running: running, _instance: instance })
    }

    /// Waits for a place among the running, if the queue is not full.
    async fn queue(&self, deadline: Instant) -> Result<OwnedSemaphorePermit, Refusal> {
        let limit = self.lanes.limits.running;
        // Behind long evaluations hardly anybody gets a turn in time, so few may wait there.
        let room = if self.is_long.load(Ordering::Relaxed) { limit } else { limit * QUEUE_FACTOR };
        let waiting = Waiting::new(&self.waiting);
        let permit = if waiting.place > room { None } else { wait(&self.running, deadline).await };
        permit.ok_or_else(|| {
            self.lanes.overloaded(format!("{limit} evaluations of this policy, its limit, are under way already"))
        })
    }
}

async fn wait(semaphore: &Arc<Semaphore>, deadline: Instant) -> Option<OwnedSemaphorePermit> {
    timeout_at(deadline.into(), Arc::clone(semaphore).acquire_owned()).await.ok()?.ok()
}

/// Polls once, on this thread.
async fn first_turn<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

fn panicked(_: Box<dyn Any + Send>) -> Refusal {
    Refusal::Panicked
}

/// One request in a queue; leaves it when dropped.
struct Waiting<'a> {
    waiting: &'a AtomicUsize,
    place: usize,
}

impl<'a> Waiting<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        let place = waiting.fetch_add(1, Ordering::Relaxed) + 1;
        Self { waiting, place }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A future in the slow lane, whose processor time decides where its policy's next evaluation starts.
///
/// Time on the clock would not do: a thread of this lane is off the processor for long whenever others want it.
struct Metered<F> {
    future: Pin<Box<F>>,
    used: Duration,
    is_long: Arc<AtomicBool>,
}

impl<F: Future> Future for Metered<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let before = thread_time();
        let poll = self.future.as_mut().poll(cx);
        self.used += thread_time().saturating_sub(before);
        let is_long = self.used >= portcullis_engine::TICK;
        if is_long || poll.is_ready() {
            self.is_long.store(is_long, Ordering::Relaxed);
        }
        poll
    }
}

/// The processor time that this thread has used.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(limits: LaneLimits) -> Arc<Share> {
        let metrics = Metrics::new().expect("registers");
        let lanes = Lanes::new(limits, &metrics).expect("starts");
        lanes.share(metrics.policy(&"cluster/a".parse().expect("an id")))
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    #[tokio::test]
    async fn a_short_evaluation_stays_on_its_thread() {
        let here = std::thread::current().id();
        let there = share(LaneLimits::new(4, 1)).run(soon(), async { std::thread::current().id() }).await;
        assert_eq!(there, Ok(here));
    }

    #[tokio::test]
    async fn a_long_one_goes_on_in_the_slow_lane() {
        let here = std::thread::current().id();
        let there = share(LaneLimits::new(4, 1))
            .run(soon(), async {
                tokio::task::yield_now().await;
                std::thread::current().id()
            })
            .await;
        assert_ne!(there, Ok(here));
    }

    #[tokio::test]
    async fn the_deadline_holds_whatever_the_evaluation_does() {
        let deadline = Instant::now() + Duration::from_millis(20);
        let result = share(LaneLimits::new(4, 1)).run(deadline, std::future::pending::<()>()).await;
        assert_eq!(result, Err(Refusal::TimedOut));
    }

    #[tokio::test]
    async fn a_panic_ends_one_evaluation() {
        let share = share(LaneLimits::new(4, 1));
        assert_eq!(share.run(soon(), async { panic!("on purpose") }).await, Err::<(), _>(Refusal::Panicked));
        assert_eq!(share.run(soon(), async { 1 }).await, Ok(1));
    }

    #[tokio::test]
    async fn beyond_bound_and_queue_requests_are_refused_at_once() {
        let share = share(LaneLimits { instances: 8, threads: 1, running: 1, slow: 1 });
        let mut running = Vec::new();
        for _ in 0..1 + QUEUE_FACTOR {
            let share = Arc::clone(&share);
            running.push(tokio::spawn(async move { share.run(soon(), std::future::pending::<()>()).await }));
            tokio::task::yield_now().await;
        }
        let before = Instant::now();
        let refusal = share.run(soon(), async {}).await.expect_err("refused");
        assert!(matches!(refusal, Refusal::Overloaded { .. }));
        assert!(before.elapsed() < Duration::from_secs(1));
        running.iter().for_each(|task| task.abort());
    }

    #[tokio::test]
    async fn who_hangs_up_gives_the_place_back() {
        let share = share(LaneLimits { instances: 1, threads: 1, running: 1, slow: 1 });
        for _ in 0..50 {
            let call = share.run(soon(), std::future::pending::<()>());
            assert!(tokio::time::timeout(Duration::from_millis(1), call).await.is_err());
        }
        assert_eq!(share.run(soon(), async { 1 }).await, Ok(1));
    }
}
