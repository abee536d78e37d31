//! An evaluation in the slow lane: it is polled when it has a turn, and only then.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;
use portcullis_util::lock;
use rustix::time::{ClockId, clock_gettime};

use super::load_times::Record;
use super::schedule::Schedule;
use super::width::TurnUsage;
use crate::fair::claimant::Claimant;

/// Gives turns to all evaluations of the lane.
pub(super) struct Scheduler(Mutex<Schedule<Arc<Slot>>>);

/// The signals between the scheduler and one evaluation.
struct Slot {
    has_turn: AtomicBool,
    /// Whether it was woken since its turn began: it has yielded and can go on, or what it waited for has come.
    wants: AtomicBool,
    task: AtomicWaker,
}

/// A future that is polled in turns.
pub(super) struct Scheduled<F> {
    future: Pin<Box<F>>,
    order: Arc<Scheduler>,
    who: Arc<Claimant>,
    slot: Arc<Slot>,
    /// Wakes the slot.
    waker: Waker,
    is_queued: bool,
    used: Duration,
    /// Set to true once it has used a tick of processor time: the policy's next evaluation then begins in this lane.
    is_long: Option<Arc<AtomicBool>>,
    /// Where its times are recorded; none if nobody asks for them.
    record: Option<Arc<Record>>,
}

impl Scheduler {
    /// A scheduler of at most `most` turns at the same time.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Schedule::new(most))))
    }

    /// Gives turns to the evaluations that are next.
    fn serve(turns: &mut Schedule<Arc<Slot>>) {
        while let Some(slot) = turns.next() {
            slot.has_turn.store(true, Ordering::SeqCst);
            slot.task.wake();
        }
    }
}

impl PartialEq for Slot {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Wake for Slot {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wants.store(true, Ordering::SeqCst);
        self.task.wake();
    }
}

impl<F> Scheduled<F> {
    /// A future that is polled in turns of the policy `who`.
    pub(super) fn new(
        future: Pin<Box<F>>,
        order: Arc<Scheduler>,
        who: Arc<Claimant>,
        is_long: Option<Arc<AtomicBool>>,
    ) -> Self {
        lock(&order.0).enter(&who);
        let slot = Arc::new(Slot {
            has_turn: AtomicBool::new(false),
            wants: AtomicBool::new(false),
            task: AtomicWaker::new(),
        });
        let waker = Waker::from(Arc::clone(&slot));
        Self { future, order, who, slot, waker, is_queued: false, used: Duration::ZERO, is_long, record: None }
    }

    /// The same, which records its times.
    pub(super) fn recorded(mut self, record: Arc<Record>) -> Self {
        self.record = Some(record);
        self
    }

    /// Ends a turn. If the evaluation wants another one, it is queued before the next turns are given.
    fn end_turn(&mut self, turn: TurnUsage, wants: bool) {
        let mut turns = lock(&self.order.0);
        self.slot.has_turn.store(false, Ordering::SeqCst);
        turns.end(&self.who, turn);
        if wants {
            turns.ask(&self.who, Arc::clone(&self.slot));
        }
        self.is_queued = wants;
        Scheduler::serve(&mut turns);
    }
}

impl<F: Future> Future for Scheduled<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.slot.task.register(cx.waker());
        if !this.is_queued {
            this.is_queued = true;
            if let Some(record) = &this.record {
                record.begin_turn(Instant::now());
            }
            let mut turns = lock(&this.order.0);
            turns.ask(&this.who, Arc::clone(&this.slot));
            Scheduler::serve(&mut turns);
        }
        if !this.slot.has_turn.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        this.slot.wants.store(false, Ordering::SeqCst);
        let (begin, before) = (Instant::now(), time(ClockId::ThreadCPUTime));
        let poll = this.future.as_mut().poll(&mut Context::from_waker(&this.waker));
        let used = time(ClockId::ThreadCPUTime).saturating_sub(before);
        let turn = TurnUsage { took: begin.elapsed(), used, clock: clock(), program: time(ClockId::ProcessCPUTime) };
        this.used += used;
        let is_long = this.used >= portcullis_engine::TICK;
        if let Some(told) = this.is_long.as_ref().filter(|_| is_long || poll.is_ready()) {
            told.store(is_long, Ordering::Relaxed);
        }
        let wants = poll.is_pending() && this.slot.wants.load(Ordering::SeqCst);
        if let Some(record) = &this.record {
            record.end_turn(Instant::now(), used, poll.is_pending() && !wants);
        }
        this.end_turn(turn, wants);
        poll
    }
}

