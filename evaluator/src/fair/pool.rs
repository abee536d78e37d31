//! A stock that tasks can wait for, shared by a [`Rule`].

use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use portcullis_process::eviction::Peer;
use portcullis_util::lock;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use crate::fair::claimant::Claimant;
use crate::fair::policies::{ByPolicy, Claim};
use crate::fair::turns::ByTurn;
use crate::fair::{Grant, Rule};

/// A stock of permits or bytes.
pub(crate) struct Pool<R> {
    rule: Mutex<R>,
}

/// A stock that policies share.
pub(crate) type PolicyPool = Pool<ByPolicy<oneshot::Sender<PolicyPermit>>>;
/// A part of a stock that policies share.
pub(crate) type PolicyPermit = Permit<Arc<Claimant>>;
/// A stock that the addresses of clients share.
pub(crate) type PeerPool = TurnPool<Peer>;
/// A part of a stock that the addresses of clients share.
pub(crate) type PeerPermit = Permit<Peer>;
/// A stock at which owners take turns.
pub(crate) type TurnPool<K> = Pool<ByTurn<K, oneshot::Sender<Permit<K>>>>;

/// A part of a stock; it goes back when this is dropped.
pub(crate) struct Permit<O> {
    pool: Arc<dyn GiveBack<O>>,
    owner: O,
    amount: u64,
}

/// Why a claim was not met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NothingLeft {
    /// Too many claims wait already.
    QueueFull,
    /// Its deadline passed.
    TooLate,
    /// All that hold some wait for more, and this one had to give way.
    GivenUp,
}

/// A pool as its permits see it.
trait GiveBack<O>: Send + Sync {
    fn give_back(self: Arc<Self>, owner: &O, amount: u64);
}

/// A claim in the queue; dropping it takes it out.
struct Queued<'a, O, R>
where
    O: Send + Sync + 'static,
    R: Rule<Owner = O, Waiter = oneshot::Sender<Permit<O>>> + Send + 'static,
{
    pool: &'a Arc<Pool<R>>,
    claim: &'a R::Claim,
    ticket: R::Ticket,
}

impl PolicyPool {
    /// A stock of `capacity`, where a policy that holds nothing gets `quantum` if that is free. At most `queue` claims wait.
    pub(crate) fn new(capacity: u64, quantum: u64, queue: usize) -> Arc<Self> {
        Arc::new(Self { rule: Mutex::new(ByPolicy::new(capacity, quantum, queue)) })
    }

    /// A stock of `capacity` that each tenant gets in order, so that no large claim is overtaken without end. A policy that holds nothing gets
    /// `quantum` if that is free.
    pub(crate) fn in_order(capacity: u64, quantum: u64) -> Arc<Self> {
        Arc::new(Self { rule: Mutex::new(ByPolicy::in_order(capacity, quantum)) })
    }

    /// Whether what this one holds keeps a claim waiting ([`ByPolicy::is_in_the_way`]).
    pub(crate) fn is_in_the_way(&self, who: &Claimant) -> bool {
        lock(&self.rule).is_in_the_way(who)
    }

    /// Takes what is asked for, if it can be had at once and no claim waits that comes first ([`ByPolicy::gives_way`]).
    pub(crate) fn try_take_unwanted(self: &Arc<Self>, claim: &Claim) -> Option<PolicyPermit> {
        let grant = {
            let mut rule = lock(&self.rule);
            if rule.gives_way(claim) { None } else { rule.take(claim) }
        };
        grant.map(|grant| self.permit(grant))
    }
}

impl<K: Clone + Eq + Hash> TurnPool<K> {
    /// A stock of `total`, of which one owner may hold `most`.
    pub(crate) fn new(total: u64, most: u64) -> Arc<Self> {
        Arc::new(Self { rule: Mutex::new(ByTurn::new(total, most)) })
    }

    /// Whether any claim waits.
    pub(crate) fn is_waited_for(&self) -> bool {
        lock(&self.rule).is_waited_for()
    }
}

