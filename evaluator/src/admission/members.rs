//! Which members of a match group a request is for, where they share a webhook.
//!
//! Rules and selectors are quick. The match conditions of many members can take long, if they compare much of a large object, and nothing
//! ends one of them before its end. So they are evaluated in turns of the group's tenant, as its guests are: what takes longer than a tick
//! goes on in the slow lane. So does what decodes large metadata, with memory that is taken before, as users decide what is in them.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures::FutureExt as _;
use portcullis_contract::{FailurePolicy, Reason};
use portcullis_matching::{AdmissionRequest, Decision, MemberMatcher, NoPause, Pace};
use serde_json::value::RawValue;

use super::step::{Step, step_in_group};
use super::yielding::YieldAfterTick;
use super::{Admission, LONGEST_WAIT, Member, deadline};
use crate::review::{Review, json};
use crate::table::{MatchGroup, ServedPolicy};
use crate::verdict::answer::Answer;
use crate::verdict::{EvaluationError, group};

impl Admission {
    /// The members that a request is for. Where they share a webhook, a member is left out if a webhook of its own would not be called.
    pub(super) async fn members<'r>(
        &self,
        group: &'r Arc<MatchGroup>,
        review: &Review<'_>,
        body: &Bytes,
        until: Option<Instant>,
    ) -> Vec<Member<'r>> {
        if group.matchers.is_empty() {
            return group.members.iter().map(|policy| (policy, step_in_group(policy, review))).collect();
        }
        let decisions = match decide(group, admission_request(review, body), until).await {
            Ok(decisions) => decisions,
            Err(error) => {
                if error.reason == Reason::Overloaded {
                    self.metrics.overloaded.inc();
                }
                return self.unasked_members(group, review, body, &error);
            }
        };
        let members = group.members.iter().zip(decisions).filter_map(|(policy, decision)| match decision {
            Decision::Matches => Some((policy, step_in_group(policy, review))),
            Decision::Excluded => None,
            // As API servers do where a match condition fails: a policy with `failurePolicy: Ignore` is not asked.
            Decision::Unknown(_) if policy.failure_policy == FailurePolicy::Ignore => None,
            Decision::Unknown(name) => {
                let text = format!("whether the policy matches the request cannot be found out: {name} failed");
                let error = EvaluationError::new(Reason::MatchConditionFailed, text);
                Some((policy, self.step_or(policy, review, &error)))
            }
        });
        members.collect()
    }

    /// The members that a request may be for, with their answers, where `error` keeps all of them from being asked. Match conditions are
    /// not evaluated then, nor large metadata decoded; members that rules or object selectors exclude are left out, so that they do not fail
    /// for requests of others.
    pub(super) fn unasked_members<'r>(
        &self,
        group: &'r Arc<MatchGroup>,
        review: &Review<'_>,
        body: &Bytes,
        error: &EvaluationError,
    ) -> Vec<Member<'r>> {
        let request = (!group.matchers.is_empty()).then(|| admission_request(review, body));
        let is_excluded = |policy: &ServedPolicy| {
            let (Some(request), Some(matchers)) = (&request, group.matchers.get(&policy.id)) else { return false };
            matchers.iter().all(|matcher| matcher.excludes(request))
        };
        let members = group.members.iter().filter(|policy| !is_excluded(policy));
        members.map(|policy| (policy, self.step_or(policy, review, error))).collect()
    }

    /// The answer of a match group of which no member was evaluated. The review is a part of `body`.
    pub(crate) fn group_refused(
        &self,
        group: &Arc<MatchGroup>,
        review: &Review<'_>,
        body: &Bytes,
        error: &EvaluationError,
    ) -> Answer {
        let members = self.unasked_members(group, review, body, error).into_iter();
        let decisions = members.map(|(policy, step)| (policy.id.clone(), self.unasked(policy, step, error)));
        group::join(decisions.collect(), None)
    }

    /// The step for a member that cannot be asked because of `error`: it fails, unless it is decided without being asked.
    fn step_or<'r>(&self, policy: &'r Arc<ServedPolicy>, review: &Review<'_>, error: &EvaluationError) -> Step<'r> {
        Step::Decided(Box::new(self.unasked(policy, step_in_group(policy, review), error)))
    }
}

