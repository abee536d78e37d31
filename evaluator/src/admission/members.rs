//! Which members of a match group a request is for, where they share a webhook.
//!
//! Rules and selectors are quick. The match conditions of many members can take long, if they compare much of a large object, and nothing
//! ends one of them before its end. So they are evaluated in turns of the group's tenant, as its guests are: what takes longer than a tick
//! goes on in the slow lane.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt as _;
use portcullis_contract::{FailurePolicy, Reason};
use portcullis_engine::TICK;
use portcullis_matching::{AdmissionRequest, Decision, MemberMatcher, NoPause, Pace};
use serde_json::value::RawValue;
use tokio::task::yield_now;

use super::step::{Step, step_for};
use super::{Admission, Member, deadline};
use crate::review::Review;
use crate::table::MatchGroup;
use crate::verdict::EvaluationError;

/// The longest time for match conditions, where the sender says nothing: as long as an API server waits at most.
const LONGEST: Duration = Duration::from_secs(30);
/// The most steps of a condition that is evaluated where the request arrived. They take less than some milliseconds.
const QUICK: u64 = 20_000;

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
            return group.members.iter().map(|policy| (policy, step_for(policy, review))).collect();
        }
        let part = |raw: &RawValue| body.slice_ref(raw.get().as_bytes());
        let (object, old) = (review.object().map(part), review.wire.old_object.map(part));
        let request = AdmissionRequest::new(object, old, review.circumstances());
        let decisions = match decide(group, request, until).await {
            Ok(decisions) => decisions,
            Err(error) => {
                let undecided = |policy| match step_for(policy, review) {
                    Step::Evaluate(_) => (policy, Step::Decided(Box::new(self.failed(policy, &error)))),
                    decided @ Step::Decided(_) => (policy, decided),
                };
                return group.members.iter().map(undecided).collect();
            }
        };
        let members = group.members.iter().zip(decisions).filter_map(|(policy, decision)| match decision {
            Decision::Matches => Some((policy, step_for(policy, review))),
            Decision::Excluded => None,
            // As API servers do where a match condition fails: a policy with `failurePolicy: Ignore` is not asked.
            Decision::Unknown(_) if policy.failure_policy == FailurePolicy::Ignore => None,
            Decision::Unknown(name) if !policy.suspend => {
                let text = format!("whether the policy matches the request cannot be found out: {name} failed");
                let error = EvaluationError::new(Reason::MatchConditionFailed, text);
                Some((policy, Step::Decided(Box::new(self.failed(policy, &error)))))
            }
            Decision::Unknown(_) => Some((policy, step_for(policy, review))),
        });
        members.collect()
    }
}

/// What each member's match parts say about a request.
///
/// # Errors
/// When that takes too long.
async fn decide(
    group: &Arc<MatchGroup>,
    request: AdmissionRequest,
    until: Option<Instant>,
) -> Result<Vec<Decision>, EvaluationError> {
    let has_conditions = group.matchers.values().flatten().any(MemberMatcher::has_conditions);
    // All members belong to one tenant, so the first one stands for all.
    let Some(first) = group.members.first().filter(|_| has_conditions) else {
        let decisions = decide_all(group, &request, &mut NoPause).now_or_never();
        return Ok(decisions.expect("only conditions wait"));
    };
    let turns = {
        let group = Arc::clone(group);
        async move { decide_all(&group, &request, &mut Turns::new()).await }
    };
    let deadline = deadline(until, Instant::now(), LONGEST);
    first.share.run_own_work(deadline, turns).await.map_err(EvaluationError::from)
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

/// Yields after a tick, and before a condition that may take longer.
struct Turns {
    since: Instant,
}

impl Turns {
    fn new() -> Self {
        Self { since: Instant::now() }
    }
}

impl Pace for Turns {
    async fn before(&mut self, steps: u64) {
        if steps > QUICK || self.since.elapsed() >= TICK {
            yield_now().await;
            self.since = Instant::now();
        }
    }
}
