//! Answers that are reused for a while, so that a policy which asks the same for each request costs one call.

mod search;

use std::time::{Duration, Instant};

use bytes::Bytes;
use moka::Expiry;
use moka::future::Cache;
use portcullis_contract::{Capability, PolicyId};

use self::search::Searches;
pub(crate) use self::search::{PATIENCE, Patience, Question};
use crate::ProvideError;
use crate::share::{Askers, Share};

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

/// Answers by question.
pub(crate) struct Answers {
    known: Cache<Question, Answer>,
    searches: Searches,
    patience: Patience,
}

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
        Self::new(PATIENCE)
    }
}

impl Answers {
    pub(crate) fn new(patience: Patience) -> Self {
        let weigh = |(_, payload): &Question, answer: &Answer| {
            let bytes = answer.as_ref().map_or(1024, Bytes::len);
            u32::try_from(payload.len() + bytes + OVERHEAD).unwrap_or(u32::MAX)
        };
        let known = Cache::builder().max_capacity(CAPACITY).weigher(weigh).expire_after(Lifetime).build();
        Self { known, searches: Searches::default(), patience }
    }

    /// The answer to a question of a policy whose call may take as long as `limit`: a cached one that is not too old, or the result of `find`,
    /// which goes on when the call ends early. The same question is asked only once at a time, and only who begins takes a share. `None` if
    /// waiting for the answer is of no use.
    pub(crate) async fn get<F: Future<Output = Answer> + Send + 'static>(
        &self,
        policy: &PolicyId,
        limit: Duration,
        question: Question,
        share: impl Future<Output = Share>,
        find: impl FnOnce(Askers) -> F,
    ) -> Option<Answer> {
        if let Some(answer) = self.known.get(&question).await {
            return Some(answer);
        }
        let search = self.searches.join(question);
        let begin = |share| {
            let (known, patience, begun) = (self.known.clone(), self.patience, search.begun());
            let find = find(begun.askers());
            tokio::spawn(async move {
                let _share = share;
                // Another search may have ended between the look above and this one.
                let answer = match known.get(begun.question()).await {
                    Some(answer) => answer,
                    None => {
                        let answer = begun.find(patience, find).await;
                        // Others who ask the same may have room.
                        if !matches!(answer, Err(ProvideError::Busy(_))) {
                            known.insert(begun.question().clone(), answer.clone()).await;
                        }
                        answer
                    }
                };
                begun.answer(answer);
            });
        };
        search.wait(policy, limit, self.patience, share, begin).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::share::{CALLS, Shares};

    #[tokio::test]
    async fn the_same_question_is_asked_once() {
        let (answers, shares, asked) = (Answers::default(), Shares::new(CALLS), Arc::new(AtomicUsize::new(0)));
        let policy: PolicyId = "cluster/a".parse().expect("an id");
        let ask = |payload: &'static str| {
            let (answers, shares, policy, asked) = (&answers, &shares, &policy, Arc::clone(&asked));
            async move {
                let find = |_| async move {
                    asked.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    Ok(Bytes::from_static(b"answer"))
                };
                let question = (Capability::OciManifest, Bytes::from_static(payload.as_bytes()));
                let limit = Duration::from_secs(30);
                answers.get(policy, limit, question, shares.take(policy, None), find).await.expect("it is not in vain")
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
