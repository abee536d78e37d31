//! The memory that one instance may use, and what all of them share above their floors.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use portcullis_util::lock;
use prometheus::{IntCounter, IntGauge};

use crate::fair::claimant::Claimant;
use crate::fair::policies::Claim;
use crate::fair::pool::{PolicyPermit, PolicyPool};
use crate::memory::plan::MemoryPlan;
use crate::metrics::Metrics;

/// How much is taken from the shared memory at a time, in bytes, so that a guest which grows page by page seldom asks.
const STEP: u64 = 1 << 20;
/// How long before its deadline an instance stops waiting, so that its answer is in time; an eighth of the time left, if that is less.
const LAST_MOMENT: Duration = Duration::from_millis(100);

/// The memory of all instances.
pub(crate) struct GuestMemory {
    floor: u64,
    shared: Arc<PolicyPool>,
    used: IntGauge,
    waits: IntCounter,
    refused: IntCounter,
}

/// The account of one instance. It lives as long as the instance; its [`MemoryHold`] lives longer.
pub(crate) struct InstanceMemory {
    hold: Arc<MemoryHold>,
    who: Arc<Claimant>,
    deadline: Instant,
    when_full: WhenFull,
    /// What its request keeps of changes in the meantime, in bytes ([`GuestMemory::keep`]).
    kept: u64,
    /// What the instance has asked for so far, in bytes.
    used: u64,
}

/// What an instance does where no memory is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenFull {
    /// It waits until shortly before its deadline.
    Wait,
    /// It is refused at once, also where requests wait for it that come first. This is not counted, as no request was refused.
    Refuse,
}

/// What an instance holds, to be dropped after the instance: its memory is given back to the system first.
pub(crate) struct MemoryHold {
    memory: Arc<GuestMemory>,
    /// The part above the floor; none if it needs none.
    permit: Mutex<Option<PolicyPermit>>,
}

/// What a request keeps of its policies' changes, or of decoded metadata; it goes back when this is dropped.
pub(crate) struct KeptMemory {
    used: IntGauge,
    permit: PolicyPermit,
}

/// There is no memory left for an instance at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this replica has no memory left for this policy or its namespace now; raise the evaluator's memory limit if it lasts"
)]
pub(crate) struct NoMemory;

impl GuestMemory {
    /// The memory of a plan.
    pub(crate) fn new(plan: MemoryPlan, metrics: &Metrics) -> Arc<Self> {
        Arc::new(Self {
            floor: plan.floor,
            // Each request waits for one claim at a time for each of its policies, so the number of requests that may be under way limits
            // the queue.
            shared: PolicyPool::new(plan.shared, plan.shared / 32, usize::MAX),
            used: metrics.guest_memory.clone(),
            waits: metrics.guest_memory_waits.clone(),
            refused: metrics.guest_memory_refused.clone(),
        })
    }

    /// An account for an instance that must have ended at `deadline`.
    pub(crate) fn account(
        self: &Arc<Self>,
        who: &Arc<Claimant>,
        deadline: Instant,
    ) -> (InstanceMemory, Arc<MemoryHold>) {
        self.used.add(gauge(self.floor));
        let hold = Arc::new(MemoryHold { memory: Arc::clone(self), permit: Mutex::new(None) });
        let when_full = WhenFull::Wait;
        let account =
            InstanceMemory { hold: Arc::clone(&hold), who: Arc::clone(who), deadline, when_full, kept: 0, used: 0 };
        (account, hold)
    }
}

impl InstanceMemory {
    /// The same account, for an instance that does this where no memory is left.
    pub(crate) fn when_full(self, when_full: WhenFull) -> Self {
        Self { when_full, ..self }
    }

    /// The same account, for an instance whose request keeps so many bytes already. No other instance may count them at the same time, and they
    /// must not go back before this instance has ended.
    pub(crate) fn beside(self, kept: u64) -> Self {
        Self { kept, ..self }
    }

    /// Gives the instance `more` bytes, now or when they become available.
    ///
    /// # Errors
    /// When they do not become available until shortly before the deadline, or the instance does not wait.
    pub(crate) async fn grow(&mut self, more: u64) -> Result<(), NoMemory> {
        let memory = Arc::clone(&self.hold.memory);
        let used = self.used.saturating_add(more);
        let Some(claim) = self.claim(used, memory.floor) else {
            self.used = used;
            return Ok(());
        };
        let permit = match self.when_full {
            WhenFull::Wait => memory.take(&claim, self.deadline).await?,
            WhenFull::Refuse => memory.shared.try_take_unwanted(&claim).ok_or(NoMemory)?,
        };
        self.used = used;
        self.hold.add(permit);
        Ok(())
    }

