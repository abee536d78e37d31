//! Work of this program on what guests and requests are made of: on the spot where it is little, else beside the lanes.
//!
//! A guest gives its thread back at every tick. Decoding a reply or comparing two objects does not, so whatever may take
//! longer than a tick has a thread of its own, as nice as those of the slow lane. What bounds it is the size of what it works
//! on, and [`ROOM`].

use std::future::pending;
use std::panic::resume_unwind;

use tokio::sync::Semaphore;
use tokio::task::{spawn_blocking, yield_now};

/// So many bytes are worked on where the evaluation runs: it takes a fraction of a tick, and most objects are smaller.
pub(crate) const SMALL: usize = 64 << 10;
/// Bytes that are worked on at the same time, in the whole program. Such work needs up to five times as much memory, for a
/// moment; a reply and a request of the largest size fit in together.
const ROOM: usize = 32 << 20;
/// What each work counts for at least, which bounds the threads as well.
const LEAST: usize = 2 << 20;
/// Bytes of one permit.
const STEP: usize = 64 << 10;

/// Of the program and not of a policy: it is the memory of all that is bounded. Who waits is served in turn, so a policy
/// that always has something large gets no more than its place in the queue.
static STEPS: Semaphore = Semaphore::const_new(ROOM / STEP);

/// Does `work`, which goes over `bytes` bytes. Large work begins in another lane's turn; dropping the future does not end
/// what has begun.
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
        // The lane is being shut down, and nobody waits any more.
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
