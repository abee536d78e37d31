//! Asks a policy about an object that exists. The verdict is given as it is: neither mode nor custom message nor `failurePolicy` counts, and
//! it is not among the answers that the policy's own metrics and its share of errors count.

use std::sync::Arc;
use std::time::Instant;

use portcullis_contract::{AuditOutcome, AuditVerdict, Reason};
use serde_json::value::RawValue;

use super::{Admission, Evaluated, Evaluation, Purpose};
use crate::lanes::LaneError;
use crate::review::Review;
use crate::table::{ServedPolicy, Serving};
use crate::verdict::decision::{self, Decision, Denial, Outcome};
use crate::verdict::draft::Draft;
use crate::verdict::{EvaluationError, MemberDenial, text};

/// The audit is refused, since requests need what the evaluation would take; the text names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contended(pub(crate) String);

impl Admission {
    /// The verdict of a policy on an existing object, evaluated with the capacity that requests leave over.
    ///
    /// # Errors
    /// When requests need all the capacity.
    pub(crate) async fn audit(
        &self,
        policy: &Arc<ServedPolicy>,
        review: &Review<'_>,
    ) -> Result<AuditVerdict, Contended> {
        if policy.suspend {
            let message = Some("the policy is suspended".to_owned());
            let generation = policy.generation;
            return Ok(AuditVerdict { outcome: AuditOutcome::Allowed, generation, message, reason: None });
        }
        let loaded = match &policy.serving {
            Serving::Ready(loaded) => loaded,
            Serving::Unserved(failure) => {
                return Ok(failed(policy.generation, failure.reason, decision::unserved_text(failure)));
            }
        };
        let (generation, deadline) = (loaded.generation(), Instant::now() + loaded.timeout());
        let evaluation = Evaluation {
            policy: Arc::clone(policy),
            loaded: Arc::clone(loaded),
            request: review.payload(review.object().map(RawValue::get)),
            edit: Draft::object(review.object()).edit(),
            may_mutate: loaded.mutating(),
            purpose: Purpose::Audit,
        };
        let result = policy.share.run_spare(deadline, evaluation.run(deadline)).await.unwrap_or_else(|error| {
            if error == LaneError::Panicked {
                self.metrics.panics.inc();
            }
            Err(error.into())
        });
        match result {
            Ok(Evaluated { decision, .. }) => Ok(judged(generation, decision)),
            Err(EvaluationError { reason: Reason::Overloaded, text }) => Err(Contended(text)),
            Err(EvaluationError { reason, text }) => Ok(failed(generation, reason, text)),
        }
    }
}

fn judged(generation: i64, decision: Decision) -> AuditVerdict {
    let Decision { outcome, mutates, .. } = decision;
    let (outcome, message) = match outcome {
        Outcome::Admitted { message, .. } if mutates => (AuditOutcome::Changes, message),
        Outcome::Admitted { message, .. } => (AuditOutcome::Allowed, message),
        Outcome::Denied(denial) => (AuditOutcome::Denied, in_words(denial)),
    };
    AuditVerdict { outcome, generation, message, reason: None }
}

fn failed(generation: i64, reason: Reason, text: String) -> AuditVerdict {
    AuditVerdict { outcome: AuditOutcome::Failed, generation, message: Some(text), reason: Some(reason) }
}

/// The message of a denial, followed by those of the members of a policy group; none if there is no message.
fn in_words(denial: Denial) -> Option<String> {
    let members =
        denial.members.into_iter().map(|MemberDenial { name, message }| format!("member `{name}`: {message}"));
    let said: Vec<_> = denial.text.into_iter().chain(members).collect();
    (!said.is_empty()).then(|| text::denial(&said.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Verdict;
    use crate::verdict::decision::Mutation;

    fn verdict(verdict: Verdict, mutation: Mutation) -> AuditVerdict {
        judged(3, decision::plain(3, verdict, mutation))
    }

    #[test]
    fn a_verdict_is_told_as_it_is() {
        let told = |accepted, message: Option<&str>, mutation| {
            let said = Verdict { message: message.map(str::to_owned), ..Verdict::plain(accepted) };
            let AuditVerdict { outcome, generation, message, reason } = verdict(said, mutation);
            assert_eq!((generation, reason), (3, None));
            (outcome, message)
        };
        assert_eq!(told(true, None, Mutation::None), (AuditOutcome::Allowed, None));
        assert_eq!(told(false, Some("no"), Mutation::None), (AuditOutcome::Denied, Some("no".to_owned())));
        assert_eq!(told(false, None, Mutation::None), (AuditOutcome::Denied, None));
        assert_eq!(told(true, None, Mutation::Changed), (AuditOutcome::Changes, None));
        assert_eq!(told(false, Some("no"), Mutation::Changed).0, AuditOutcome::Denied);
    }

    #[test]
    fn the_members_of_a_policy_group_are_heard() {
        let member = |name: &str, message: &str| MemberDenial { name: name.to_owned(), message: message.to_owned() };
        let mut said = Verdict { message: Some("not signed".to_owned()), ..Verdict::plain(false) };
        said.members = vec![member("alice", "no signature"), member("bob", "unreachable")];
        let told = verdict(said, Mutation::None).message;
        assert_eq!(told.as_deref(), Some("not signed; member `alice`: no signature; member `bob`: unreachable"));
    }
}