    /// The claim for what must be taken so that `used` bytes are covered; none if nothing must be.
    fn claim(&self, used: u64, floor: u64) -> Option<Claim> {
        let above = used.saturating_sub(floor);
        // An instance that stays below the floor takes no lock.
        if above == 0 {
            return None;
        }
        let taken = lock(&self.hold.permit).as_ref().map_or(0, PolicyPermit::amount);
        let amount = above.saturating_sub(taken).div_ceil(STEP).saturating_mul(STEP);
        (amount > 0).then(|| Claim { who: Arc::clone(&self.who), amount, has: taken + self.kept })
    }
}

impl GuestMemory {
    /// Gives a request `amount` bytes for what it keeps of its policies' changes, or of decoded metadata, now or when they become available.
    /// It holds `has` bytes already.
    ///
    /// # Errors
    /// When they do not become available until shortly before the deadline.
    pub(crate) async fn keep(
        &self,
        who: &Arc<Claimant>,
        amount: u64,
        has: u64,
        deadline: Instant,
    ) -> Result<KeptMemory, NoMemory> {
        let permit = self.take(&Claim { who: Arc::clone(who), amount, has }, deadline).await?;
        self.used.add(gauge(permit.amount()));
        Ok(KeptMemory { used: self.used.clone(), permit })
    }

    async fn take(&self, claim: &Claim, deadline: Instant) -> Result<PolicyPermit, NoMemory> {
        if let Some(permit) = self.shared.try_take(claim) {
            return Ok(permit);
        }
        self.waits.inc();
        let left = deadline.saturating_duration_since(Instant::now());
        let until = deadline - LAST_MOMENT.min(left / 8);
        self.shared.take(claim, Some(until)).await.map_err(|_| {
            self.refused.inc();
            NoMemory
        })
    }
}

impl KeptMemory {
    /// How much it is, in bytes.
    pub(crate) fn amount(&self) -> u64 {
        self.permit.amount()
    }
}

impl fmt::Debug for KeptMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.amount())
    }
}

impl Drop for KeptMemory {
    fn drop(&mut self) {
        self.used.sub(gauge(self.amount()));
    }
}

impl MemoryHold {
    fn add(&self, more: PolicyPermit) {
        self.memory.used.add(gauge(more.amount()));
        let mut permit = lock(&self.permit);
        match &mut *permit {
            Some(permit) => permit.merge(more),
            None => *permit = Some(more),
        }
    }
}

impl Drop for MemoryHold {
    fn drop(&mut self) {
        let permit = self.permit.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let shared = permit.as_ref().map_or(0, PolicyPermit::amount);
        self.memory.used.sub(gauge(self.memory.floor.saturating_add(shared)));
    }
}

