//! Answers that are reused for a while, so that a policy which asks the same for each request costs one call.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::BoxFuture;
use moka::Expiry;
use moka::future::Cache;
use portcullis_contract::Capability;

use crate::ProvideError;

/// The size of all answers together, in bytes.
const CAPACITY: u64 = 32 << 20;
/// The memory that an answer takes besides its bytes.
const OVERHEAD: usize = 256;
/// How long an answer of a registry is reused.
const REGISTRY: Duration = Duration::from_secs(60);
/// How long an answer of the API server, or a failure of a registry, is reused.
const SHORT: Duration = Duration::from_secs(5);
/// How long a failure of the API server is reused: the object may be there a moment later, and the API server is close by.
const API_SERVER_FAILURE: Duration = Duration::from_secs(1);

/// The answer to a call, or the error that the guest gets.
pub(crate) type Answer = Result<Bytes, ProvideError>;

/// A question: the capability and the payload.
type Question = (Capability, Bytes);

/// Answers by question.
pub(crate) struct Answers(Cache<Question, Answer>);

struct Lifetime;

impl Expiry<Question, Answer> for Lifetime {
    fn expire_after_create(&self, (capability, _): &Question, answer: &Answer, _: Instant) -> Option<Duration> {
        Some(lifetime(*capability, answer.is_ok()))
    }
}

fn lifetime(capability: Capability, is_ok: bool) -> Duration {
    use Capability::{OciManifest, OciManifestConfig, OciManifestDigest, OciVerifyV1, OciVerifyV2};
    match capability {
        OciVerifyV1 | OciVerifyV2 | OciManifest | OciManifestConfig | OciManifestDigest if is_ok => REGISTRY,
        _ if capability.is_of_cluster() && !is_ok => API_SERVER_FAILURE,
        _ => SHORT,
    }
}

impl Default for Answers {
    fn default() -> Self {
        let weigh = |(_, payload): &Question, answer: &Answer| {
            let bytes = answer.as_ref().map_or(1024, Bytes::len);
            u32::try_from(payload.len() + bytes + OVERHEAD).unwrap_or(u32::MAX)
        };
        Self(Cache::builder().max_capacity(CAPACITY).weigher(weigh).expire_after(Lifetime).build())
    }
}

impl Answers {
    /// The answer to a question: a cached one that is not too old, or the result of `find`. The same question is asked
    /// only once at a time.
    pub(crate) async fn get(&self, capability: Capability, payload: Bytes, find: BoxFuture<'_, Answer>) -> Answer {
        self.0.get_with((capability, payload), find).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn the_same_question_is_asked_once() {
        let (answers, asked) = (Answers::default(), AtomicUsize::new(0));
        let ask = |payload: &'static str| {
            let (answers, asked) = (&answers, &asked);
            async move {
                let find = async {
                    asked.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    Ok(Bytes::from_static(b"answer"))
                };
                answers.get(Capability::OciManifest, Bytes::from_static(payload.as_bytes()), Box::pin(find)).await
            }
        };
        let (one, other) = tokio::join!(ask("a"), ask("a"));
        assert_eq!((one.expect("an answer"), other.expect("an answer")), ("answer".into(), "answer".into()));
        ask("a").await.expect("an answer");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        ask("b").await.expect("an answer");
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn failures_count_for_a_short_time_only() {
        assert_eq!(lifetime(Capability::OciVerifyV2, true), REGISTRY);
        assert_eq!(lifetime(Capability::OciVerifyV2, false), SHORT);
        for of_cluster in [Capability::GetResource, Capability::CanI] {
            assert_eq!((lifetime(of_cluster, true), lifetime(of_cluster, false)), (SHORT, API_SERVER_FAILURE));
        }
    }
}
