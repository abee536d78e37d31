//! The object of a request on its way through the policies that may change it.

use std::sync::Arc;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use portcullis_contract::Reason;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::fair::claimant::Claimant;
use crate::memory::{GuestMemory, KeptMemory, NoMemory};
use crate::verdict::decision::Mutation;
use crate::verdict::offload;
pub(crate) use crate::verdict::patch::Subject;
use crate::verdict::patch::{self, Change, PatchError};
use crate::verdict::{EvaluationError, Verdict};

/// The object as it came, the object as the policies so far left it, and the patch from the first to the second. Nothing is decoded
/// before a policy changes the object.
pub(crate) struct Draft<'a> {
    raw: Option<&'a RawValue>,
    subject: Subject,
    /// The payload of the first policy that made a change: it contains the object as it came.
    first: Option<Bytes>,
    current: Option<Box<RawValue>>,
    /// As JSON. It becomes base64 at the end, since that is a third longer.
    patch: Option<String>,
    /// The memory of all that, as far as it is more than what is reserved for the request's body.
    memory: Vec<Arc<KeptMemory>>,
}

/// What an evaluation needs to judge its policy's change, in its own time and on its own thread.
#[derive(Debug, Clone)]
pub(crate) struct Edit {
    subject: Subject,
    first: Option<Bytes>,
    is_left_out: bool,
    /// The memory that the draft holds. It stays until the evaluation has ended, whose claims for more count it.
    memory: Vec<Arc<KeptMemory>>,
}

/// A verdict whose change of the object has been judged.
#[derive(Debug)]
pub(crate) struct Judged {
    /// The verdict, without the changed object.
    pub verdict: Verdict,
    /// How the policy changed the object.
    pub mutation: Mutation,
    /// The change; none where the object stays as it was.
    pub change: Option<Kept>,
}

/// A change, and the payload of the policy that made it.
#[derive(Debug)]
pub(crate) struct Kept {
    change: Change,
    seen: Bytes,
    /// The length of the object that the policy saw.
    before: usize,
    /// The memory that the draft holds already, in bytes.
    held: u64,
    /// Its own memory, once that was taken.
    memory: Option<KeptMemory>,
}

/// The most bytes of a change that need no memory of their own: the number of requests limits them, as it limits small bodies.
const SMALL: u64 = 64 << 10;

/// The one field of a guest's request that can be mutated.
#[derive(Deserialize)]
struct Seen<'a> {
    #[serde(borrow)]
    object: Option<&'a RawValue>,
}

impl Subject {
    /// What may be mutated in the payload of a guest; none on DELETE.
    ///
    /// # Errors
    /// When the payload is not JSON, which never happens.
    pub(crate) fn within(self, seen: &[u8]) -> serde_json::Result<Option<&RawValue>> {
        match self {
            Self::Object => serde_json::from_slice::<Seen<'_>>(seen).map(|seen| seen.object),
            Self::Raw => serde_json::from_slice(seen).map(Some),
        }
    }
}

impl<'a> Draft<'a> {
    /// A draft of a review's object; none on DELETE.
    pub(crate) fn object(raw: Option<&'a RawValue>) -> Self {
        Self::new(raw, Subject::Object)
    }

    /// A draft of a raw request, which is its own object.
    pub(crate) fn raw(raw: &'a RawValue) -> Self {
        Self::new(Some(raw), Subject::Raw)
    }

    fn new(raw: Option<&'a RawValue>, subject: Subject) -> Self {
        Self { raw, subject, first: None, current: None, patch: None, memory: Vec::new() }
    }

    /// Whether it is a raw request rather than a Kubernetes object.
    pub(crate) fn is_raw(&self) -> bool {
        matches!(self.subject, Subject::Raw)
    }

    /// What the evaluation of the next policy needs.
    pub(crate) fn edit(&self) -> Edit {
        Edit { subject: self.subject, first: self.first.clone(), is_left_out: false, memory: self.memory.clone() }
    }

    /// Takes a change: it is what the next policy sees.
    pub(crate) fn keep(&mut self, Kept { change, seen, memory, .. }: Kept) {
        self.first.get_or_insert(seen);
        self.patch = change.patch;
        self.current = Some(change.object);
        self.memory.extend(memory.map(Arc::new));
    }

    /// The current object's JSON.
    pub(crate) fn text(&self) -> Option<&str> {
        self.current.as_deref().or(self.raw).map(RawValue::get)
    }