fn gauge(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn memory(floor: u64, shared: u64) -> (Arc<GuestMemory>, Metrics) {
        let metrics = Metrics::new().expect("registers");
        (GuestMemory::new(MemoryPlan { floor, shared, bodies: 0 }, &metrics), metrics)
    }

    fn who(id: &str) -> Arc<Claimant> {
        Claimant::new(&id.parse().expect("an id"))
    }

    fn account(memory: &Arc<GuestMemory>, id: &str, millis: u64) -> (InstanceMemory, Arc<MemoryHold>) {
        memory.account(&who(id), Instant::now() + Duration::from_millis(millis))
    }

    #[tokio::test]
    async fn below_the_floor_nothing_is_taken() {
        let (memory, metrics) = memory(2 * MIB, 0);
        let (mut account, hold) = account(&memory, "cluster/a", 60_000);
        assert_eq!(account.grow(MIB).await, Ok(()));
        assert_eq!(account.grow(MIB).await, Ok(()));
        assert_eq!(metrics.guest_memory.get(), 2 * MIB as i64);
        drop((account, hold));
        assert_eq!(metrics.guest_memory.get(), 0);
    }

    #[tokio::test]
    async fn above_it_steps_are_taken_and_come_back_with_the_hold() {
        let (memory, metrics) = memory(MIB, 8 * MIB);
        let (mut account, hold) = account(&memory, "cluster/a", 60_000);
        assert_eq!(account.grow(MIB + 1).await, Ok(()));
        assert_eq!(account.grow(1000).await, Ok(()), "within the step");
        assert_eq!(metrics.guest_memory.get(), 2 * MIB as i64);
        drop(account);
        assert_eq!(metrics.guest_memory.get(), 2 * MIB as i64, "the instance may still be there");
        drop(hold);
        assert_eq!(metrics.guest_memory.get(), 0);
    }

    #[tokio::test]
    async fn who_finds_nothing_left_waits_and_is_refused_in_time() {
        let (memory, metrics) = memory(MIB, 8 * MIB);
        let (mut first, _hold) = account(&memory, "cluster/a", 60_000);
        assert_eq!(first.grow(9 * MIB).await, Ok(()));
        let begin = Instant::now();
        let (mut second, _hold) = account(&memory, "cluster/b", 80);
        assert_eq!(second.grow(2 * MIB).await, Err(NoMemory));
        assert!(begin.elapsed() >= Duration::from_millis(60), "{:?}", begin.elapsed());
        assert_eq!((metrics.guest_memory_waits.get(), metrics.guest_memory_refused.get()), (1, 1));
        assert_eq!(metrics.overloaded.get(), 0, "it may be a load, and no request was refused");
    }

    #[tokio::test]
    async fn requests_that_wait_beside_what_they_keep_are_parted_at_once() {
        let (memory, _) = memory(MIB, 10 * MIB);
        let later = Instant::now() + Duration::from_secs(60);
        let mut kept = Vec::new();
        for id in ["namespaced/a/x", "namespaced/b/x"] {
            kept.push(memory.keep(&who(id), 3 * MIB, 0, later).await.expect("free"));
        }
        let grow = |id: &'static str, kept: KeptMemory| {
            let (account, hold) = account(&memory, id, 60_000);
            let mut account = account.beside(kept.amount());
            tokio::spawn(async move {
                let grown = account.grow(7 * MIB).await;
                drop((account, hold, kept));
                grown
            })
        };
        let (second, first) = (kept.pop().expect("one"), kept.pop().expect("another"));
        let (first, second) = (grow("namespaced/a/x", first), grow("namespaced/b/x", second));
        let mut results = [first.await.expect("ends"), second.await.expect("ends")];
        results.sort_by_key(Result::is_err);
        assert_eq!(results, [Ok(()), Err(NoMemory)]);
        assert!(Instant::now() < later - Duration::from_secs(30));
    }

    #[tokio::test]
    async fn an_audit_takes_only_memory_that_no_request_waits_for_and_waits_for_none() {
        let (memory, metrics) = memory(MIB, 8 * MIB);
        let audit = || {
            let (account, hold) = account(&memory, "namespaced/b/audited", 60_000);
            (account.when_full(WhenFull::Refuse), hold)
        };
        let (mut first, hold) = account(&memory, "cluster/a", 60_000);
        assert_eq!(first.grow(7 * MIB).await, Ok(()));
        let (mut small, small_hold) = audit();
        assert_eq!(small.grow(MIB + 1).await, Ok(()), "some is left");
        drop((small, small_hold));
        let (mut large, _hold) = audit();
        assert_eq!(large.grow(4 * MIB).now_or_never(), Some(Err(NoMemory)));
        let (mut request, _hold) = account(&memory, "cluster/b", 60_000);
        let mut waits = Box::pin(request.grow(5 * MIB));
        assert!(waits.as_mut().now_or_never().is_none());
        let (mut small, _hold) = audit();
        assert_eq!(small.grow(MIB + 1).now_or_never(), Some(Err(NoMemory)), "a request waits");
        assert_eq!((metrics.guest_memory_waits.get(), metrics.guest_memory_refused.get()), (1, 0));
        drop((first, hold));
        assert_eq!(waits.await, Ok(()));
    }

    #[tokio::test]
    async fn a_tenant_that_waits_for_memory_that_it_holds_itself_stops_no_audit_of_others() {
        let (memory, _) = memory(MIB, 8 * MIB);
        let (mut first, _hold) = account(&memory, "namespaced/a/x", 60_000);
        assert_eq!(first.grow(5 * MIB).await, Ok(()));
        let (mut second, _hold) = account(&memory, "namespaced/a/x", 60_000);
        let mut waits = Box::pin(second.grow(5 * MIB));
        assert!(waits.as_mut().now_or_never().is_none());
        let (mut request, _hold) = account(&memory, "namespaced/b/x", 60_000);
        assert_eq!(request.grow(MIB + 1).now_or_never(), Some(Ok(())));
        let (audited, _hold) = account(&memory, "namespaced/b/audited", 60_000);
        assert_eq!(audited.when_full(WhenFull::Refuse).grow(MIB + 1).now_or_never(), Some(Ok(())));
        assert!(waits.as_mut().now_or_never().is_none());
    }

    #[tokio::test]
    async fn what_comes_back_ends_the_wait() {
        let (memory, _) = memory(MIB, 8 * MIB);
        let (mut first, hold) = account(&memory, "cluster/a", 60_000);
        assert_eq!(first.grow(9 * MIB).await, Ok(()));
        let (mut second, _hold) = account(&memory, "cluster/b", 60_000);
        let grown = tokio::spawn(async move { second.grow(2 * MIB).await });
        tokio::task::yield_now().await;
        drop((first, hold));
        assert_eq!(grown.await.expect("ends"), Ok(()));
    }
}
