//! The share of one policy: a limit on its evaluations, their queue, and what is known about how long they take.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use portcullis_contract::PolicyId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout_at;

use super::{InstancePermit, LaneError, Lanes, Scheduled, first_turn, panicked};
use crate::fair::claimant::Claimant;
use crate::fair::policies::Claim;
use crate::fair::pool::PolicyPool;
use crate::memory::GuestMemory;
use crate::metrics::PolicyMetrics;

/// How many requests of one policy may wait for each one that may run.
const QUEUE_FACTOR: u32 = 8;
/// The part of its time, as a divisor, that a request may spend in the queue: the rest is for its own evaluation and for those that take
/// longer than the latest ones did.
const IN_QUEUE: u32 = 2;
/// How much of the mean one evaluation is, as a divisor.
const WEIGHT: u64 = 8;

/// The share of one policy: a limit on its evaluations, not a reservation.
pub struct Share {
    lanes: Arc<Lanes>,
    who: Arc<Claimant>,
    running: Arc<Semaphore>,
    waiting: AtomicUsize,
    /// Whether the policy's latest evaluations took long: the next one then starts in the slow lane.
    is_long: Arc<AtomicBool>,
    /// How long the policy's evaluations take, in microseconds: a moving average, and 0 before the first one has ended.
    mean: AtomicU64,
    /// Whether the latest work of this program for its requests took long.
    is_own_work_long: Arc<AtomicBool>,
    metrics: Arc<PolicyMetrics>,
}

/// Why an evaluation that takes only what is left over is not started: requests need this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Needed {
    /// The places of the policy: its own requests take them.
    #[error("requests take all places of this policy")]
    Places,
    /// The instances that all policies share: too few are free for one more of this policy or its namespace.
    #[error("requests take the policy instances of this replica")]
    Instances,
    /// The places for long evaluations, which all policies share.
    #[error("requests take the long evaluations of this replica")]
    Long,
}

/// What an evaluation holds while it runs.
struct Permits {
    _running: OwnedSemaphorePermit,
    _instance: InstancePermit,
}

impl Share {
    /// The share of a policy in `lanes`.
    pub(crate) fn new(lanes: Arc<Lanes>, policy: &PolicyId, metrics: Arc<PolicyMetrics>) -> Self {
        let who = Claimant::new(policy);
        let running = Arc::new(Semaphore::new(lanes.limits.running));
        let (is_long, is_own_work_long) = (Arc::default(), Arc::default());
        let (waiting, mean) = (AtomicUsize::new(0), AtomicU64::new(0));
        Self { lanes, who, running, waiting, is_long, mean, is_own_work_long, metrics }
    }

    /// The memory of guests.
    pub(crate) fn memory(&self) -> &GuestMemory {
        self.lanes.memory()
    }

    /// The policy, as one that asks for shares.
    pub(crate) fn claimant(&self) -> &Arc<Claimant> {
        &self.who
    }

