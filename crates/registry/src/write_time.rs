//! The time in which a receiver writes what has come.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_util::lock;
use tokio::time::{Instant, timeout};

/// How often a time limit that is over is looked at again while something is being written.
const LOOK: Duration = Duration::from_millis(100);

/// How long a receiver has been writing. A slow disk is no fault of the sender, so this time does not count for its limits.
/// Clones share the time.
#[derive(Debug, Clone, Default)]
pub struct WriteTime(Arc<Mutex<Spent>>);

#[derive(Debug, Default)]
struct Spent {
    before: Duration,
    since: Option<Instant>,
}

/// A write under way. Its end is noted when this is dropped, also if nobody waits for the write any longer.
struct Write<'a>(&'a Mutex<Spent>);

impl Drop for Write<'_> {
    fn drop(&mut self) {
        let mut spent = lock(self.0);
        let took = spent.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        spent.before += took;
    }
}

impl WriteTime {
    /// Writes, and counts the time of it. One write at a time.
    pub async fn count<T>(&self, write: impl Future<Output = T>) -> T {
        lock(&self.0).since = Some(Instant::now());
        let _under_way = Write(&self.0);
        write.await
    }

    /// The time of all writes so far, also of one under way.
    #[must_use]
    pub fn so_far(&self) -> Duration {
        self.read().0
    }

    /// The time of all writes so far, and whether one is under way.
    fn read(&self) -> (Duration, bool) {
        let spent = lock(&self.0);
        (spent.before + spent.since.map_or(Duration::ZERO, |since| since.elapsed()), spent.since.is_some())
    }

    /// As [`tokio::time::timeout`], but the time of writes does not count. `None` when the limit is over.
    pub async fn timeout<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let (start, before) = (Instant::now(), self.so_far());
        // On the heap, as callers hold this future beside the one that it waits for.
        let mut work = Box::pin(work);
        loop {
            let (written, is_writing) = self.read();
            let left = left(limit, start.elapsed(), written - before, is_writing)?;
            if let Ok(result) = timeout(left, &mut work).await {
                return Some(result);
            }
        }
    }
}

/// How long to wait until a limit is looked at again; `None` if it is over.
fn left(limit: Duration, elapsed: Duration, written: Duration, is_writing: bool) -> Option<Duration> {
    let left = limit.saturating_sub(elapsed.saturating_sub(written));
    if is_writing { Some(left.max(LOOK)) } else { Some(left).filter(|left| !left.is_zero()) }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::sleep;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    #[test]
    fn writes_put_a_limit_off() {
        let seconds = Duration::from_secs;
        let left = |elapsed, written, is_writing| left(seconds(60), seconds(elapsed), seconds(written), is_writing);
        assert_eq!(left(50, 0, false), Some(seconds(10)));
        assert_eq!(left(60, 0, false), None);
        assert_eq!(left(90, 0, false), None);
        assert_eq!(left(90, 40, false), Some(seconds(10)));
        assert_eq!(left(90, 30, false), None);
        assert_eq!(left(90, 30, true), Some(LOOK), "it is over when the write is");
    }

    #[tokio::test]
    async fn fault_v17_a_write_may_take_longer_than_the_limit() {
        let time = WriteTime::default();
        let work = async {
            time.count(sleep(10 * SHORT)).await;
            "done"
        };
        assert_eq!(time.timeout(SHORT, work).await, Some("done"));
        assert!(time.so_far() >= 10 * SHORT);
    }

    #[tokio::test]
    async fn what_is_no_write_counts() {
        let time = WriteTime::default();
        assert_eq!(time.timeout(SHORT, pending::<()>()).await, None);
        let work = async {
            time.count(sleep(SHORT)).await;
            pending::<()>().await;
        };
        assert_eq!(time.timeout(SHORT, work).await, None);
    }

    #[tokio::test]
    async fn a_write_that_is_given_up_ends() {
        let time = WriteTime::default();
        assert!(timeout(SHORT, time.count(pending::<()>())).await.is_err());
        assert_eq!(time.so_far(), time.so_far());
        assert_eq!(time.timeout(SHORT, pending::<()>()).await, None);
    }
}
