//! A [`Fair`] stock that tasks can wait for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::policies::{Claim, Fair};
use crate::fair::claimant::Claimant;

/// A stock of permits or bytes that policies share.
pub(crate) struct Pool {
    fair: Mutex<Fair<oneshot::Sender<Permit>>>,
}

/// A part of a stock; it goes back when this is dropped.
pub(crate) struct Permit {
    pool: Arc<Pool>,
    who: Arc<Claimant>,
    amount: u64,
}

/// Nothing was to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NothingLeft {
    /// Too many wait already.
    QueueFull,
    /// Not until the deadline.
    TooLate,
    /// All that hold some wait for more, and this one had to give way.
    GivenUp,
}

/// A place in the queue; left when dropped.
struct Place<'a> {
    pool: &'a Pool,
    who: &'a Claimant,
    ticket: u64,
}

impl Pool {
    /// A stock of `capacity`; who holds nothing always gets `quantum` where that is free. At most `queue` wait.
    pub(crate) fn new(capacity: u64, quantum: u64, queue: usize) -> Arc<Self> {
        Arc::new(Self { fair: Mutex::new(Fair::new(capacity, quantum, queue)) })
    }

    /// Takes what is asked for, if it can be had at once.
    pub(crate) fn try_take(self: &Arc<Self>, claim: &Claim) -> Option<Permit> {
        self.lock().take(claim).then(|| self.permit(claim))
    }

    /// Takes what is asked for, or waits for it.
    ///
    /// # Errors
    /// When it cannot be had until `deadline`.
    pub(crate) async fn take(
        self: &Arc<Self>,
        claim: &Claim,
        deadline: Option<Instant>,
    ) -> Result<Permit, NothingLeft> {
        let (waiter, permit) = oneshot::channel();
        let ticket = {
            let mut fair = self.lock();
            if fair.take(claim) {
                return Ok(self.permit(claim));
            }
            fair.wait(claim, waiter).map_err(|_| NothingLeft::QueueFull)?
        };
        let _place = Place { pool: self, who: &claim.who, ticket };
        // With this one, nobody may be left who could give anything back.
        self.serve();
        let permit = match deadline {
            Some(deadline) => timeout_at(deadline.into(), permit).await.map_err(|_| NothingLeft::TooLate)?,
            None => permit.await,
        };
        permit.map_err(|_| NothingLeft::GivenUp)
    }

    /// Gives what there is to those who wait.
    fn serve(self: &Arc<Self>) {
        loop {
            let mut fair = self.lock();
            let Some((claim, waiter)) = fair.next() else {
                let given_up = fair.give_up();
                drop(fair);
                // Its receiver learns it by the end of the channel. What it holds comes back later, and then this begins anew.
                drop(given_up);
                return;
            };
            drop(fair);
            // Whoever has hung up meanwhile gives it back by that, which must not happen under the lock.
            drop(waiter.send(self.permit(&claim)));
        }
    }

    fn permit(self: &Arc<Self>, claim: &Claim) -> Permit {
        Permit { pool: Arc::clone(self), who: Arc::clone(&claim.who), amount: claim.amount }
    }

    fn lock(&self) -> MutexGuard<'_, Fair<oneshot::Sender<Permit>>> {
        self.fair.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// How much it is.
    pub(crate) fn amount(&self) -> u64 {
        self.amount
    }

    /// Makes one of two of the same policy.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.amount += std::mem::take(&mut other.amount);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.pool.lock().give_back(&self.who, self.amount);
            self.pool.serve();
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let left = self.pool.lock().leave(self.who, self.ticket);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;

    use super::*;

    fn claim(id: &str, amount: u64, has: u64) -> Claim {
        Claim { who: Claimant::new(&id.parse().expect("an id")), amount, has }
    }

    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(5))
    }

    #[tokio::test]
    async fn what_comes_back_goes_to_who_waits() {
        let pool = Pool::new(1, 1, 8);
        let held = pool.try_take(&claim("cluster/a", 1, 0)).expect("free");
        let waiting = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.take(&claim("cluster/b", 1, 0), soon()).await.map(|permit| permit.amount()) }
        });
        tokio::task::yield_now().await;
        drop(held);
        assert_eq!(waiting.await.expect("ends"), Ok(1));
        assert!(pool.try_take(&claim("cluster/a", 1, 0)).is_some(), "it came back again");
    }

    #[tokio::test]
    async fn a_deadline_ends_the_wait_and_the_place() {
        let pool = Pool::new(1, 1, 1);
        let _held = pool.try_take(&claim("cluster/a", 1, 0)).expect("free");
        for _ in 0..3 {
            let deadline = Some(Instant::now() + Duration::from_millis(5));
            let result = pool.take(&claim("cluster/b", 1, 0), deadline).await;
            assert_eq!(result.err(), Some(NothingLeft::TooLate));
        }
    }

    #[tokio::test]
    async fn who_hangs_up_while_it_is_served_loses_nothing_of_others() {
        let pool = Pool::new(1, 1, 8);
        let held = pool.try_take(&claim("cluster/a", 1, 0)).expect("free");
        let claim_b = claim("cluster/b", 1, 0);
        let mut waiting = Box::pin(pool.take(&claim_b, soon()));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(held);
        // It has been sent, and nobody has looked.
        drop(waiting);
        assert!(pool.try_take(&claim("cluster/c", 1, 0)).is_some());
    }

    #[tokio::test]
    async fn evaluations_that_wait_for_each_other_are_parted_at_once() {
        let pool = Pool::new(100, 1, 8);
        let grow = |id: &'static str| {
            let pool = Arc::clone(&pool);
            async move {
                let mut held = pool.take(&claim(id, 30, 0), soon()).await?;
                tokio::task::yield_now().await;
                held.merge(pool.take(&claim(id, 45, 30), soon()).await?);
                Ok::<_, NothingLeft>(held.amount())
            }
        };
        let before = Instant::now();
        let (one, other) = (tokio::spawn(grow("namespaced/a/x")), tokio::spawn(grow("namespaced/b/x")));
        let mut results = [one.await.expect("ends"), other.await.expect("ends")];
        results.sort_by_key(Result::is_err);
        assert_eq!(results, [Ok(75), Err(NothingLeft::GivenUp)]);
        assert!(before.elapsed() < Duration::from_secs(3));
    }
}