    /// Runs `future` when the policy's share allows, and gives its output. Counts waiting, running and refusals. This is the barrier for
    /// panics around everything that runs for one policy.
    ///
    /// Dropping the returned future drops `future`: a caller that hangs up costs nothing more.
    ///
    /// # Errors
    /// When there is no room until `deadline`, when the deadline passes meanwhile, or when `future` panics.
    pub fn run<F>(&self, deadline: Instant, future: F) -> impl Future<Output = Result<F::Output, LaneError>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let arrived = Instant::now();
        // On the heap from the start: it may have to move to another lane, and it is too large to be part of its caller's future.
        let future = Box::pin(AssertUnwindSafe(future).catch_unwind());
        async move {
            let permits = self.admit(deadline).await?;
            let started = Instant::now();
            self.metrics.wait_seconds.observe((started - arrived).as_secs_f64());
            let result = self.run_admitted(deadline, permits, future).await;
            let took = started.elapsed();
            self.metrics.seconds.observe(took.as_secs_f64());
            let before = self.mean.load(Ordering::Relaxed);
            // One that had no time left would have taken longer.
            let mean =
                if started + took < deadline { mean_with(before, took) } else { before.max(mean_with(before, took)) };
            // Evaluations that end at the same time may overwrite each other; then one counts less.
            self.mean.store(mean, Ordering::Relaxed);
            result
        }
    }

    /// Runs `future` with what requests do not need, and gives its output: in the slow lane from its start, in an instance that nobody
    /// waits for, and only while the policy may run more evaluations. It takes no place of requests, is not counted among their evaluations,
    /// and does not change the record of how long the policy's evaluations take.
    ///
    /// # Errors
    /// When requests need all instances or places. The inner error is that of an evaluation that was begun: the deadline passed, or `future`
    /// panicked.
    pub(crate) fn run_spare<F>(
        &self,
        deadline: Instant,
        future: F,
    ) -> impl Future<Output = Result<Result<F::Output, LaneError>, Needed>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        // On the heap from the start: it is too large to be part of its caller's future.
        let future = Box::pin(AssertUnwindSafe(future).catch_unwind());
        async move {
            if self.running.available_permits() == 0 {
                return Err(Needed::Places);
            }
            let take = |pool: &Arc<PolicyPool>| pool.try_take(&self.one());
            let instance = take(&self.lanes.instances).map(|permit| self.lanes.in_use(permit));
            let instance = instance.ok_or(Needed::Instances)?;
            let long = take(&self.lanes.long).ok_or(Needed::Long)?;
            Ok(self.in_turns(deadline, future, None, (long, instance)).await)
        }
    }

    /// Runs `future`, work of this program for a request, in turns of the policy: the first one here, the others in the slow lane. It needs no
    /// instance, and yields often.
    ///
    /// # Errors
    /// When the deadline passes, or `future` panics.
    pub(crate) async fn run_own_work<F>(&self, deadline: Instant, future: F) -> Result<F::Output, LaneError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let mut future = Box::pin(AssertUnwindSafe(future).catch_unwind());
        if !self.is_own_work_long.load(Ordering::Relaxed)
            && let Poll::Ready(output) = first_turn(&mut future).await
        {
            return output.map_err(panicked);
        }
        self.in_turns(deadline, future, Some(&self.is_own_work_long), ()).await
    }

    async fn run_admitted<T, F>(
        &self,
        deadline: Instant,
        permits: Permits,
        mut future: Pin<Box<F>>,
    ) -> Result<T, LaneError>
    where
        F: Future<Output = std::thread::Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        if !self.is_long.load(Ordering::Relaxed)
            && let Poll::Ready(output) = first_turn(&mut future).await
        {
            return output.map_err(panicked);
        }
        // It waits with an instance from its own policy's share, so it delays no other policy.
        let long = self.lanes.long.take(&self.one(), Some(deadline)).await.map_err(|_| {
            let limit = self.lanes.limits.long();
            let text =
                format!("this policy or its namespace has its share of the {limit} long evaluations of this replica");
            LaneError::Overloaded { text }
        })?;
        self.in_turns(deadline, future, Some(&self.is_long), (long, permits)).await
    }

    /// Runs `future` in turns of the policy in the slow lane, and drops `held` at its end. It sets `is_long`.
    async fn in_turns<T, F>(
        &self,
        deadline: Instant,
        future: Pin<Box<F>>,
        is_long: Option<&Arc<AtomicBool>>,
        held: impl Send + 'static,
    ) -> Result<T, LaneError>
    where
        F: Future<Output = std::thread::Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        let turns = Scheduled::new(future, Arc::clone(&self.lanes.order), Arc::clone(&self.who), is_long.cloned());
        let turns = async move {
            let output = turns.await;
            drop(held);
            output
        };
        self.lanes.slow_turns(deadline, turns).await
    }

    async fn admit(&self, deadline: Instant) -> Result<Permits, LaneError> {
        let running = match Arc::clone(&self.running).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => self.queue(deadline).await?,
        };
        let instance = self.lanes.instances.take(&self.one(), Some(deadline)).await.map_err(|_| {
            let limit = self.lanes.limits.instances;
            let text =
                format!("this policy or its namespace has its share of the {limit} policy instances of this replica");
            LaneError::Overloaded { text }
        })?;
        Ok(Permits { _running: running, _instance: self.lanes.in_use(instance) })
    }

    /// One more instance for an evaluation that runs already, if there is one to spare.
    pub(crate) fn spare_instance(&self) -> Option<InstancePermit> {
        self.lanes.instances.try_take(&self.one()).map(|permit| self.lanes.in_use(permit))
    }

    fn one(&self) -> Claim {
        Claim { who: Arc::clone(&self.who), amount: 1, has: 0 }
    }

    /// Waits for one of the running evaluations to end, if the queue is not full.
    async fn queue(&self, deadline: Instant) -> Result<OwnedSemaphorePermit, LaneError> {
        let limit = self.lanes.limits.running;
        let mean = Some(self.mean.load(Ordering::Relaxed)).filter(|_| self.is_long.load(Ordering::Relaxed));
        let room = limit * queue_factor(deadline.saturating_duration_since(Instant::now()), mean);
        let waiting = Waiting::new(&self.waiting);
        let overloaded = |queue: &str| {
            let text = format!("{limit} evaluations of this policy, its limit, are under way already, and {queue}");
            LaneError::Overloaded { text }
        };
        if waiting.place > room {
            return Err(overloaded(&format!("its queue of {room} requests is full")));
        }
        wait(&self.running, deadline).await.ok_or_else(|| overloaded("this request waited in its queue for too long"))
    }
}

