//! This program's own work on replies and objects: small work is done at once, large work on a thread beside the lanes.
//!
//! A guest gives its thread back at every tick. Decoding a reply or comparing two objects does not, so work that may take longer than a
//! tick gets a thread of its own, with the low priority of the slow lane. It is limited by the size of its input, and by [`ROOM`], at which
//! tenants take turns.

use std::future::pending;
use std::panic::resume_unwind;
use std::sync::{Arc, LazyLock};

use portcullis_contract::Tenant;
use tokio::task::{spawn_blocking, yield_now};

use crate::fair::claimant::Claimant;
use crate::fair::pool::TurnPool;
use crate::fair::turns::TurnClaim;

/// The largest input, in bytes, that is worked on where the evaluation runs: it takes a fraction of a tick, and most objects are smaller.
pub(crate) const SMALL: usize = 64 << 10;
/// How many bytes the whole program works on at the same time. Such work needs up to five times as much memory for a moment.
const TOTAL: usize = 32 << 20;
/// The least bytes that a piece of work counts for, which limits the number of threads as well.
const LEAST: usize = 2 << 20;
/// The unit in which room is counted, in bytes.
const STEP: usize = 64 << 10;

/// How many bytes the work of one tenant may have at the same time: the largest work, a mutated object with the one that the guest saw and the
/// one that came.
const MOST: usize = 24 << 20;

/// The room of the whole program, as it limits the memory of all. Tenants take turns: work of one waits for no more than one piece of each
/// other, however much another has.
static ROOM: LazyLock<Arc<TurnPool<Tenant>>> = LazyLock::new(|| TurnPool::new(steps(TOTAL), steps(MOST)));

/// Does `work` for a policy, which goes over `bytes` bytes. Large work begins after the evaluation has yielded once; dropping the future does
/// not end work that has begun.
pub(crate) async fn work<T: Send + 'static>(
    who: &Claimant,
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if bytes <= SMALL {
        return work();
    }
    // After its first turn an evaluation is in the slow lane, and so are the threads that it starts.
    yield_now().await;
    let (owner, is_preferred) = (who.tenant.clone(), who.tenant == Tenant::Cluster);
    let claim = TurnClaim { owner, is_preferred, amount: steps(bytes.clamp(LEAST, MOST)) };
    let Ok(room) = ROOM.take(&claim, None).await else { return pending().await };
    let task = spawn_blocking(move || {
        let done = work();
        drop(room);
        done
    });
    match task.await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(done) => done,
        Err(Ok(panic)) => resume_unwind(panic),
        // The lane is being shut down, and no request waits any more.
        Err(Err(_)) => pending().await,
    }
}

fn steps(bytes: usize) -> u64 {
    u64::try_from(bytes.div_ceil(STEP)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::{Mutex, mpsc};
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    use portcullis_util::lock;
    use tokio::time::timeout;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;

    fn who(id: &str) -> Arc<Claimant> {
        Claimant::new(&id.parse().expect("an id"))
    }

    async fn where_it_runs(bytes: usize) -> ThreadId {
        work(&who("cluster/a"), bytes, || thread::current().id()).await
    }

    #[tokio::test]
    async fn little_is_done_here_and_much_elsewhere() {
        let here = thread::current().id();
        assert_eq!(where_it_runs(SMALL).await, here);
        assert_ne!(where_it_runs(SMALL + 1).await, here);
        assert_ne!(where_it_runs(usize::MAX).await, here);
    }

    #[tokio::test]
    async fn a_panic_is_the_callers() {
        for bytes in [0, SMALL + 1] {
            let work = tokio::spawn(async move { work(&who("cluster/a"), bytes, || panic!("on purpose")).await });
            assert!(work.await.is_err_and(|error| error.is_panic()));
        }
    }

    #[tokio::test]
    async fn fault_z24_work_of_a_tenant_with_much_of_it_leaves_room_for_that_of_others() {
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let begun = Arc::new(AtomicUsize::new(0));
        let flood = |id: &'static str| {
            let (held, begun) = (Arc::clone(&held), Arc::clone(&begun));
            AbortOnDropHandle::new(tokio::spawn(async move {
                let wait = move || {
                    begun.fetch_add(1, SeqCst);
                    lock(&held).recv().expect("it is released");
                };
                work(&who(id), 8 << 20, wait).await;
            }))
        };
        // As much as all may have at the same time, four times over.
        let _flood: Vec<_> = (0..16).map(|_| flood("namespaced/greedy/a")).collect();
        while begun.load(SeqCst) < 3 {
            tokio::task::yield_now().await;
        }
        let modest = who("namespaced/modest/a");
        timeout(Duration::from_secs(60), work(&modest, 8 << 20, || ())).await.expect("there is room");
        assert_eq!(begun.load(SeqCst), 3);
        (0..16).for_each(|_| release.send(()).expect("they wait"));
    }

    #[test]
    fn the_largest_work_has_room_and_the_smallest_counts() {
        assert_eq!((steps(LEAST), steps(MOST), steps(TOTAL)), (32, 384, 512));
    }
}
