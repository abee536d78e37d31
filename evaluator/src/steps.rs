//! The steps of one admission request, each by itself, for `benches/steps.rs`.
//!
//! Each function calls what [`crate::admission`] calls for a policy with one module, in waPC or WASI. Left out is what surrounds the steps:
//! connections, lanes, counters and spans. Nothing in this program uses this module.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use bytes::Bytes;
use serde_json::value::RawValue;

use crate::guest::loaded::{Loaded, LoadedModule};
use crate::review::Review;
use crate::table::{ServedPolicy, Serving};
use crate::verdict::answer::{Answer, Envelope};
use crate::verdict::decision::{self, ServingSpec};
use crate::verdict::draft::{Draft, Judged};

/// A decoded AdmissionReview.
pub struct DecodedReview<'a>(Review<'a>);

/// The answer to a review before it is encoded.
pub struct DecidedAnswer(Answer);

/// A policy that is ready to be asked.
pub struct ReadyPolicy {
    policy: Arc<ServedPolicy>,
    loaded: Arc<Loaded>,
}

/// Step 1: from the bytes of an AdmissionReview to its parts.
///
/// # Errors
/// When it is not an AdmissionReview.
pub fn decode(body: &[u8]) -> anyhow::Result<DecodedReview<'_>> {
    Ok(DecodedReview(Review::parse(body)?))
}

impl DecodedReview<'_> {
    /// Step 2: the bytes that a guest sees of the review.
    pub fn payload(&self) -> Bytes {
        self.0.payload(self.0.object().map(RawValue::get))
    }

    /// Step 6: from the answer to the bytes that are sent.
    pub fn encode(&self, answer: &DecidedAnswer) -> Bytes {
        answer.0.body(self.0.uid(), Envelope::Review)
    }
}

impl ReadyPolicy {
    /// A policy of the table; none if it does not serve.
    pub fn of(policy: Arc<ServedPolicy>) -> Option<Self> {
        let Serving::Ready(loaded) = &policy.serving else { return None };
        let loaded = Arc::clone(loaded);
        Some(Self { policy, loaded })
    }

    /// Step 3: makes a fresh instance of the policy's module, and drops it.
    ///
    /// # Errors
    /// When it cannot be made.
    pub async fn instantiate(&self) -> anyhow::Result<()> {
        Ok(self.module()?.instantiate(self.deadline()).await?)
    }

    /// Step 4: calls a guest with a payload, and gives the bytes of its reply. Every call has a fresh instance, so step 3 is part of it.
    ///
    /// # Errors
    /// When the guest fails.
    pub async fn call(&self, payload: Bytes) -> anyhow::Result<Vec<u8>> {
        Ok(self.module()?.reply(payload, self.deadline()).await?)
    }

    /// Step 5: from the reply of a guest that saw `payload` to the answer. A changed object becomes a JSON patch.
    ///
    /// # Errors
    /// When the reply is not a verdict, or its change of the object may not be applied.
    pub async fn post_process(
        &self,
        review: &DecodedReview<'_>,
        payload: Bytes,
        reply: &[u8],
    ) -> anyhow::Result<DecidedAnswer> {
        let (policy, loaded) = (&self.policy, &self.loaded);
        let mut draft = Draft::object(review.0.object());
        let verdict = self.module()?.decode(reply)?;
        let who = policy.share.claimant();
        let Judged { verdict, mutation, change } = draft.edit().judge(who, verdict, payload, self.deadline()).await?;
        let serving =
            ServingSpec { generation: loaded.generation(), mutating: loaded.mutating(), message: loaded.message() };
        let decision = decision::judged(policy.newest(), serving, verdict, mutation);
        change.into_iter().for_each(|change| draft.keep(change));
        Ok(DecidedAnswer(decision.alone(&policy.id, draft.into_patch())))
    }

    fn module(&self) -> anyhow::Result<&LoadedModule> {
        self.loaded.module().context("the policy is a policy group")
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.loaded.timeout()
    }
}
