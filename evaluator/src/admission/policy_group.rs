//! Evaluates a policy group: asks its members as its expression needs them (docs/design/policy-abi.md, section 10).
//!
//! Members that are needed in any case are asked side by side, as far as there are instances to spare, and one after the other about an object
//! that exists; each has its own time within that of the group. Together they yield as often as one guest does ([`super::yielding`]). A member
//! that fails never counts as a denial, which `!` would turn into an admission: the group fails, unless the others decide.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use portcullis_expression::{Answers, MemberAnswer, State};

use crate::admission::Purpose;
use crate::admission::yielding::{YieldAfterTick, side_by_side};
use crate::guest::loaded::{LoadedModule, LoadedPolicyGroup};
use crate::lanes::{InstancePermit, Share};
use crate::memory::MemoryHold;
use crate::verdict::decision::Mutation;
use crate::verdict::draft::{Edit, Judged};
use crate::verdict::{EvaluationError, FAILED_CAPABILITY, MemberDenial, Verdict, text};

/// The error of a member that changes the object; its text is part of docs/design/policy-abi.md, section 10.
const MUTATES: &str = "mutation is not allowed inside of policy group";

/// What the members of a group are asked about, and with what.
#[derive(Clone, Copy)]
pub(super) struct Asking<'a> {
    /// The share of the group.
    pub(super) share: &'a Share,
    /// Judges what a member changes.
    pub(super) edit: &'a Edit,
    /// What all members see of the request.
    pub(super) request: &'a Bytes,
    /// When the group must have its verdict.
    pub(super) deadline: Instant,
    /// What the verdict is for.
    pub(super) purpose: Purpose,
}

/// The verdict of the group on a request, without a message of its own.
///
/// # Errors
/// When a member fails and the others do not decide.
pub(super) async fn evaluate(group: &LoadedPolicyGroup, asking: Asking<'_>) -> Result<Verdict, EvaluationError> {
    let mut answers = Answers::new();
    let (mut denials, mut failures) = (Vec::new(), BTreeMap::new());
    let (mut annotations, mut pace) = (BTreeMap::new(), YieldAfterTick::new());
    loop {
        let needed = match group.expression.evaluate(&answers) {
            State::Decided(accepted) => {
                let members = if accepted { Vec::new() } else { denials };
                let annotations = Some(annotations).filter(|_| !accepted);
                return Ok(Verdict { members, audit_annotations: annotations, ..Verdict::plain(accepted) });
            }
            State::Failed(name) => {
                let failure: Option<EvaluationError> = failures.remove(name);
                let EvaluationError { reason, text } = failure.unwrap_or_else(EvaluationError::timed_out);
                return Err(EvaluationError::new(reason, format!("member `{name}`: {text}")));
            }
            State::Needs(needed) => needed,
        };
        // The expression calls members only, which was checked when it was loaded.
        let needed = needed.into_iter().filter_map(|name| Some((name, group.members.get(name)?)));
        for (name, result) in asking.ask(needed.collect(), &mut pace).await {
            let answer = match result {
                Err(error) => {
                    failures.insert(name, error);
                    MemberAnswer::Failed
                }
                Ok(Judged { mut verdict, mutation, .. }) => {
                    let admits = verdict.accepted && mutation == Mutation::None;
                    if !admits {
                        let failed = verdict.audit_annotations.as_mut().and_then(|all| all.remove(FAILED_CAPABILITY));
                        annotations.extend(
                            failed.map(|why| (FAILED_CAPABILITY.to_owned(), format!("member `{name}`: {why}"))),
                        );
                        let said = if verdict.accepted { Some(MUTATES.to_owned()) } else { verdict.message };
                        let message = text::denial(&said.unwrap_or_default());
                        let message =
                            if message.is_empty() { "the member denies this request".to_owned() } else { message };
                        denials.push(MemberDenial { name: name.to_owned(), message });
                    }
                    MemberAnswer::Admits(admits)
                }
            };
            answers.insert(name, answer);
        }
    }
}

type Judgement<'g> = (&'g str, Result<Judged, EvaluationError>);

