//! What reporter and evaluator say to each other about existing objects: the reporter asks, on the loopback of its pod, whether a policy
//! would admit an object as it is. The loader asks the same about a policy that a user applies.
//!
//! The question is a `POST` of an AdmissionReview to [`AUDIT_PATH`] followed by the id of the policy; the answer is an [`AuditAnswer`], which can
//! be read as an [`AuditVerdict`] too. Status 503 means that this evaluator cannot be asked now; its `Retry-After` says when to try again. Where
//! requests need what the evaluation would take, the body is an [`AuditRefusal`]; otherwise it is a text.

use serde::{Deserialize, Serialize};

use crate::Reason;

/// The path by which a policy is asked about an existing object; the policy's id follows.
pub const AUDIT_PATH: &str = "/audit/";

/// The answer to a question: the verdict, and what it cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditAnswer {
    /// The verdict.
    #[serde(flatten)]
    pub verdict: AuditVerdict,
    /// How long the evaluation took, in microseconds. The time in the queue does not count.
    #[serde(default)]
    pub microseconds: u64,
}

/// Why a policy cannot be asked now: requests need what the evaluation would take.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditRefusal {
    /// What requests need.
    pub message: String,
    /// Whether it is about this policy alone: its own requests take all its places. Otherwise other policies may be refused as well.
    #[serde(default)]
    pub is_of_policy: bool,
    /// How long the evaluation took, in microseconds, if it was begun.
    #[serde(default)]
    pub microseconds: u64,
}

/// What a policy says about an existing object. This is its plain verdict: the policy's mode and custom message are not
/// applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditVerdict {
    /// The verdict in one word.
    pub outcome: AuditOutcome,
    /// The generation of the policy that was asked, which may be older than the newest one.
    pub generation: i64,
    /// What the policy says, or why it could not be evaluated. The text is cleaned and cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Why it could not be evaluated; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// The outcome of asking a policy about an existing object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AuditOutcome {
    /// The policy admits the object as it is. So does a suspended policy.
    Allowed,
    /// The policy rejects the object.
    Denied,
    /// The policy would change the object.
    Changes,
    /// The policy could not be evaluated, so nothing is known about the object. The reason says why.
    Failed,
}

impl AuditOutcome {
    /// Every outcome.
    pub const ALL: &[Self] = &[Self::Allowed, Self::Denied, Self::Changes, Self::Failed];

    /// The word, as in JSON and as a label of a metric.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Changes => "changes",
            Self::Failed => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_verdict_is_read_as_it_is_written() {
        let verdict = |outcome, message: Option<&str>, reason| AuditVerdict {
            outcome,
            generation: 3,
            message: message.map(str::to_owned),
            reason,
        };
        for (verdict, written) in [
            (verdict(AuditOutcome::Allowed, None, None), json!({"outcome": "allowed", "generation": 3})),
            (
                verdict(AuditOutcome::Denied, Some("no"), None),
                json!({"outcome": "denied", "generation": 3, "message": "no"}),
            ),
            (verdict(AuditOutcome::Changes, None, None), json!({"outcome": "changes", "generation": 3})),
            (
                verdict(AuditOutcome::Failed, Some("late"), Some(Reason::EvaluationTimedOut)),
                json!({"outcome": "failed", "generation": 3, "message": "late", "reason": "EvaluationTimedOut"}),
            ),
        ] {
            assert_eq!(serde_json::to_value(&verdict).expect("encodes"), written);
            assert_eq!(serde_json::from_value::<AuditVerdict>(written).expect("decodes"), verdict);
        }
    }

    #[test]
    fn a_refusal_is_read_as_it_is_written() {
        let refusal = AuditRefusal { message: "no memory".to_owned(), is_of_policy: true, microseconds: 7 };
        let written = json!({"message": "no memory", "isOfPolicy": true, "microseconds": 7});
        assert_eq!(serde_json::to_value(&refusal).expect("encodes"), written);
        assert_eq!(serde_json::from_value::<AuditRefusal>(written).expect("decodes"), refusal);
        let short = serde_json::from_value::<AuditRefusal>(json!({"message": ""})).expect("decodes");
        assert_eq!(short, AuditRefusal::default());
    }

    #[test]
    fn the_word_is_the_wire_form() {
        for outcome in AuditOutcome::ALL {
            let json = serde_json::to_string(outcome).expect("encodes");
            assert_eq!(json, format!("\"{}\"", outcome.as_str()));
        }
    }
}