/// A request as matchers look at it. The review is a part of `body`.
fn admission_request(review: &Review<'_>, body: &Bytes) -> AdmissionRequest {
    let part = |raw: &RawValue| body.slice_ref(raw.get().as_bytes());
    let (object, old) = (review.object().map(part), review.wire.old_object.map(part));
    AdmissionRequest::new(object, old, review.circumstances())
}

/// What each member's match parts say about a request.
///
/// # Errors
/// When that takes too long, or there is no memory for it.
async fn decide(
    group: &Arc<MatchGroup>,
    request: AdmissionRequest,
    until: Option<Instant>,
) -> Result<Vec<Decision>, EvaluationError> {
    let matchers = || group.matchers.values().flatten();
    let has_conditions = matchers().any(MemberMatcher::has_conditions);
    let is_large = matchers().any(|matcher| matcher.reads_metadata_of(&request)) && request.has_large_metadata();
    // All members belong to one tenant, so the first one stands for all.
    let Some(first) = group.members.first().filter(|_| has_conditions || is_large) else {
        let decisions = decide_all(group, &request, &mut NoPause).now_or_never();
        return Ok(decisions.expect("only conditions and large metadata wait"));
    };
    // Where the sender says nothing, as long as an API server waits at most.
    let deadline = deadline(until, Instant::now(), LONGEST_WAIT);
    let memory = if is_large {
        let amount = request.metadata_fields().map(|(name, text)| memory(name, text)).sum();
        let taken = first.share.memory().keep(first.share.claimant(), amount, 0, deadline).await;
        Some(taken.map_err(|error| EvaluationError::new(Reason::Overloaded, error.to_string()))?)
    } else {
        None
    };
    let work = {
        let group = Arc::clone(group);
        async move {
            let decisions = decide_all(&group, &request, &mut YieldAfterTick::new()).await;
            drop(request);
            drop(memory);
            decisions
        }
    };
    first.share.run_own_work(deadline, work).await.map_err(EvaluationError::from)
}

/// The most bytes that a field of metadata takes when its JSON is decoded, and labels and the variables of conditions are made from it:
/// less than one and a half times what it takes with a copy.
fn memory(name: &str, text: &[u8]) -> u64 {
    let copied = json::decoded_field(name, text);
    copied.saturating_add(copied / 2)
}

async fn decide_all(group: &MatchGroup, request: &AdmissionRequest, pace: &mut impl Pace) -> Vec<Decision> {
    let mut decisions = Vec::with_capacity(group.members.len());
    for policy in &group.members {
        decisions.push(match group.matchers.get(&policy.id) {
            Some(matchers) => together(matchers, request, pace).await,
            None => Decision::Matches,
        });
    }
    decisions
}

