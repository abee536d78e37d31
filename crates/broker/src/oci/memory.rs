//! The memory for what questions to registries keep whole of answers: manifests, configurations and signatures.
//!
//! Users name the registries, and registries decide how large their answers are and how slowly they come. Shares limit how many questions there
//! are, and not what each of them keeps: as many large answers would use up the loader's memory. What is small is kept without asking and
//! never waits. A question that keeps more needs one of few places, whatever it fetches, until its answer is made: so no two questions wait for
//! each other. A question that waits has a share, which others need, so it waits only briefly.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use portcullis_contract::Reason;
use portcullis_registry::{BodyMemory, FetchError};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};

use crate::ProvideError;
use crate::share::{Askers, Limits, Share, Shares};

/// What a question keeps without asking, in bytes. Manifest and configuration of a usual image have about ten thousand together, and each of its
/// signatures ten thousand at most. All questions that go to the network at the same time together keep 24 MiB without asking.
const SMALL: usize = 256 << 10;
/// Questions that may keep more than that at the same time, and half of them of one registry. Each keeps about 16 MiB at most, 128 MiB in all:
/// manifest and configuration of 4 MiB each and the answer made of them, or a list of signatures as it came and as it was read.
const LARGE: Limits = Limits { policy: 2, tenant: 4, all: 8 };
/// How long a question waits for a place, in all. Then most policies still have time to say why they deny.
const PATIENCE: Duration = Duration::from_secs(5);

/// The places of questions that keep much.
pub(super) struct Room {
    places: Shares,
    patience: Duration,
}

/// Counts what one question keeps. Its place is free again when this is dropped.
pub(super) struct QuestionMemory {
    room: Arc<Room>,
    askers: Askers,
    /// The host of the registry.
    host: String,
    bytes: AtomicUsize,
    /// The question's place, if it keeps much.
    place: OnceCell<Share>,
    /// Until when it waits for a place; empty if it never had to.
    until: OnceLock<Instant>,
    /// Whether it has waited for a place in vain.
    is_in_vain: AtomicBool,
}

impl Default for Room {
    fn default() -> Self {
        Self::new(PATIENCE)
    }
}

impl Room {
    pub(super) fn new(patience: Duration) -> Self {
        Self { places: Shares::new(LARGE), patience }
    }
}

impl QuestionMemory {
    /// The memory of a question that these policies ask a registry.
    pub(super) fn new(room: &Arc<Room>, askers: &Askers, host: &str) -> Self {
        Self {
            room: Arc::clone(room),
            askers: askers.clone(),
            host: host.to_owned(),
            bytes: AtomicUsize::new(0),
            place: OnceCell::new(),
            until: OnceLock::new(),
            is_in_vain: AtomicBool::new(false),
        }
    }

    /// The question's error when something cannot be fetched, or is refused, also as not all of it could be fetched. What only lacked memory
    /// counts for those who asked, as others have places of their own.
    pub(super) fn failed(&self, error: FetchError) -> ProvideError {
        match self.is_in_vain.load(Ordering::Relaxed) {
            true => ProvideError::busy(error.message),
            false => ProvideError::of_image(error),
        }
    }
}

impl BodyMemory for QuestionMemory {
    fn take(&self, bytes: usize) -> Pin<Box<dyn Future<Output = Result<(), FetchError>> + Send + '_>> {
        Box::pin(async move {
            let all = self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
            if all <= SMALL {
                return Ok(());
            }
            let until = *self.until.get_or_init(|| Instant::now() + self.room.patience);
            let place = async {
                let place = self.room.places.take_of_any(&self.askers, Some(&self.host));
                timeout_at(until, place).await.map_err(|_| {
                    self.is_in_vain.store(true, Ordering::Relaxed);
                    waited_in_vain()
                })
            };
            self.place.get_or_try_init(|| place).await.map(|_| ())
        })
    }
}

/// The error of a question for which there was no memory. It says so, as the registry is not to blame.
fn waited_in_vain() -> FetchError {
    let text = "a large manifest or configuration, or many signatures, waited for memory in vain: few questions to registries keep as much at the \
                same time";
    FetchError::new(Reason::RegistryTimeout, text)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use portcullis_registry::{Receive as _, Whole};
    use tokio::task::coop::unconstrained;

    use super::*;

    fn question(room: &Arc<Room>, policy: &str, host: &str) -> QuestionMemory {
        QuestionMemory::new(room, &Askers::only(&policy.parse().expect("an id")), host)
    }

    fn takes(memory: &QuestionMemory, bytes: usize) -> bool {
        unconstrained(memory.take(bytes)).now_or_never().is_some_and(|taken| taken.is_ok())
    }

    /// A hundred questions that keep as much as is small, and the number of them that may keep more.
    fn flood(questions: impl Iterator<Item = QuestionMemory>) -> (Vec<QuestionMemory>, usize) {
        let flood: Vec<_> = questions.take(100).collect();
        assert!(flood.iter().all(|memory| takes(memory, SMALL)), "what is small is kept without asking");
        let large = flood.iter().filter(|memory| takes(memory, 1)).count();
        (flood, large)
    }

    #[tokio::test]
    async fn large_answers_of_a_namespace_or_of_a_registry_leave_memory_to_others_and_small_ones_never_wait() {
        let room = Arc::<Room>::default();
        let other = || question(&room, "namespaced/other/a", "other");
        let of_namespace = (0..).map(|n| question(&room, &format!("namespaced/flood/p{n}"), &format!("h{n}")));
        let (held, large) = flood(of_namespace);
        assert_eq!(large, LARGE.tenant);
        let memory = other();
        assert!(takes(&memory, 4 << 20) && takes(&memory, 4 << 20), "a place is for all that the question keeps");
        drop((held, memory));
        let (held, large) = flood((0..).map(|n| question(&room, &format!("namespaced/n{n}/a"), "silent")));
        assert_eq!(large, LARGE.of_host().all, "what ended gave back");
        assert!(takes(&other(), 4 << 20));
        drop(held);
        let (_held, large) =
            flood((0..).map(|n| question(&room, &format!("namespaced/n{n}/a"), &format!("registry{n}"))));
        assert_eq!(large, LARGE.all);
        let memory = other();
        assert!(takes(&memory, SMALL) && !takes(&memory, 1));
    }

    #[tokio::test]
    async fn large_answers_of_a_policy_leave_memory_to_others_of_its_namespace() {
        let room = Arc::<Room>::default();
        let (_held, large) = flood((0..).map(|n| question(&room, "cluster/a", &format!("h{n}"))));
        assert_eq!(large, LARGE.policy);
        assert!(takes(&question(&room, "cluster/b", "other"), 4 << 20));
    }

    #[tokio::test]
    async fn who_waits_long_for_memory_is_told_so() {
        let room = Arc::new(Room::new(Duration::from_millis(50)));
        let large = [("a", "one"), ("a", "two"), ("b", "three"), ("b", "four")];
        let large = large.map(|(policy, host)| question(&room, &format!("cluster/{policy}"), host));
        assert!(large.iter().all(|memory| takes(memory, 4 << 20)));
        let memory = Arc::new(question(&room, "cluster/c", "five"));
        let mut body = Whole::new("the manifest", 4 << 20).within(Some(memory.clone()));
        body.write(&vec![b' '; SMALL]).await.expect("what is small does not wait");
        let error = body.write(b" ").await.expect_err("it does not wait for ever");
        assert!(error.message.contains("waited for memory"), "{error}");
        assert_eq!(memory.take(1).now_or_never(), Some(Err(error)), "it has waited");
        drop(large);
        assert!(takes(&memory, 1), "there is memory again");
    }
}
