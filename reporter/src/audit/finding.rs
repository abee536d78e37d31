//! A finding: what a policy has against an object. Pure.

use portcullis_contract::{AuditOutcome, AuditVerdict, PolicyId, Reason, clean};

/// Longest message that is kept, in bytes.
const MAX_MESSAGE: usize = 1024;

/// The kind of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Problem {
    /// The policy rejects the object.
    Violation,
    /// The policy could not be evaluated.
    Error,
}

/// A verdict that is not an admission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) policy: PolicyId,
    pub(super) problem: Problem,
    /// The generation that was asked.
    pub(super) generation: i64,
    pub(super) message: String,
    pub(super) reason: Option<Reason>,
}

impl Finding {
    /// The finding of a verdict; none if the policy admits the object, with or without a change.
    pub(super) fn of(policy: &PolicyId, verdict: &AuditVerdict) -> Option<Self> {
        let (problem, otherwise) = match verdict.outcome {
            AuditOutcome::Allowed | AuditOutcome::Changes => return None,
            AuditOutcome::Denied => (Problem::Violation, "the policy rejects the object"),
            AuditOutcome::Failed => (Problem::Error, "the policy could not be evaluated"),
        };
        let message = verdict.message.as_deref().map(|message| clean(message, MAX_MESSAGE)).unwrap_or_default();
        Some(Self {
            policy: policy.clone(),
            problem,
            generation: verdict.generation,
            message: if message.is_empty() { otherwise.to_owned() } else { message },
            reason: verdict.reason,
        })
    }

    /// The memory that it takes, roughly, in bytes.
    pub(super) fn size(&self) -> usize {
        size_of::<Self>() + self.message.len()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A finding of the policy `cluster/<name>`.
    pub(in crate::audit) fn finding(name: &str, problem: Problem, message: &str) -> Finding {
        let policy = PolicyId::cluster(name).expect("an id");
        Finding { policy, problem, generation: 3, message: message.into(), reason: None }
    }

    #[test]
    fn admissions_are_no_findings_and_messages_are_cleaned() {
        let of = |outcome, message: Option<&str>| {
            let message = message.map(str::to_owned);
            let verdict = AuditVerdict { outcome, generation: 3, message, reason: None };
            Finding::of(&PolicyId::cluster("a").expect("an id"), &verdict)
        };
        assert_eq!(of(AuditOutcome::Allowed, Some("fine")), None);
        assert_eq!(of(AuditOutcome::Changes, None), None);
        assert_eq!(of(AuditOutcome::Denied, Some("no\u{1b}[2J")), Some(finding("a", Problem::Violation, "no [2J")));
        let long = "x".repeat(5000);
        assert!(of(AuditOutcome::Denied, Some(&long)).expect("a finding").message.len() <= MAX_MESSAGE);
        let failed = of(AuditOutcome::Failed, None).expect("a finding");
        assert_eq!((failed.problem, failed.message.as_str()), (Problem::Error, "the policy could not be evaluated"));
    }
}