    /// The patch from the first object to the current one, in base64; none if they are the same.
    pub(crate) fn into_patch(self) -> Option<String> {
        let Self { first, current, patch, .. } = self;
        drop((first, current));
        patch.map(|patch| STANDARD.encode(patch))
    }
}

impl Kept {
    /// Takes the memory that it needs while other policies are asked about the changed object: for the object, for the patch, and for what
    /// those policies see. It waits where the evaluation still counts as running, so that few changes wait for memory.
    ///
    /// # Errors
    /// When there is none until shortly before the deadline.
    pub(crate) async fn take_memory(
        &mut self,
        memory: &GuestMemory,
        who: &Arc<Claimant>,
        deadline: Instant,
    ) -> Result<(), NoMemory> {
        let cost = self.cost();
        if cost > SMALL.max(self.held) {
            self.memory = Some(memory.keep(who, cost - self.held, self.held, deadline).await?);
        }
        Ok(())
    }

    /// The bytes that are kept beside the request's body and the first payload, for which there is memory.
    fn cost(&self) -> u64 {
        let object = self.change.object.get().len();
        let payload = (self.seen.len() + object).saturating_sub(self.before);
        let patch = self.change.patch.as_ref().map_or(0, String::len);
        u64::try_from(object + patch + payload).unwrap_or(u64::MAX)
    }
}

impl Edit {
    /// The same for a member of a validating group. A change of the object by a generation that `may_mutate` is left out. Such a generation
    /// is a member there only while `spec.mutating` is being changed, because its kind of webhook is not called yet, or no longer:
    ///
    /// - From `false` to `true`, the new generation answers in the old group until the mutating webhook is called everywhere. The mutating
    ///   webhook sends its change. Refusing the change here, by the older generation's rules, would reject every request until then.
    /// - From `true` to `false`, an older generation that still serves is asked here by the newest one's rules, which allow no change.
    ///
    /// A change by a generation that may not mutate stays, and is refused by [`crate::verdict::decision::judged`]: its own spec forbids it.
    pub(crate) fn leaving_out(self, may_mutate: bool) -> Self {
        Self { is_left_out: may_mutate, ..self }
    }

    /// How much memory the draft holds, in bytes.
    pub(crate) fn held(&self) -> u64 {
        self.memory.iter().map(|memory| memory.amount()).sum()
    }

    /// What the policy may change.
    pub(crate) fn subject(&self) -> Subject {
        self.subject
    }

    /// Judges how the policy `who` changed the object that it saw in `seen`.
    ///
    /// # Errors
    /// When the mutation may not be applied, or `deadline` passes.
    pub(crate) async fn judge(
        self,
        who: &Claimant,
        mut verdict: Verdict,
        seen: Bytes,
        deadline: Instant,
    ) -> Result<Judged, EvaluationError> {
        let mutated = verdict.mutated_object.take();
        let mutated = mutated.filter(|object| verdict.accepted && !self.is_left_out && object.get() != "null");
        let Some(mutated) = mutated else { return Ok(Judged { verdict, mutation: Mutation::None, change: None }) };
        let held = self.held();
        let size = mutated.get().len() + seen.len() + self.first.as_ref().map_or(0, Bytes::len);
        let result =
            offload::work(who, size, move || self.change(mutated, &seen, deadline).map(|found| (found, seen))).await;
        match result {
            Ok(((mutation, change), seen)) => {
                let kept = |(change, before)| Kept { change, seen, before, held, memory: None };
                Ok(Judged { verdict, mutation, change: change.map(kept) })
            }
            Err(PatchError::TooLate) => Err(EvaluationError::timed_out()),
            Err(error) => Err(EvaluationError::new(Reason::PatchInvalid, error.to_string())),
        }
    }

    /// The change, with the length of the object before it.
    fn change(
        &self,
        mutated: Box<RawValue>,
        seen: &[u8],
        deadline: Instant,
    ) -> Result<(Mutation, Option<(Change, usize)>), PatchError> {
        let Some(current) = self.object(seen)? else { return Ok((Mutation::OfNothing, None)) };
        let first = match &self.first {
            Some(first) => self.object(first)?.unwrap_or(current),
            None => current,
        };
        let change = patch::change(first, current, mutated, self.subject, deadline)?;
        let mutation = if change.is_some() { Mutation::Changed } else { Mutation::None };
        Ok((mutation, change.map(|change| (change, current.get().len()))))
    }