impl<O, R> Pool<R>
where
    O: Send + Sync + 'static,
    R: Rule<Owner = O, Waiter = oneshot::Sender<Permit<O>>> + Send + 'static,
{
    /// Takes what is asked for, if it can be had at once.
    pub(crate) fn try_take(self: &Arc<Self>, claim: &R::Claim) -> Option<Permit<O>> {
        let grant = lock(&self.rule).take(claim);
        grant.map(|grant| self.permit(grant))
    }

    /// Takes what is asked for, or waits for it; without a deadline, for as long as it takes.
    ///
    /// # Errors
    /// When it cannot be had until `deadline`.
    pub(crate) async fn take(
        self: &Arc<Self>,
        claim: &R::Claim,
        deadline: Option<Instant>,
    ) -> Result<Permit<O>, NothingLeft> {
        let (waiter, permit) = oneshot::channel();
        let ticket = {
            let mut rule = lock(&self.rule);
            if let Some(grant) = rule.take(claim) {
                drop(rule);
                return Ok(self.permit(grant));
            }
            rule.wait(claim, waiter).map_err(|_| NothingLeft::QueueFull)?
        };
        let _queued = Queued { pool: self, claim, ticket };
        // The claim may be met at once. Or, with it, all that hold something wait, and one has to give way.
        self.serve();
        let permit = match deadline {
            Some(deadline) => timeout_at(deadline.into(), permit).await.map_err(|_| NothingLeft::TooLate)?,
            None => permit.await,
        };
        permit.map_err(|_| NothingLeft::GivenUp)
    }

    /// Meets as many claims in the queue as it can.
    fn serve(self: &Arc<Self>) {
        loop {
            let mut rule = lock(&self.rule);
            let Some((grant, waiter)) = rule.next() else {
                let given_up = rule.give_up();
                drop(rule);
                // Its task learns this from the end of the channel. What it holds comes back later, and then this
                // runs again.
                drop(given_up);
                return;
            };
            drop(rule);
            if let Err(mut permit) = waiter.send(self.permit(grant)) {
                // The task has gone. Its part is given back here, since dropping the permit would call this function again.
                lock(&self.rule).give_back(&permit.owner, std::mem::take(&mut permit.amount));
            }
        }
    }

    fn permit(self: &Arc<Self>, Grant { owner, amount }: Grant<O>) -> Permit<O> {
        let pool: Arc<dyn GiveBack<O>> = Arc::<Self>::clone(self);
        Permit { pool, owner, amount }
    }
}

impl<O, R> GiveBack<O> for Pool<R>
where
    O: Send + Sync + 'static,
    R: Rule<Owner = O, Waiter = oneshot::Sender<Permit<O>>> + Send + 'static,
{
    fn give_back(self: Arc<Self>, owner: &O, amount: u64) {
        lock(&self.rule).give_back(owner, amount);
        self.serve();
    }
}

impl<O> Permit<O> {
    /// The one that it was given to.
    pub(crate) fn owner(&self) -> &O {
        &self.owner
    }

    /// How much it is.
    pub(crate) fn amount(&self) -> u64 {
        self.amount
    }

    /// Gives back what is above `amount`.
    pub(crate) fn reduce_to(&mut self, amount: u64) {
        let more = self.amount.saturating_sub(amount);
        if more > 0 {
            self.amount -= more;
            Arc::clone(&self.pool).give_back(&self.owner, more);
        }
    }

    /// Adds another permit of the same owner and pool.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.amount += std::mem::take(&mut other.amount);
    }
}

impl<O> Drop for Permit<O> {
    fn drop(&mut self) {
        if self.amount > 0 {
            Arc::clone(&self.pool).give_back(&self.owner, self.amount);
        }
    }
}