impl<F> Drop for Scheduled<F> {
    fn drop(&mut self) {
        let mut turns = lock(&self.order.0);
        if self.slot.has_turn.swap(false, Ordering::SeqCst) {
            turns.end_unused(&self.who, Duration::ZERO);
        }
        turns.leave(&self.who, &self.slot);
        Scheduler::serve(&mut turns);
    }
}

/// A clock that only moves forward.
fn clock() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}

pub(super) fn time(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Spins for a millisecond, and yields, `times` times.
    fn spins(times: usize, done: Arc<AtomicUsize>) -> impl Future<Output = ()> + Send {
        let mut left = times;
        poll_fn(move |cx| {
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            let end = Instant::now() + Duration::from_millis(1);
            while Instant::now() < end {}
            done.fetch_add(1, Ordering::SeqCst);
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    }

    fn who(id: &str) -> Arc<Claimant> {
        Claimant::new(&id.parse().expect("an id"))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn one_evaluation_has_as_many_turns_as_forty() {
        let order = Scheduler::new(1);
        let greedy = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..40)
            .map(|_| {
                let future = Box::pin(spins(1000, Arc::clone(&greedy)));
                tokio::spawn(Scheduled::new(future, Arc::clone(&order), who("namespaced/a/x"), None))
            })
            .collect();
        while greedy.load(Ordering::SeqCst) < 10 {
            tokio::task::yield_now().await;
        }
        let before = greedy.load(Ordering::SeqCst);
        let modest = Arc::new(AtomicUsize::new(0));
        let future = Box::pin(spins(50, Arc::clone(&modest)));
        Scheduled::new(future, Arc::clone(&order), who("namespaced/b/x"), None).await;
        let meanwhile = greedy.load(Ordering::SeqCst) - before;
        assert_eq!(modest.load(Ordering::SeqCst), 50);
        // An evaluation whose thread the kernel does not run when its turn comes loses turns, so the numbers vary on a busy machine. Without
        // fairness the others would have forty times as many turns.
        assert!((10..=500).contains(&meanwhile), "{meanwhile}");
        tasks.iter().for_each(|task| task.abort());
    }

    #[tokio::test]
    async fn who_waits_for_something_holds_no_turn() {
        let order = Scheduler::new(1);
        let (tell, told) = tokio::sync::oneshot::channel::<()>();
        let waits = tokio::spawn(Scheduled::new(Box::pin(told), Arc::clone(&order), who("cluster/a"), None));
        tokio::task::yield_now().await;
        let spins = Box::pin(spins(3, Arc::default()));
        Scheduled::new(spins, Arc::clone(&order), who("cluster/b"), None).await;
        tell.send(()).expect("it waits");
        waits.await.expect("ends").expect("told");
    }

    #[tokio::test]
    async fn who_hangs_up_gives_its_turn_back() {
        let order = Scheduler::new(1);
        for _ in 0..3 {
            let endless =
                Scheduled::new(Box::pin(spins(usize::MAX, Arc::default())), Arc::clone(&order), who("cluster/a"), None);
            assert!(tokio::time::timeout(Duration::from_millis(20), endless).await.is_err());
        }
        Scheduled::new(Box::pin(spins(1, Arc::default())), order, who("cluster/b"), None).await;
    }
}