/// How many requests may wait for each one that may run, where one has this much time left, and evaluations take `mean` microseconds; none if
/// the latest ones were short. Behind long evaluations only so many may wait as can be served in time; before it is known how long they
/// take, few.
fn queue_factor(left: Duration, mean: Option<u64>) -> usize {
    let factor = match mean {
        None => QUEUE_FACTOR,
        Some(0) => 1,
        Some(mean) => {
            let rounds = (left / IN_QUEUE).as_micros() / u128::from(mean);
            u32::try_from(rounds).unwrap_or(u32::MAX).clamp(1, QUEUE_FACTOR)
        }
    };
    usize::try_from(factor).expect("it is small")
}

/// The mean in microseconds after one more evaluation.
fn mean_with(mean: u64, took: Duration) -> u64 {
    let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1);
    match mean {
        0 => took,
        mean => (mean - mean / WEIGHT).saturating_add(took / WEIGHT).max(1),
    }
}

async fn wait(semaphore: &Arc<Semaphore>, deadline: Instant) -> Option<OwnedSemaphorePermit> {
    timeout_at(deadline.into(), Arc::clone(semaphore).acquire_owned()).await.ok()?.ok()
}

/// One request in the queue; dropping it takes it out.
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

#[cfg(test)]
mod tests {
    use rustix::time::{ClockId, clock_gettime};

    use super::*;
    use crate::lanes::LaneLimits;
    use crate::memory::MemoryPlan;
    use crate::metrics::Metrics;

    fn lanes(limits: LaneLimits) -> impl Fn(&str) -> Arc<Share> {
        let metrics = Metrics::new().expect("registers");
        let lanes = Lanes::new(limits, MemoryPlan::unlimited(), &metrics).expect("starts");
        move |id| {
            let id = id.parse().expect("an id");
            Arc::new(Share::new(Arc::clone(&lanes), &id, metrics.policy(&id)))
        }
    }

    fn share(limits: LaneLimits) -> Arc<Share> {
        lanes(limits)("cluster/a")
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
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
        assert_eq!(result, Err(LaneError::TimedOut));
    }

    #[tokio::test]
    async fn a_panic_ends_one_evaluation() {
        let share = share(LaneLimits::new(4, 1));
        assert_eq!(share.run(soon(), async { panic!("on purpose") }).await, Err::<(), _>(LaneError::Panicked));
        assert_eq!(share.run(soon(), async { 1 }).await, Ok(1));
    }

    #[tokio::test]
    async fn beyond_bound_and_queue_requests_are_refused_at_once() {
        let share = share(LaneLimits { instances: 8, threads: 1, running: 1 });
        let mut running = Vec::new();
        for _ in 0..=QUEUE_FACTOR {
            let share = Arc::clone(&share);
            running.push(tokio::spawn(async move { share.run(soon(), std::future::pending::<()>()).await }));
            tokio::task::yield_now().await;
        }
        let before = Instant::now();
        let refusal = share.run(soon(), async {}).await.expect_err("refused");
        let text =
            "1 evaluations of this policy, its limit, are under way already, and its queue of 8 requests is full";
        assert_eq!(refusal, LaneError::Overloaded { text: text.to_owned() });
        assert!(before.elapsed() < Duration::from_secs(30));
        running.iter().for_each(|task| task.abort());
    }

    #[test]
    fn the_queue_has_room_for_what_can_be_in_time() {
        let of = |left, mean: u64| queue_factor(Duration::from_millis(left), Some(mean * 1000));
        assert_eq!(queue_factor(Duration::ZERO, None), 8, "the latest evaluations were short");
        assert_eq!((of(2000, 15), of(2000, 50), of(2000, 125)), (8, 8, 8));
        assert_eq!((of(2000, 200), of(2000, 400), of(2000, 2000)), (5, 2, 1));
        assert_eq!((of(100, 15), of(0, 15)), (3, 1));
        assert_eq!((of(2000, 0), of(u64::MAX / 1000, 1)), (1, 8));
    }

