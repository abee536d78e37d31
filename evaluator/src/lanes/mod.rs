//! Which evaluations may run, and on which threads: a limit for each policy, and a lane of its own for those that take long.
//!
//! ```text
//!  request ──► share (limit, short queue) ──► instance ──► fast lane: the thread that accepted the request, up to two ticks
//!                       │                                       │ still running
//!                       └─ full: refused at once                └──► long permit ──► slow lane: threads of low priority,
//!                                                                                    a turn of one tick each
//! ```
//!
//! A short evaluation never changes threads. A long one, an endless loop for instance, costs the fast lane at most two ticks and then
//! competes with other long ones only: the slow lane's threads have such a low priority (a niceness of 10) that the kernel takes them
//! off the processor whenever a short evaluation needs it.
//!
//! Instances, long permits, loads and the memory of guests are shared by one rule, which [`crate::fair`] describes. Turns of the slow
//! lane have an order of their own, in [`schedule`], since processor time is used up and does not come back.

mod error;
mod load_times;
mod loads;
mod schedule;
mod share;
mod slow_lane;
mod width;

use std::any::Any;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use portcullis_contract::MAX_CHECKS;
use portcullis_engine::TICK;
use prometheus::IntGauge;
use tokio::runtime::Runtime;
use tokio::time::timeout_at;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

pub(crate) use self::error::LaneError;
pub(crate) use self::load_times::LoadTimes;
use self::load_times::Record;
use self::loads::Loads;
pub(crate) use self::share::{Needed, Share};
use self::slow_lane::{Scheduled, Scheduler};
use crate::fair::claimant::Claimant;
use crate::fair::pool::{PolicyPermit, PolicyPool};
use crate::memory::{GuestMemory, MemoryPlan};
use crate::metrics::Metrics;

/// The niceness of the slow lane's threads. A thread of niceness 10 has a tenth of the weight of a normal one, and a normal
/// one that wakes up takes its place at once; yet it still gets some time on a busy machine.
const NICENESS: i32 = 10;
/// The most time that a first turn takes if its thread runs all the while: it is to yield at the end of a tick, and may begin within one.
const FIRST_TURN: Duration = TICK.saturating_mul(2);
/// How long a load may still run after its deadline.
const GRACE: Duration = Duration::from_millis(500);
/// The most claims that wait for an instance, a long permit or a load. Shares let far fewer through; this is only to have a limit.
const QUEUE: usize = 1 << 16;

/// The limits of the lanes.
#[derive(Debug, Clone, Copy)]
pub struct LaneLimits {
    /// The most instances at the same time, of all policies together: as many as the engine's pool has.
    pub instances: usize,
    /// The number of threads of the slow lane.
    pub threads: usize,
    /// The most evaluations of one policy at the same time.
    pub running: usize,
}

impl LaneLimits {
    /// The limits for a machine with `cores` cores.
    pub fn new(instances: usize, cores: usize) -> Self {
        let instances = instances.max(1);
        let running = (4 * cores).max(8).min(instances);
        Self { instances, threads: cores.max(1), running }
    }

    /// The most instances that long evaluations may hold; the rest is always free for short ones.
    fn long(self) -> usize {
        (self.instances / 2).max(1)
    }

    /// The most candidates that are started and checked at the same time.
    fn loading(self) -> usize {
        (self.instances / 4).max(1)
    }

    /// The most policies that are checked at the same time because somebody applies them.
    fn trying(self) -> usize {
        (self.loading() / 2).clamp(1, MAX_CHECKS)
    }
}

/// The slow lane, and the instances that all policies share.
pub struct Lanes {
    limits: LaneLimits,
    instances: Arc<PolicyPool>,
    long: Arc<PolicyPool>,
    loading: Loads,
    /// Permits for policies that are only checked. They are separate from `loading`, so that a check that hangs keeps no policy of the
    /// installation from loading.
    trying: Loads,
    memory: Arc<GuestMemory>,
    order: Arc<Scheduler>,
    in_use: IntGauge,
    /// None only while this is dropped.
    slow: Option<Runtime>,
}

