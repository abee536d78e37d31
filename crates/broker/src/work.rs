//! Checks of signatures and certificates, which take a processor and cannot be interrupted by a time limit. They run in threads of their own, so
//! that they hold up no other call, and few at the same time.

use tokio::task::spawn_blocking;

use crate::ProvideError;
use crate::share::{Askers, Limits, Shares};

/// The most checks at the same time.
const LIMITS: Limits = Limits { policy: 1, tenant: 2, all: 4 };

/// The threads for checks, shared by policies.
pub(crate) struct Work(pub(crate) Shares);

impl Default for Work {
    fn default() -> Self {
        Self(Shares::new(LIMITS))
    }
}

impl Work {
    /// Waits for a thread that any of the policies that ask may have, and for the result of a check: who asks the same as a policy without a
    /// thread does not wait for that one's. A check that nobody waits for any longer counts until it ends.
    ///
    /// # Errors
    /// That of the check, or that it did not end, which happens only when the program stops or the check panics.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        askers: &Askers,
        check: impl FnOnce() -> Result<T, ProvideError> + Send + 'static,
    ) -> Result<T, ProvideError> {
        let share = self.0.take_of_any(askers, None).await;
        let checked = spawn_blocking(move || {
            let _share = share;
            check()
        });
        checked.await.unwrap_or_else(|error| Err(ProvideError::failed(format!("the check did not end: {error}"))))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use portcullis_contract::{BrokerOutcome, PolicyId};
    use tokio::time::timeout;

    use super::*;

    /// How long the tests wait for what must not happen.
    const SHORT: Duration = Duration::from_millis(50);
    /// How long a check of these tests takes at most.
    const LONG: Duration = Duration::from_secs(60);

    /// Begins a check and waits for it for a short time only. It ends when the sender is dropped.
    async fn abandon(work: &Work, policy: &str) -> Sender<()> {
        let (end, ended): (Sender<()>, Receiver<()>) = channel();
        let check = move || {
            ended.recv_timeout(LONG).expect_err("nothing is sent");
            Ok(())
        };
        assert!(timeout(SHORT, work.run(&id(policy), check)).await.is_err(), "the limit counts during a check");
        end
    }

    fn id(text: &str) -> Askers {
        Askers::only(&text.parse::<PolicyId>().expect("an id"))
    }

    #[tokio::test]
    async fn a_time_limit_ends_the_wait_for_a_check_and_the_check_counts_until_it_ends() {
        let work = Work::default();
        let end = abandon(&work, "cluster/slow").await;
        assert!(timeout(SHORT, work.run(&id("cluster/slow"), || Ok(()))).await.is_err(), "its thread is taken");
        assert_eq!(timeout(LONG, work.run(&id("cluster/other"), || Ok(1))).await, Ok(Ok(1)));
        drop(end);
        let failed = || ProvideError::failed("no");
        let again = timeout(LONG, work.run(&id("cluster/slow"), move || Err::<(), _>(failed()))).await;
        assert_eq!(again, Ok(Err(failed())));
    }

    #[tokio::test]
    async fn one_namespace_leaves_threads_for_others() {
        let work = Work::default();
        let ends = [abandon(&work, "namespaced/a/x").await, abandon(&work, "namespaced/a/y").await];
        assert!(timeout(SHORT, work.run(&id("namespaced/a/z"), || Ok(()))).await.is_err());
        assert_eq!(timeout(LONG, work.run(&id("namespaced/b/x"), || Ok(()))).await, Ok(Ok(())));
        drop(ends);
    }

    #[tokio::test]
    async fn a_check_that_panics_is_a_failure() {
        let work = Work::default();
        let checked = work.run(&id("cluster/a"), || -> Result<(), _> { panic!("a mistake in the check") }).await;
        assert_eq!(checked.expect_err("no result").outcome(), BrokerOutcome::Failed);
    }
}