    #[test]
    fn the_mean_follows_the_latest_evaluations() {
        let after =
            |mean, millis, times| (0..times).fold(mean, |mean, _| mean_with(mean, Duration::from_millis(millis)));
        assert_eq!((after(0, 15, 1), after(0, 15, 100)), (15_000, 15_000));
        assert_eq!(after(15_000, 2000, 1), 13_125 + 250_000);
        assert!(after(15_000, 2000, 20) > 1_800_000, "one that loops is known soon");
        assert!(after(2_000_000, 15, 40) < 30_000, "and forgotten after a while");
        assert!(
            mean_with(0, Duration::ZERO) > 0
                && mean_with(1, Duration::ZERO) > 0
                && mean_with(u64::MAX, Duration::MAX) > 0
        );
    }

    #[tokio::test]
    async fn a_burst_for_a_policy_that_takes_a_few_ticks_waits_and_is_answered() {
        let share = share(LaneLimits { instances: 8, threads: 1, running: 1 });
        let evaluation = || async {
            let used = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("it is not negative");
            tokio::task::yield_now().await;
            let end = used() + portcullis_engine::TICK;
            while used() < end {}
        };
        assert_eq!(share.run(soon(), evaluation()).await, Ok(()));
        assert!(share.is_long.load(Ordering::Relaxed));
        let burst = (0..=QUEUE_FACTOR).map(|_| share.run(soon(), evaluation()));
        assert_eq!(futures::future::join_all(burst).await, vec![Ok(()); 9]);
    }

    #[tokio::test]
    async fn what_requests_leave_over_runs_in_the_slow_lane() {
        let here = std::thread::current().id();
        let share = share(LaneLimits::new(4, 1));
        assert_ne!(share.run_spare(soon(), async { std::thread::current().id() }).await, Ok(Ok(here)));
        assert_eq!(share.metrics.seconds.get_sample_count(), 0, "it is no evaluation of a request");
        let panics = share.run_spare(soon(), async { panic!("on purpose") }).await;
        assert_eq!(panics, Ok(Err::<(), _>(LaneError::Panicked)));
        let deadline = Instant::now() + Duration::from_millis(20);
        assert_eq!(share.run_spare(deadline, std::future::pending::<()>()).await, Ok(Err(LaneError::TimedOut)));
    }

    #[tokio::test]
    async fn where_requests_need_everything_nothing_is_left_over() {
        let share = share(LaneLimits { instances: 8, threads: 1, running: 1 });
        let running = tokio::spawn({
            let share = Arc::clone(&share);
            async move { share.run(soon(), std::future::pending::<()>()).await }
        });
        while share.running.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(share.run_spare(soon(), async {}).await, Err(Needed::Places));
        running.abort();
    }

    #[tokio::test]
    async fn load_of_the_replica_is_told_from_that_of_the_policy() {
        for (instances, needed) in [(1, Needed::Instances), (2, Needed::Long)] {
            let share = lanes(LaneLimits { instances, threads: 1, running: 1 });
            let (busy, idle) = (share("namespaced/a/busy"), share("namespaced/b/idle"));
            let running = tokio::spawn(async move { busy.run(soon(), std::future::pending::<()>()).await });
            while idle.lanes.long.try_take(&idle.one()).is_some() {
                tokio::task::yield_now().await;
            }
            assert_eq!(idle.run_spare(soon(), async {}).await, Err(needed));
            running.abort();
        }
    }

    #[tokio::test]
    async fn own_work_that_is_long_goes_on_in_the_slow_lane_and_needs_no_instance() {
        let here = std::thread::current().id();
        let share = share(LaneLimits { instances: 1, threads: 1, running: 1 });
        let _all = share.spare_instance().expect("it is free");
        let thread = || std::thread::current().id();
        assert_eq!(share.run_own_work(soon(), async move { thread() }).await, Ok(here));
        let yields = async move {
            tokio::task::yield_now().await;
            // Processor time and not the clock, as the machine may be busy with other programs.
            let used = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("it is not negative");
            let end = used() + portcullis_engine::TICK * 2;
            while used() < end {}
            thread()
        };
        assert_ne!(share.run_own_work(soon(), yields).await.expect("ends"), here);
        assert_ne!(
            share.run_own_work(soon(), async move { thread() }).await.expect("ends"),
            here,
            "the last one was long"
        );
        assert_eq!(share.run_own_work(soon(), async move { thread() }).await, Ok(here), "that one was not");
        let late = share.run_own_work(Instant::now(), std::future::pending::<()>()).await;
        assert_eq!(late, Err(LaneError::TimedOut));
    }

    #[tokio::test]
    async fn who_hangs_up_gives_the_place_back() {
        let share = share(LaneLimits { instances: 1, threads: 1, running: 1 });
        for _ in 0..50 {
            let call = share.run(soon(), std::future::pending::<()>());
            assert!(tokio::time::timeout(Duration::from_millis(1), call).await.is_err());
        }
        assert_eq!(share.run(soon(), async { 1 }).await, Ok(1));
    }
}