impl<O, R> Drop for Queued<'_, O, R>
where
    O: Send + Sync + 'static,
    R: Rule<Owner = O, Waiter = oneshot::Sender<Permit<O>>> + Send + 'static,
{
    fn drop(&mut self) {
        let waited = lock(&self.pool.rule).leave(self.claim, self.ticket);
        if waited {
            // What was behind it may need less than it did.
            self.pool.serve();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;

    use super::*;
    use crate::fair::policies::Claim;
    use crate::fair::turns::TurnClaim;

    fn claim(id: &str, amount: u64, has: u64) -> Claim {
        Claim { who: Claimant::new(&id.parse().expect("an id")), amount, has }
    }

    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(60))
    }

    #[tokio::test]
    async fn what_comes_back_goes_to_who_waits() {
        let pool = PolicyPool::new(1, 1, 8);
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
        let pool = PolicyPool::new(1, 1, 1);
        let _held = pool.try_take(&claim("cluster/a", 1, 0)).expect("free");
        for _ in 0..3 {
            let deadline = Some(Instant::now() + Duration::from_millis(5));
            let result = pool.take(&claim("cluster/b", 1, 0), deadline).await;
            assert_eq!(result.err(), Some(NothingLeft::TooLate));
        }
    }

    #[tokio::test]
    async fn who_hangs_up_while_it_is_served_loses_nothing_of_others() {
        let pool = PolicyPool::new(1, 1, 8);
        let held = pool.try_take(&claim("cluster/a", 1, 0)).expect("free");
        let claim_b = claim("cluster/b", 1, 0);
        let mut waiting = Box::pin(pool.take(&claim_b, soon()));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(held);
        // The permit has been sent and not received.
        drop(waiting);
        assert!(pool.try_take(&claim("cluster/c", 1, 0)).is_some());
    }

    #[tokio::test]
    async fn evaluations_that_wait_for_each_other_are_parted_at_once() {
        let pool = PolicyPool::new(100, 1, 8);
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
        assert!(before.elapsed() < Duration::from_secs(30));
    }

    #[tokio::test]
    async fn a_turn_goes_on_to_the_next_who_still_waits() {
        let pool = PeerPool::new(1, 1);
        let claim = TurnClaim { owner: Peer::of([10, 0, 0, 1].into()), is_preferred: false, amount: 1 };
        let first = pool.take(&claim, None).await;
        let mut gone = Box::pin(pool.take(&claim, None));
        let mut next = Box::pin(pool.take(&claim, None));
        assert!((&mut gone).now_or_never().is_none() && (&mut next).now_or_never().is_none());
        assert!(pool.is_waited_for());
        drop(gone);
        drop(first);
        let turn = next.now_or_never().expect("it is its turn");
        assert!(!pool.is_waited_for());
        drop(turn);
        assert!(pool.take(&claim, None).now_or_never().is_some());
    }

    #[tokio::test]
    async fn who_waits_behind_a_large_claim_goes_on_when_that_gives_up() {
        let pool = PeerPool::new(10, 10);
        let claim = |last, amount| TurnClaim { owner: Peer::of([10, 0, 0, last].into()), is_preferred: false, amount };
        let (nine, five, one) = (claim(1, 9), claim(2, 5), claim(3, 1));
        let _held = pool.take(&nine, None).await;
        let mut large = Box::pin(pool.take(&five, None));
        let mut small = Box::pin(pool.take(&one, None));
        assert!((&mut large).now_or_never().is_none() && (&mut small).now_or_never().is_none());
        drop(large);
        assert!(small.now_or_never().is_some_and(|permit| permit.is_ok()), "nothing else wakes it");
    }

    #[tokio::test]
    async fn a_turn_that_nobody_took_is_not_lost() {
        let pool = PeerPool::new(1, 1);
        let claim = TurnClaim { owner: Peer::of([10, 0, 0, 1].into()), is_preferred: false, amount: 1 };
        let first = pool.take(&claim, None).await;
        let mut given = Box::pin(pool.take(&claim, None));
        assert!((&mut given).now_or_never().is_none());
        drop(first);
        // The first task in the queue was given the permit, and is dropped before it learns that.
        drop(given);
        assert!(pool.take(&claim, None).now_or_never().is_some());
    }
}
