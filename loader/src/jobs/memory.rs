//! The memory for what jobs keep whole of answers: manifests, lists and signatures.
//!
//! Users name the sources, and sources decide how large their answers are and how slowly they come. Downloads are limited for each host only, so
//! without a limit for all of them one namespace with many hosts could use up the loader's memory. What is small is kept without asking and
//! never waits. A job that keeps more needs one of few slots, whatever it fetches, until it ends: so no two jobs wait for each other. Tenants
//! take turns with the slots as with others. A job that waits has its turn at a host, which others need, so it waits only briefly.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use portcullis_contract::Reason;
use portcullis_registry::BodyMemory;
use portcullis_util::lock;
use tokio::time::{Instant, timeout_at};

use super::JobContext;
use super::slots::{Slot, Slots};
use crate::source::SourceError;

/// What a job keeps without asking, in bytes. The manifest of a usual module has about one thousand, each of its signatures ten thousand at most.
const SMALL: usize = 64 << 10;
/// Jobs that may keep more than that at the same time. Each keeps about 16 MiB at most, 64 MiB in all: of a manifest and of the list of its
/// signatures 4 MiB each, as they came and as they were read.
const LARGE: usize = 4;
/// How long a job waits for a slot, in all. Then its fetch has failed, and is tried again later.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a job keeps.
#[derive(Default)]
pub(super) struct Kept {
    bytes: AtomicUsize,
    /// The job's slot, if it keeps much.
    slot: Mutex<Option<Slot>>,
    /// Until when it waits for a slot; empty if it never had to. What is asked of one loader after the other must not wait for each of them.
    until: OnceLock<Instant>,
}

/// Counts what one job keeps.
pub(super) struct JobMemory {
    slots: Arc<Slots>,
    context: Arc<JobContext>,
    patience: Duration,
}

/// Gives back what a job kept when it ends.
pub(super) struct GiveBack(pub(super) Arc<JobContext>);

/// The slots of jobs that keep much.
pub(super) fn slots() -> Arc<Slots> {
    Slots::new(LARGE)
}

impl JobMemory {
    pub(super) fn new(slots: &Arc<Slots>, context: &Arc<JobContext>) -> Self {
        Self { slots: Arc::clone(slots), context: Arc::clone(context), patience: PATIENCE }
    }
}

impl BodyMemory for JobMemory {
    fn take(&self, bytes: usize) -> Pin<Box<dyn Future<Output = Result<(), SourceError>> + Send + '_>> {
        Box::pin(async move {
            let kept = &self.context.kept;
            let all = kept.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
            if all <= SMALL || lock(&kept.slot).is_some() {
                return Ok(());
            }
            let until = *kept.until.get_or_init(|| Instant::now() + self.patience);
            let slot = timeout_at(until, self.slots.turn(&self.context)).await.map_err(|_| waited_in_vain())?;
            *lock(&kept.slot) = Some(slot);
            Ok(())
        })
    }
}

/// The error of a fetch for which there was no memory. It says so, as the source is not to blame.
fn waited_in_vain() -> SourceError {
    let text = "a large manifest, or many signatures, waited for memory in vain: others are being fetched, and only a few at the same time";
    SourceError::new(Reason::RegistryTimeout, text)
}

impl Drop for GiveBack {
    fn drop(&mut self) {
        self.0.kept.bytes.store(0, Ordering::Relaxed);
        let slot = lock(&self.0.kept.slot).take();
        drop(slot);
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use portcullis_contract::Tenant;
    use portcullis_registry::{Receive as _, Whole};

    use super::*;
    use crate::claims::{Claims, Need};

    /// A job of a namespace, and what counts its memory.
    fn job(slots: &Arc<Slots>, namespace: &str) -> (GiveBack, JobMemory) {
        let mut claims = Claims::default();
        claims.add(&Tenant::Namespace(namespace.into()), Need::New);
        let context = Arc::new(JobContext::new(claims));
        (GiveBack(Arc::clone(&context)), JobMemory::new(slots, &context))
    }

    fn takes(memory: &JobMemory, bytes: usize) -> bool {
        memory.take(bytes).now_or_never().is_some_and(|taken| taken.is_ok())
    }

    #[tokio::test]
    async fn l24_large_answers_of_one_namespace_leave_memory_to_others_and_small_ones_never_wait() {
        let slots = slots();
        let flood: Vec<_> = (0..100).map(|_| job(&slots, "flood")).collect();
        assert!(flood.iter().all(|(_, memory)| takes(memory, SMALL)), "what is small is kept without asking");
        let large = flood.iter().filter(|(_, memory)| takes(memory, 1)).count();
        assert_eq!(large, LARGE - 1);
        let (_job, other) = job(&slots, "other");
        assert!(takes(&other, 4 << 20) && takes(&other, 4 << 20), "a slot is for all that the job keeps");
        let (_job, small) = job(&slots, "small");
        assert!(takes(&small, SMALL) && !takes(&small, 1));
        drop(flood);
        assert!(takes(&small, 1), "what ends gives back");
    }

    #[tokio::test]
    async fn who_waits_long_for_memory_gives_up_its_turn_at_the_host_and_is_told_so() {
        let slots = slots();
        let large: Vec<_> = ["a", "b", "c", "d"].map(|namespace| job(&slots, namespace)).into_iter().collect();
        assert!(large.iter().all(|(_, memory)| takes(memory, 4 << 20)));
        let (_job, memory) = job(&slots, "e");
        let memory = Arc::new(JobMemory { patience: Duration::from_millis(50), ..memory });
        let mut body = Whole::new("the manifest", 4 << 20).within(Some(memory.clone()));
        body.write(&vec![b' '; SMALL]).await.expect("what is small does not wait");
        let error = body.write(b" ").await.expect_err("it does not wait for ever");
        assert_eq!(error.reason, Reason::RegistryTimeout);
        assert!(error.reason.class().is_retryable() && error.message.contains("waited for memory"), "{error}");
        assert_eq!(memory.take(1).now_or_never(), Some(Err(error)), "it has waited");
        drop(large);
        assert!(takes(&memory, 1), "there is memory again");
    }
}