    /// The object in the payload of a guest.
    fn object<'s>(&self, seen: &'s [u8]) -> Result<Option<&'s RawValue>, PatchError> {
        self.subject.within(seen).map_err(|_| PatchError::Original)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::memory::MemoryPlan;
    use crate::metrics::Metrics;

    fn who() -> Arc<Claimant> {
        Claimant::new(&"cluster/a".parse().expect("an id"))
    }

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).expect("JSON")
    }

    fn patch(draft: Draft<'_>) -> Option<String> {
        let bytes = STANDARD.decode(draft.into_patch()?).expect("base64");
        Some(String::from_utf8(bytes).expect("UTF-8"))
    }

    /// The payload of a policy that is asked now.
    fn seen(draft: &Draft<'_>) -> Bytes {
        let object = draft.text().map(|text| format!(",\"object\":{text}"));
        match draft.subject {
            Subject::Object => format!("{{\"uid\":\"u\"{}}}", object.unwrap_or_default()).into(),
            Subject::Raw => draft.text().unwrap_or_default().to_owned().into(),
        }
    }

    async fn judge(draft: &Draft<'_>, mutated: &str, time: Duration) -> Result<Judged, EvaluationError> {
        let verdict = serde_json::from_str(&format!("{{\"accepted\":true,\"mutated_object\":{mutated}}}"));
        draft.edit().judge(&who(), verdict.expect("a verdict"), seen(draft), Instant::now() + time).await
    }

    /// Judges a mutated object that a policy offers, and keeps the change.
    async fn offer(draft: &mut Draft<'_>, mutated: &str) -> Mutation {
        let judged = judge(draft, mutated, Duration::from_secs(60)).await.expect("it may be applied");
        judged.change.into_iter().for_each(|change| draft.keep(change));
        judged.mutation
    }

    #[tokio::test]
    async fn each_policy_sees_what_the_ones_before_left_and_one_patch_leads_to_the_end() {
        let object = raw(r#"{"a": 1}"#);
        let mut draft = Draft::object(Some(&object));
        assert_eq!(draft.text(), Some(r#"{"a": 1}"#));
        assert_eq!(offer(&mut draft, r#"{"a":2}"#).await, Mutation::Changed);
        assert_eq!(offer(&mut draft, r#"{"a":2}"#).await, Mutation::None);
        assert_eq!(offer(&mut draft, r#"{"a":2,"b":3}"#).await, Mutation::Changed);
        assert_eq!(offer(&mut draft, "null").await, Mutation::None);
        assert_eq!(draft.text(), Some(r#"{"a":2,"b":3}"#));
        assert_eq!(
            patch(draft).as_deref(),
            Some(r#"[{"op":"replace","path":"/a","value":2},{"op":"add","path":"/b","value":3}]"#)
        );
    }

    #[tokio::test]
    async fn a_change_that_is_taken_back_is_none() {
        let object = raw(r#"{"a":1}"#);
        let mut draft = Draft::object(Some(&object));
        assert_eq!(offer(&mut draft, r#"{"a":2}"#).await, Mutation::Changed);
        assert_eq!(offer(&mut draft, r#"{"a":1}"#).await, Mutation::Changed);
        assert_eq!(draft.text(), Some(r#"{"a":1}"#));
        assert_eq!(patch(draft), None);
    }

    #[tokio::test]
    async fn what_may_not_be_applied_leaves_the_draft_alone() {
        let object = raw(r#"{"a":1}"#);
        let draft = Draft::object(Some(&object));
        let error = judge(&draft, "[]", Duration::from_secs(60)).await.expect_err("refused");
        assert_eq!((error.reason, &*error.text), (Reason::PatchInvalid, "the mutated object is not an object"));
        assert_eq!(draft.text(), Some(r#"{"a":1}"#));
        assert_eq!(patch(draft), None);
    }

    /// Takes memory for the change to this object, and keeps the change if there is some.
    async fn offer_for_others(draft: &mut Draft<'_>, memory: &GuestMemory, mutated: &str) -> Result<(), NoMemory> {
        let judged = judge(draft, mutated, Duration::from_secs(60)).await.expect("it may be applied");
        let mut kept = judged.change.expect("a change");
        kept.take_memory(memory, &who(), Instant::now() + Duration::from_millis(50)).await?;
        draft.keep(kept);
        Ok(())
    }

    #[tokio::test]
    async fn what_a_policy_adds_is_taken_from_the_memory_of_guests_while_others_are_asked() {
        const MIB: usize = 1 << 20;
        let metrics = Metrics::new().expect("registers");
        let memory = GuestMemory::new(MemoryPlan { floor: 0, shared: 8 << 20, bodies: 0 }, &metrics);
        let used = || usize::try_from(metrics.guest_memory.get()).expect("it is not negative");
        let object = raw(r#"{"a":1}"#);
        let with = |length| format!("{{\"a\":\"{}\"}}", "x".repeat(length));
        let [mut draft, mut other] = [0, 1].map(|_| Draft::object(Some(&object)));

        offer_for_others(&mut draft, &memory, &with(10_000)).await.expect("it needs none");
        assert_eq!(used(), 0);
        // The object, the patch, and what the next policy sees: a mebibyte each.
        offer_for_others(&mut draft, &memory, &with(MIB)).await.expect("there is some");
        assert!((3 * MIB..3 * MIB + 1000).contains(&used()), "{}", used());
        offer_for_others(&mut draft, &memory, &with(MIB / 2)).await.expect("it needs less");
        assert!((3 * MIB..3 * MIB + 1000).contains(&used()), "{}", used());
        offer_for_others(&mut draft, &memory, &with(2 * MIB)).await.expect("it takes the difference");
        assert!((6 * MIB..6 * MIB + 2000).contains(&used()), "{}", used());

        assert_eq!(offer_for_others(&mut other, &memory, &with(MIB)).await, Err(NoMemory));
        assert_eq!(other.text(), Some(r#"{"a":1}"#), "the change is not kept");
        let patch = patch(draft).expect("a patch");
        assert_eq!((used(), patch.len() > 2 * MIB), (0, true), "all of it came back");
        offer_for_others(&mut other, &memory, &with(MIB)).await.expect("there is some again");
    }

    #[tokio::test]
    async fn there_is_nothing_to_mutate_on_delete() {
        // The second one stands for the patch of an OPA policy.
        for mutated in ["{}", "true"] {
            assert_eq!(offer(&mut Draft::object(None), mutated).await, Mutation::OfNothing);
        }
    }

    #[tokio::test]
    async fn a_raw_request_may_be_any_json() {
        let request = raw("[1]");
        let mut draft = Draft::raw(&request);
        assert_eq!(offer(&mut draft, "[1,2]").await, Mutation::Changed);
        assert_eq!(patch(draft).as_deref(), Some(r#"[{"op":"add","path":"/1","value":2}]"#));
    }

    #[tokio::test]
    async fn a_mutation_that_is_refused_with_the_request_is_not_looked_at() {
        let object = raw(r#"{"a":1}"#);
        let verdict = serde_json::from_str(r#"{"accepted":false,"mutated_object":[]}"#).expect("a verdict");
        let draft = Draft::object(Some(&object));
        let judged = draft.edit().judge(&who(), verdict, seen(&draft), Instant::now()).await.expect("a verdict");
        assert_eq!(judged.mutation, Mutation::None);
    }

    #[tokio::test]
    async fn a_large_mutation_has_the_evaluations_time_and_no_more() {
        let object = raw(&format!("{{\"a\":[{}0]}}", "0,".repeat(50_000)));
        let draft = Draft::object(Some(&object));
        let mutated = object.get().replace("0]", "1]");
        let error = judge(&draft, &mutated, Duration::ZERO).await.expect_err("too late");
        assert_eq!(error.reason, Reason::EvaluationTimedOut);
        let judged = judge(&draft, &mutated, Duration::from_secs(60)).await.expect("in time");
        assert_eq!(judged.mutation, Mutation::Changed);
    }

    #[tokio::test]
    async fn a_validating_group_leaves_out_the_change_of_a_policy_that_may_mutate() {
        let object = raw(r#"{"kind":"Pod"}"#);
        let draft = Draft::object(Some(&object));
        for (may_mutate, mutation) in [(true, Mutation::None), (false, Mutation::Changed)] {
            let verdict = r#"{"accepted":true,"mutated_object":{"kind":"Pod","a":1}}"#;
            let verdict = serde_json::from_str(verdict).expect("a verdict");
            let edit = draft.edit().leaving_out(may_mutate);
            let judged = edit.judge(&who(), verdict, seen(&draft), Instant::now() + Duration::from_secs(60)).await;
            let judged = judged.expect("it may be applied");
            assert_eq!((judged.verdict.accepted, judged.mutation), (true, mutation));
            assert_eq!(judged.change.is_some(), !may_mutate, "this one is refused for it");
        }
    }
}
