//! This program's own work on replies and objects: small work is done at once, large work on a thread beside the lanes.
//!
//! A guest gives its thread back at every tick. Decoding a reply or comparing two objects does not, so work that may take longer than a
//! tick gets a thread of its own, with the low priority of the slow lane. It is limited by the size of its input, and by [`ROOM`].

use std::future::pending;
use std::panic::resume_unwind;

use tokio::sync::Semaphore;
use tokio::task::{spawn_blocking, yield_now};

/// The largest input, in bytes, that is worked on where the evaluation runs: it takes a fraction of a tick, and most objects are smaller.
pub(crate) const SMALL: usize = 64 << 10;
/// How many bytes the whole program works on at the same time. Such work needs up to five times as much memory for a moment; a reply and
/// a request of the largest size fit together.
const ROOM: usize = 32 << 20;
/// The least bytes that a piece of work counts for, which limits the number of threads as well.
const LEAST: usize = 2 << 20;
/// Bytes of one permit.
const STEP: usize = 64 << 10;

/// The permits of the whole program rather than of each policy, since they limit the memory of all. The queue is served in order, so a
/// policy that always has large work gets no more than its turns.
static STEPS: Semaphore = Semaphore::const_new(ROOM / STEP);

/// Does `work`, which goes over `bytes` bytes. Large work begins after the evaluation has yielded once; dropping the future does not
/// end work that has begun.
pub(crate) async fn work<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if bytes <= SMALL {
        return work();
    }
    // After its first turn an evaluation is in the slow lane, and so are the threads that it starts.
    yield_now().await;
    let room = STEPS.acquire_many(steps(bytes)).await.expect("the semaphore is never closed");
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

fn steps(bytes: usize) -> u32 {
    u32::try_from(bytes.clamp(LEAST, ROOM).div_ceil(STEP)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use super::*;

    async fn where_it_runs(bytes: usize) -> ThreadId {
        work(bytes, || thread::current().id()).await
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
            let work = tokio::spawn(work(bytes, || panic!("on purpose")));
            assert!(work.await.is_err_and(|error| error.is_panic()));
        }
    }

    #[test]
    fn the_largest_work_has_room_and_the_smallest_counts() {
        let all = u32::try_from(ROOM / STEP).expect("small");
        assert_eq!((steps(SMALL + 1), steps(usize::MAX)), (all / 16, all));
    }
}
