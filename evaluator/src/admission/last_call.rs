//! The end of the process, as requests see it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

/// Announced shortly before the process ends: requests still under way are answered as out of time instead of being cut off.
///
/// It is a flag rather than a notification: every request reads it, and registering for a notification would take a lock that all
/// requests share. The announcer wakes the tasks of the connections, which run the requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastCall(Arc<AtomicBool>);

/// The last call came before the future ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Over;

impl LastCall {
    /// Announces the last call. The tasks that run requests must be woken afterwards.
    pub(crate) fn announce(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Runs `future` to its end or to the last call.
    ///
    /// # Errors
    /// When the last call comes first.
    pub(crate) async fn or<F: Future>(&self, future: F) -> Result<F::Output, Over> {
        let mut future = pin!(future);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending if self.0.load(Ordering::SeqCst) => Poll::Ready(Err(Over)),
            Poll::Pending => Poll::Pending,
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_done_counts_and_what_runs_ends() {
        let last_call = LastCall::default();
        assert_eq!(last_call.or(async { 1 }).await, Ok(1));
        last_call.announce();
        assert_eq!(last_call.or(async { 1 }).await, Ok(1));
        assert_eq!(last_call.or(std::future::pending::<()>()).await, Err(Over));
    }
}
