//! Asks a policy about an object that exists. The verdict is given as it is: neither mode nor custom message nor `failurePolicy` counts, and
//! it is not among the answers that the policy's own metrics and its share of errors count.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_contract::{AuditOutcome, AuditRefusal, AuditVerdict, Reason};
use serde_json::value::RawValue;

use super::{Admission, Evaluated, Evaluation, LONGEST_WAIT, Purpose};
use crate::lanes::{LaneError, Needed};
use crate::review::Review;
use crate::table::{ServedPolicy, Serving};
use crate::verdict::decision::{self, Decision, Denial, Outcome};
use crate::verdict::draft::Draft;
use crate::verdict::{EvaluationError, MemberDenial, text};

impl Admission {
    /// The verdict of a policy on an existing object, evaluated with the capacity that requests leave over.
    ///
    /// # Errors
    /// When requests need all the capacity. The time that it took is not known here.
    pub(crate) async fn audit(
        &self,
        policy: &Arc<ServedPolicy>,
        review: &Review<'_>,
    ) -> Result<AuditVerdict, AuditRefusal> {
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
        let (generation, deadline) = (loaded.generation(), Instant::now() + longest(policy));
        let (request, edit) =
            (review.payload(review.object().map(RawValue::get)), Draft::object(review.object()).edit());
        let evaluation = Evaluation { purpose: Purpose::Background, ..Evaluation::new(policy, loaded, request, edit) };
        let spare = policy.share.run_spare(deadline, evaluation.run(deadline)).await;
        let result = spare.map_err(not_begun)?.unwrap_or_else(|error| {
            if error == LaneError::Panicked {
                self.metrics.panics.inc();
            }
            Err(error.into())
        });
        match result {
            Ok(Evaluated { decision, .. }) => Ok(judged(generation, decision)),
            Err(EvaluationError { reason: Reason::Overloaded, text }) => Err(refusal(text, false)),
            Err(EvaluationError { reason, text }) => Ok(failed(generation, reason, text)),
        }
    }
}

/// How long the evaluation of an existing object by this policy may take: its own limit, and never longer than an API server would wait. A longer
/// one would not end while the sender waits, so that it would be asked again and again.
pub(crate) fn longest(policy: &ServedPolicy) -> Duration {
    match &policy.serving {
        Serving::Ready(loaded) => loaded.timeout().min(LONGEST_WAIT),
        Serving::Unserved(_) => Duration::ZERO,
    }
}

fn not_begun(needed: Needed) -> AuditRefusal {
    refusal(needed.to_string(), needed == Needed::Places)
}

fn refusal(message: String, is_of_policy: bool) -> AuditRefusal {
    AuditRefusal { message, is_of_policy, microseconds: 0 }
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
    fn only_a_lack_of_its_own_places_is_about_the_policy() {
        assert!(not_begun(Needed::Places).is_of_policy);
        assert!(!not_begun(Needed::Instances).is_of_policy && !not_begun(Needed::Long).is_of_policy);
        assert_eq!(not_begun(Needed::Places).message, "requests take all places of this policy");
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