impl Lanes {
    /// Starts the slow lane.
    ///
    /// # Errors
    /// When its threads cannot be started.
    pub fn new(limits: LaneLimits, memory: MemoryPlan, metrics: &Metrics) -> io::Result<Arc<Self>> {
        let slow = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(limits.threads)
            .thread_name("slow-lane")
            .enable_time()
            .on_thread_start(|| {
                // A value and not a difference: threads for offloaded work are started by those of the lane and inherit their priority.
                // Where the kernel does not allow it, long evaluations compete on equal terms: slower, but still correct.
                if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
                    tracing::debug!(%error, "failed to lower the priority of a thread");
                }
            })
            .build()?;
        metrics.instance_limit.set(i64::try_from(limits.instances).unwrap_or(i64::MAX));
        let permits = |n: usize| PolicyPool::new(u64::try_from(n).unwrap_or(u64::MAX), 1, QUEUE);
        Ok(Arc::new(Self {
            limits,
            instances: permits(limits.instances),
            long: permits(limits.long()),
            loading: Loads::new(limits.loading()),
            trying: Loads::new(limits.trying()),
            memory: GuestMemory::new(memory, metrics),
            order: Scheduler::new(limits.threads),
            in_use: metrics.instances.clone(),
            slow: Some(slow),
        }))
    }

    /// The limits.
    pub fn limits(&self) -> LaneLimits {
        self.limits
    }

    /// The memory of the instances of all policies.
    pub(crate) fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Runs the future that `start` makes for its deadline, outside any policy's share: for loading. `timeout` begins when there is room,
    /// which one that `was_starved` before waits for alone. Gives its result, and the times that it had.
    pub(crate) async fn load<F>(
        &self,
        who: &Arc<Claimant>,
        timeout: Duration,
        was_starved: bool,
        start: impl FnOnce(Instant) -> F,
    ) -> (Result<F::Output, LaneError>, LoadTimes)
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let record = Arc::default();
        let result = self.load_recorded(who, timeout, was_starved, start, &record).await;
        (result, record.times(Instant::now()))
    }

    async fn load_recorded<F>(
        &self,
        who: &Arc<Claimant>,
        timeout: Duration,
        was_starved: bool,
        start: impl FnOnce(Instant) -> F,
        record: &Arc<Record>,
    ) -> Result<F::Output, LaneError>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let permits = self.admit_load(who, timeout, was_starved).await?;
        let deadline = Instant::now() + timeout;
        let mut future = Box::pin(AssertUnwindSafe(start(deadline)).catch_unwind());
        // The first turn counts by the clock, as valgrind, which counts the instructions of this path, does not know that of a thread. What is
        // beyond the most that it can take, its thread did not run. Where that is too little, the load is only tried once more.
        let before = Instant::now();
        let first = first_turn(&mut future).await;
        record.end_turn(Instant::now(), before.elapsed().min(FIRST_TURN), false);
        if let Poll::Ready(output) = first {
            return output.map_err(panicked);
        }
        let turns = Scheduled::new(future, Arc::clone(&self.order), Arc::clone(who), None).recorded(Arc::clone(record));
        let turns = async move {
            let output = turns.await;
            drop(permits);
            output
        };
        // A guest that notices the deadline itself can say what it was doing; only one that does not is ended from outside.
        self.slow_turns(deadline + GRACE, turns).await
    }

    /// Runs work of this program that requests do not wait for on the slow lane's threads, until these end.
    pub(crate) fn spawn_slow(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.slow().spawn(work.in_current_span());
    }

    /// Runs `turns` in the slow lane, until `deadline` at the latest.
    async fn slow_turns<T: Send + 'static>(
        &self,
        deadline: Instant,
        turns: impl Future<Output = std::thread::Result<T>> + Send + 'static,
    ) -> Result<T, LaneError> {
        let task = AbortOnDropHandle::new(self.slow().spawn(turns.in_current_span()));
        // The timer runs in the caller's own lane: the answer is on time, however full the slow lane is.
        match timeout_at(deadline.into(), task).await {
            Ok(Ok(output)) => output.map_err(panicked),
            // The task ends early only by a panic outside the future, or with the slow lane itself.
            Ok(Err(_)) => Err(LaneError::Panicked),
            Err(_) => Err(LaneError::TimedOut),
        }
    }

    fn in_use(&self, permit: PolicyPermit) -> InstancePermit {
        self.in_use.inc();
        InstancePermit { in_use: self.in_use.clone(), _permit: permit }
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
pub(crate) struct InstancePermit {
    in_use: IntGauge,
    _permit: PolicyPermit,
}

impl Drop for InstancePermit {
    fn drop(&mut self) {
        self.in_use.dec();
    }
}

/// Polls once, on this thread.
async fn first_turn<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

fn panicked(_: Box<dyn Any + Send>) -> LaneError {
    LaneError::Panicked
}

#[cfg(test)]
mod tests {
    use portcullis_contract::PolicyId;
    use rustix::process::getpriority_process;
    use rustix::time::ClockId;
    use tokio::task::spawn_blocking;
    use tokio::time::timeout;

    use super::slow_lane::time;
    use super::*;

    #[tokio::test]
    async fn offloaded_work_has_the_priority_of_the_lane() {
        let metrics = Metrics::new().expect("registers");
        let lanes = Lanes::new(LaneLimits::new(4, 1), MemoryPlan::unlimited(), &metrics).expect("starts");
        let priority = || getpriority_process(None).expect("a priority");
        let before = priority();
        let found = lanes.slow().spawn(async move { (priority(), spawn_blocking(priority).await.expect("ends")) });
        let (lane, offloaded) = found.await.expect("ends");
        assert!(lane >= NICENESS, "{lane}");
        assert_eq!(offloaded, lane);
        assert_eq!(priority(), before, "that of other threads stays");
    }

    #[tokio::test]
    async fn a_load_tells_what_it_used_and_how_long_it_waited() {
        let metrics = Metrics::new().expect("registers");
        let lanes = Lanes::new(LaneLimits::new(4, 1), MemoryPlan::unlimited(), &metrics).expect("starts");
        let who = Claimant::new(&"cluster/a".parse().expect("an id"));
        let spins = |_| {
            let mut left = 3;
            poll_fn(move |cx| {
                if left == 0 {
                    return Poll::Ready(());
                }
                left -= 1;
                let end = time(ClockId::ThreadCPUTime) + Duration::from_millis(10);
                while time(ClockId::ThreadCPUTime) < end {}
                cx.waker().wake_by_ref();
                Poll::Pending
            })
        };
        let (result, times) = lanes.load(&who, Duration::from_secs(60), false, spins).await;
        assert!(result == Ok(()) && times.used >= Duration::from_millis(30), "{times:?}");
        assert_eq!(times.waited, Duration::ZERO);
        // It ends from outside, while it waits. On a busy machine it is late to begin with that.
        let (result, times) = lanes.load(&who, Duration::from_secs(1), false, |_| std::future::pending::<()>()).await;
        assert_eq!(result, Err(LaneError::TimedOut));
        assert!(times.waited > Duration::ZERO, "{times:?}");
    }

    #[tokio::test]
    async fn a_thread_that_is_stopped_in_the_first_turn_gives_its_load_no_processor_time() {
        let metrics = Metrics::new().expect("registers");
        let lanes = Lanes::new(LaneLimits::new(4, 1), MemoryPlan::unlimited(), &metrics).expect("starts");
        let who = Claimant::new(&"cluster/a".parse().expect("an id"));
        let stopped = |_| async { std::thread::sleep(TICK * 20) };
        let (result, times) = lanes.load(&who, Duration::from_secs(60), false, stopped).await;
        assert_eq!((result, times.used), (Ok(()), TICK * 2));
    }

    #[tokio::test]
    async fn candidates_that_hang_in_many_namespaces_keep_no_policy_from_loading() {
        let metrics = Metrics::new().expect("registers");
        let lanes = Lanes::new(LaneLimits::new(64, 1), MemoryPlan::unlimited(), &metrics).expect("starts");
        let hang = |number: u64| {
            let id = PolicyId::check(Some(&format!("team-{number}")), number).expect("an id");
            let lanes = Arc::clone(&lanes);
            AbortOnDropHandle::new(tokio::spawn(async move {
                lanes.load(&Claimant::new(&id), Duration::from_secs(600), false, |_| std::future::pending::<()>()).await
            }))
        };
        let _flood: Vec<_> = (0..64).map(hang).collect();
        while metrics.instances.get() < i64::try_from(lanes.limits.trying()).expect("small") {
            tokio::task::yield_now().await;
        }
        let policy = Claimant::new(&"namespaced/a/policy".parse().expect("an id"));
        let load = lanes.load(&policy, Duration::from_secs(60), false, |_| std::future::ready(7));
        assert_eq!(timeout(Duration::from_secs(60), load).await.expect("there is room").0, Ok(7));
        assert!(metrics.instances.get() <= i64::try_from(lanes.limits.trying()).expect("small"));
    }
}
