//! A [`Queue`] that jobs can wait in.

use std::sync::{Arc, Mutex};

use portcullis_contract::Tenant;
use portcullis_util::lock;
use tokio::sync::oneshot;

use super::JobContext;
use super::queue::Queue;

/// A limited number of jobs at the same time; the others wait for their turn.
pub(crate) struct Slots(Mutex<Queue<Waiting>>);

/// A job's turn; it ends when this is dropped.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    tenant: Tenant,
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
        Arc::new(Self(Mutex::new(Queue::new(slots))))
    }

    /// Waits for a turn of the job with this context.
    pub(super) async fn turn(self: &Arc<Self>, context: &Arc<JobContext>) -> Slot {
        let (sender, slot) = oneshot::channel();
        let ticket = lock(&self.0).wait(context.claims(), Waiting { context: Arc::clone(context), slot: sender });
        let _leave = LeaveOnDrop { slots: self, ticket };
        self.serve();
        slot.await.expect("a waiting job gets a slot, or has left the queue")
    }

    /// Orders waiting jobs again, after the tenants that need them have changed.
    pub(super) fn renew(self: &Arc<Self>) {
        lock(&self.0).renew(|waiting| waiting.context.claims());
        self.serve();
    }

    /// Gives free slots to waiting jobs.
    fn serve(self: &Arc<Self>) {
        loop {
            let Some((tenant, waiting)) = lock(&self.0).next() else { return };
            // If the job has gone meanwhile, the slot is dropped here, which gives it back. That needs the lock, which must be free by then.
            drop(waiting.slot.send(Slot { slots: Arc::clone(self), tenant }));
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.slots.0).give_back(&self.tenant);
        self.slots.serve();
    }
}

impl Drop for LeaveOnDrop<'_> {
    fn drop(&mut self) {
        let left = lock(&self.slots.0).leave(self.ticket);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

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
}