/// What several match parts of one policy say together: it is asked if any of them matches.
async fn together(matchers: &[MemberMatcher], request: &AdmissionRequest, pace: &mut impl Pace) -> Decision {
    let mut together = Decision::Excluded;
    for matcher in matchers {
        match matcher.decide(request, pace).await {
            Decision::Matches => return Decision::Matches,
            unknown @ Decision::Unknown(_) => together = unknown,
            Decision::Excluded => {}
        }
    }
    together
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashMap;

    use jiff::Timestamp;
    use portcullis_contract::{Failure, MatchCondition, MemberMatch, Mode, WebhookKind};
    use portcullis_engine::TICK;

    use super::*;
    use crate::admission::Target;
    use crate::admission::last_call::LastCall;
    use crate::lanes::{LaneLimits, Lanes, Share};
    use crate::memory::MemoryPlan;
    use crate::metrics::Metrics;
    use crate::review::tests::LEAST;
    use crate::table::Serving;
    use crate::verdict::answer::Envelope;
    use crate::verdict::decision::Outcome;

    /// A policy that cannot be loaded.
    pub(in crate::admission) fn unloaded(id: &str, enforced: bool, suspend: bool, metrics: &Metrics) -> ServedPolicy {
        unloaded_with(MemoryPlan::unlimited(), id, enforced, suspend, metrics)
    }

    fn unloaded_with(plan: MemoryPlan, id: &str, enforced: bool, suspend: bool, metrics: &Metrics) -> ServedPolicy {
        let lanes = Lanes::new(LaneLimits::new(4, 1), plan, metrics).expect("starts");
        let id = id.parse().expect("an id");
        let of_policy = metrics.policy(&id);
        ServedPolicy {
            uid: "u".to_owned(),
            generation: 1,
            mode: Mode::Protect,
            failure_policy: FailurePolicy::Fail,
            suspend,
            is_group: false,
            enforced,
            serving: Serving::Unserved(Failure::new(1, Reason::ModuleUnsupported, "no", Timestamp::UNIX_EPOCH)),
            failure: None,
            share: Arc::new(Share::new(lanes, &id, Arc::clone(&of_policy))),
            metrics: of_policy,
            id,
        }
    }

    /// A group whose webhook is shared, in which the first policy has this match part.
    fn shared(policies: Vec<ServedPolicy>, part: &MemberMatch) -> Arc<MatchGroup> {
        let matchers = HashMap::from([(policies[0].id.clone(), vec![MemberMatcher::of(part).expect("judged")])]);
        let members = policies.into_iter().map(Arc::new).collect();
        Arc::new(MatchGroup { kind: WebhookKind::Validating, members, matchers: Arc::new(matchers) })
    }

    /// What becomes of such a member, in a group whose webhook is shared, if its match condition fails.
    async fn outcome(id: &str, enforced: bool, suspend: bool) -> Option<Outcome> {
        let metrics = Metrics::new().expect("registers");
        let policy = unloaded(id, enforced, suspend, &metrics);
        let condition = MatchCondition { name: "odd".to_owned(), expression: "request.noSuchField == 1".to_owned() };
        let part = MemberMatch { rules: Vec::new(), object_selector: None, match_conditions: vec![condition] };
        let group = shared(vec![policy], &part);
        let admission = Admission { metrics, last_call: LastCall::default() };
        let body = Bytes::from_static(LEAST.as_bytes());
        let review = Review::parse(&body).expect("a review");
        let step = admission.members(&group, &review, &body, None).await.into_iter().next()?.1;
        match step {
            Step::Decided(decision) => Some(decision.outcome),
            Step::Evaluate(_) => None,
        }
    }

    #[tokio::test]
    async fn where_nobody_can_be_asked_only_members_that_the_request_may_be_for_fail() {
        let metrics = Metrics::new().expect("registers");
        let condition = MatchCondition { name: "c".to_owned(), expression: "true".to_owned() };
        let object_selector = Some(serde_json::json!({"matchLabels": {"app": "shop"}}));
        let part = MemberMatch { rules: Vec::new(), object_selector, match_conditions: vec![condition] };
        let policies = ["cluster/a", "cluster/b"].map(|id| unloaded(id, true, false, &metrics));
        let group = shared(policies.into(), &part);
        let admission = Admission { metrics, last_call: LastCall::default() };
        let ids = |object: &str| {
            let body = Bytes::from(LEAST.replace("{\"uid\"", &format!("{{\"object\":{object},\"uid\"")));
            let review = Review::parse(&body).expect("a review");
            let error = EvaluationError::new(Reason::Overloaded, "no");
            let members = admission.unasked_members(&group, &review, &body, &error);
            members.iter().map(|(policy, _)| policy.id.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(ids(r#"{"metadata":{"labels":{"app":"shop"}}}"#), ["cluster/a", "cluster/b"]);
        assert_eq!(ids(r#"{"metadata":{}}"#), ["cluster/b"]);
    }

    #[tokio::test]
    async fn z25_large_metadata_are_decoded_with_memory_of_the_tenant_or_not_at_all() {
        let (least, most) = (MemoryPlan { floor: 0, shared: 2 << 20, bodies: 0 }, MemoryPlan::unlimited());
        let selector = serde_json::json!({"matchLabels": {"00001": "other"}});
        let condition = MatchCondition { name: "c".to_owned(), expression: "has(object.metadata.name)".to_owned() };
        for (object_selector, match_conditions) in [(Some(selector), Vec::new()), (None, vec![condition])] {
            let part = MemberMatch { rules: Vec::new(), object_selector, match_conditions };
            for (plan, bytes, is_decided) in [(least, 50_000, true), (least, 300_000, false), (most, 300_000, true)] {
                let labels: Vec<_> = (0..bytes / 11).map(|number| format!("\"{number:05x}\":\"\"")).collect();
                let object = format!("{{\"object\":{{\"metadata\":{{\"labels\":{{{}}}}}}},\"uid\"", labels.join(","));
                let body = Bytes::from(LEAST.replace("{\"uid\"", &object));
                let review = Review::parse(&body).expect("a review");
                let metrics = Metrics::new().expect("registers");
                let group = shared(vec![unloaded_with(plan, "cluster/a", true, false, &metrics)], &part);
                let admission = Admission { metrics: metrics.clone(), last_call: LastCall::default() };
                let until = Instant::now() + if is_decided { LONGEST_WAIT } else { TICK * 10 };
                let members = admission.members(&group, &review, &body, Some(until)).await;
                assert_eq!(members.is_empty(), is_decided, "neither matches, as far as that is known: {bytes}");
                assert_eq!(metrics.overloaded.get(), u64::from(!is_decided), "{bytes}");
                assert_eq!(metrics.guest_memory.get(), 0, "it comes back");
            }
        }
    }

    #[tokio::test]
    async fn a_group_refuses_with_the_review_that_is_there_and_reads_no_body_again() {
        let metrics = Metrics::new().expect("registers");
        let object_selector = Some(serde_json::json!({"matchLabels": {"app": "shop"}}));
        let part = MemberMatch { rules: Vec::new(), object_selector, match_conditions: Vec::new() };
        let policies = ["cluster/a", "cluster/b"].map(|id| unloaded(id, true, false, &metrics));
        let group = shared(policies.into(), &part);
        let admission = Admission { metrics, last_call: LastCall::default() };
        let error = EvaluationError::new(Reason::Overloaded, "no");
        let body = Bytes::from_static(LEAST.as_bytes());
        let review = Review::parse(&body).expect("a review");
        let text = |answer: Answer| answer.body(review.uid(), Envelope::Review);
        let unread = Bytes::from_static(b"no review");
        let refused = text(admission.group_refused(&group, &review, &unread, &error));
        assert!(String::from_utf8_lossy(&refused).contains("cluster/b"));
        let refused_later = |body| admission.refused(&Target::Group(Arc::clone(&group), body), &error);
        assert_eq!(refused_later(body.clone()).map(text).expect("a review"), refused);
        assert!(refused_later(unread).is_err());
    }

    #[tokio::test]
    async fn a_member_that_is_not_asked_in_any_case_decides_nothing_where_its_condition_fails() {
        let is_admitted = |outcome| matches!(outcome, Some(Outcome::Admitted { .. }));
        assert!(is_admitted(outcome("cluster/a", false, false).await), "it was never loaded");
        assert!(is_admitted(outcome("cluster/a", true, true).await), "it is suspended");
        assert!(is_admitted(outcome("namespaced/elsewhere/a", true, false).await), "it is for another namespace");
        let Some(Outcome::Denied(denial)) = outcome("cluster/a", true, false).await else { panic!("it is enforced") };
        assert_eq!(denial.reason, Some(Reason::ModuleUnsupported));
    }
}
