//! A [`Queue`] that jobs can wait in.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use portcullis_util::lock;
use tokio::sync::{Notify, oneshot};

use super::JobContext;
use super::queue::Queue;

/// How often it is looked whether a running job has had its time.
const LOOK: Duration = Duration::from_secs(1);

/// A limited number of jobs at the same time; the others wait for their turn.
pub(crate) struct Slots(Mutex<State>);

struct State {
    queue: Queue<Waiting>,
    /// How a running job gets to know that it must end, by ticket.
    ends: HashMap<u64, Arc<Notify>>,
}

/// A job's turn; it ends when this is dropped.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    ticket: u64,
    end: Arc<Notify>,
}

struct Waiting {
    context: Arc<JobContext>,
    slot: oneshot::Sender<Slot>,
}

/// The ticket of a waiting job, which leaves the queue when this is dropped.
struct LeaveOnDrop<'a> {
    slots: &'a Slots,
    ticket: u64,
}

impl Slots {
    /// This many slots, at least one.
    pub(super) fn new(slots: usize) -> Arc<Self> {
        Self::of(Queue::new(slots))
    }

    /// The same, where jobs that [`Slot::run`] runs are ended for others.
    pub(super) fn preempting(slots: usize) -> Arc<Self> {
        Self::of(Queue::preempting(slots))
    }

    fn of(queue: Queue<Waiting>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { queue, ends: HashMap::new() })))
    }

    /// Waits for a turn of the job with this context.
    pub(super) async fn turn(self: &Arc<Self>, context: &Arc<JobContext>) -> Slot {
        let (sender, slot) = oneshot::channel();
        let waiting = Waiting { context: Arc::clone(context), slot: sender };
        let ticket = lock(&self.0).queue.wait(context.claims(), waiting, Instant::now());
        let _leave = LeaveOnDrop { slots: self, ticket };
        self.serve();
        slot.await.expect("a waiting job gets a slot, or has left the queue")
    }

    /// Orders waiting jobs again, after the tenants that need them have changed.
    pub(super) fn renew(self: &Arc<Self>) {
        lock(&self.0).queue.renew(|waiting| waiting.context.claims());
        self.serve();
    }

    /// Gives free slots to waiting jobs, and ends a running one if that must be.
    fn serve(self: &Arc<Self>) {
        let now = Instant::now();
        loop {
            let Some((ticket, waiting)) = lock(&self.0).queue.next(now) else { break };
            let end = Arc::<Notify>::default();
            lock(&self.0).ends.insert(ticket, Arc::clone(&end));
            // If the job has gone meanwhile, the slot is dropped here, which gives it back. That needs the lock, which must be free then.
            drop(waiting.slot.send(Slot { slots: Arc::clone(self), ticket, end }));
        }
        let mut state = lock(&self.0);
        if let Some(end) = state.queue.preempt(now).and_then(|ticket| state.ends.get(&ticket)) {
            end.notify_one();
        }
    }
}

impl Slot {
    /// Does a job's work in its turn. `None` if it had to end before for another job, and should be done again in another turn.
    pub(super) async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let mut look = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                biased;
                result = &mut work => return Some(result),
                () = self.end.notified() => return None,
                _ = look.tick() => self.slots.serve(),
            }
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        {
            let mut state = lock(&self.slots.0);
            state.ends.remove(&self.ticket);
            state.queue.give_back(self.ticket, Instant::now());
        }
        self.slots.serve();
    }
}

impl Drop for LeaveOnDrop<'_> {
    fn drop(&mut self) {
        let left = lock(&self.slots.0).queue.leave(self.ticket);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use portcullis_contract::Tenant;

    use super::*;
    use crate::claims::{Claims, Need};

    fn context(tenant: Tenant) -> Arc<JobContext> {
        let mut claims = Claims::default();
        claims.add(&tenant, Need::New);
        Arc::new(JobContext::new(claims))
    }

    #[test]
    fn a_turn_ends_with_what_was_given_and_who_goes_leaves_the_line() {
        let (slots, context) = (Slots::new(1), context(Tenant::Cluster));
        let first = slots.turn(&context).now_or_never().expect("it is free");
        let mut gone = Box::pin(slots.turn(&context));
        let mut next = Box::pin(slots.turn(&context));
        assert!(gone.as_mut().now_or_never().is_none() && next.as_mut().now_or_never().is_none());
        drop(gone);
        drop(first);
        assert!(next.now_or_never().is_some());
    }

    #[test]
    fn who_went_after_its_turn_came_gives_it_to_the_next() {
        let (slots, context) = (Slots::new(1), context(Tenant::Cluster));
        let first = slots.turn(&context).now_or_never().expect("it is free");
        let mut gone = Box::pin(slots.turn(&context));
        let mut next = Box::pin(slots.turn(&context));
        assert!(gone.as_mut().now_or_never().is_none() && next.as_mut().now_or_never().is_none());
        drop(first);
        drop(gone);
        assert!(next.now_or_never().is_some());
    }

    #[test]
    fn what_somebody_else_wants_by_now_may_begin() {
        let (slots, job) = (Slots::new(2), context(Tenant::Namespace("a".into())));
        let _first = slots.turn(&job).now_or_never().expect("it is free");
        let mut second = Box::pin(slots.turn(&job));
        assert!(second.as_mut().now_or_never().is_none(), "one slot is left to others");
        let mut claims = Claims::default();
        claims.add(&Tenant::Cluster, Need::New);
        assert!(job.claim(&claims) && !job.claim(&claims));
        slots.renew();
        assert!(second.now_or_never().is_some());
    }

    #[tokio::test]
    async fn z09_work_is_ended_for_what_is_needed_more_and_goes_on_otherwise() {
        let slots = Slots::preempting(1);
        let (tenant, cluster) = (context(Tenant::Namespace("a".into())), context(Tenant::Cluster));
        let slot = slots.turn(&tenant).await;
        assert_eq!(slot.run(async { 1 }).await, Some(1));
        let mut work = Box::pin(slot.run(std::future::pending::<()>()));
        assert!(work.as_mut().now_or_never().is_none(), "nothing waits");
        let mut next = Box::pin(slots.turn(&cluster));
        assert!(next.as_mut().now_or_never().is_none(), "it waits until the work has ended");
        assert_eq!(work.await, None);
        drop(slot);
        let slot = next.now_or_never().expect("it is free");
        let mut again = Box::pin(slots.turn(&tenant));
        assert!(again.as_mut().now_or_never().is_none());
        assert_eq!(slot.run(async { 2 }).await, Some(2));
        drop(slot);
        assert!(again.now_or_never().is_some());
    }
}