impl Asking<'_> {
    /// Asks members side by side, and one after the other those for which there is no instance to spare.
    async fn ask<'g>(self, members: Vec<(&'g str, &'g LoadedModule)>, pace: &mut YieldAfterTick) -> Vec<Judgement<'g>> {
        let one = |(name, member): (&'g str, &'g LoadedModule)| async move { (name, self.judged(member).await) };
        pace.yield_after_tick().await;
        let spare = self.spare_instances(members.len().saturating_sub(1));
        let mut left = members.into_iter();
        let mut asked = side_by_side(left.by_ref().take(1 + spare.len()).map(one), Instant::now).await;
        drop(spare);
        for member in left {
            pace.yield_after_tick().await;
            asked.push(one(member).await);
        }
        asked
    }

    /// The verdict of a member, in its own time.
    async fn judged(self, member: &LoadedModule) -> Result<Judged, EvaluationError> {
        let Self { edit, request, deadline, purpose, .. } = self;
        let deadline = deadline.min(Instant::now() + member.timeout());
        // What the request keeps would be counted twice where two members wait for memory.
        let asked = member.validate_with(request.clone(), edit.subject(), deadline, purpose.when_full(), 0).await;
        let (verdict, hold) = asked?;
        self.without_change(verdict, hold, deadline).await
    }

    /// A member's verdict, and whether it changes the object. The change itself is never used, and is dropped while the memory of the
    /// instance still counts: a group keeps what its members say until the last one is done.
    async fn without_change(
        self,
        verdict: Verdict,
        hold: Arc<MemoryHold>,
        deadline: Instant,
    ) -> Result<Judged, EvaluationError> {
        let Self { share, edit, request, .. } = self;
        let mut judged = edit.clone().judge(share.claimant(), verdict, request.clone(), deadline).await?;
        judged.change = None;
        drop(hold);
        Ok(judged)
    }

    /// At most so many instances beside that of the group.
    fn spare_instances(self, most: usize) -> Vec<InstancePermit> {
        let most = if self.purpose.may_take_spares() { most } else { 0 };
        (0..most).map_while(|_| self.share.spare_instance()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use futures::FutureExt as _;

    use super::*;
    use crate::lanes::{LaneLimits, Lanes};
    use crate::memory::MemoryPlan;
    use crate::metrics::Metrics;
    use crate::verdict::draft::Draft;

    #[tokio::test]
    async fn the_audit_of_a_group_has_one_instance_and_requests_have_the_others() {
        let metrics = Metrics::new().expect("registers");
        let lanes = Lanes::new(LaneLimits::new(4, 1), MemoryPlan::unlimited(), &metrics).expect("starts");
        let id = "namespaced/a/group".parse().expect("an id");
        let share = Arc::new(Share::new(lanes, &id, metrics.policy(&id)));
        let deadline = Instant::now() + Duration::from_secs(60);
        let (edit, request) = (Draft::object(None).edit(), Bytes::new());
        let spare = |purpose| Asking { share: &share, edit: &edit, request: &request, deadline, purpose };
        let mut audit = Box::pin(share.run_spare(deadline, pending::<()>()));
        assert!(audit.as_mut().now_or_never().is_none());
        assert_eq!(spare(Purpose::Background).spare_instances(3).len(), 0);
        assert_eq!(metrics.instances.get(), 1);
        assert_eq!(share.run(deadline, async { 1 }).await, Ok(1));
        // The namespace has half of them.
        assert_eq!(spare(Purpose::Admission).spare_instances(3).len(), 1);
        drop(audit);
        assert_eq!(spare(Purpose::Audit).spare_instances(1).len(), 1);
    }

    #[tokio::test]
    async fn what_a_member_changes_is_not_kept() {
        let metrics = Metrics::new().expect("registers");
        let lanes = Lanes::new(LaneLimits::new(4, 1), MemoryPlan::unlimited(), &metrics).expect("starts");
        let id = "namespaced/a/group".parse().expect("an id");
        let share = Share::new(Arc::clone(&lanes), &id, metrics.policy(&id));
        let deadline = Instant::now() + Duration::from_secs(60);
        let request = Bytes::from_static(br#"{"uid":"u","object":{"a":1}}"#);
        let (edit, purpose) = (Draft::object(None).edit(), Purpose::Admission);
        let asking = Asking { share: &share, edit: &edit, request: &request, deadline, purpose };
        for (object, mutation) in [(r#"{"a":2}"#, Mutation::Changed), (r#"{"a":1}"#, Mutation::None)] {
            let verdict = format!(r#"{{"accepted":true,"mutated_object":{object}}}"#);
            let verdict = serde_json::from_str(&verdict).expect("a verdict");
            let (_, hold) = lanes.memory().account(share.claimant(), deadline);
            let judged = asking.without_change(verdict, hold, deadline).await.expect("it may be applied");
            assert_eq!((judged.mutation, judged.change.is_none()), (mutation, true));
        }
    }
}
