//! How a policy is checked when a user applies it: the API server asks an evaluator, which asks the loader of its pod.
//!
//! The loader adds the policy to its manifest under an id of its own ([`PolicyId::is_check`](crate::PolicyId::is_check)), without a match
//! group, so that no webhook calls it. Whether loader and evaluator can load it is the answer.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Failure, Reason};

/// The first segment of the path by which API servers ask about policies that are applied.
pub const CHECK_PATH: &str = "check";

/// The most policies that a replica checks at the same time.
pub const MAX_CHECKS: usize = 16;

/// The longest time of a check: the largest `timeoutSeconds` that a webhook can have (admissionregistration.k8s.io/v1).
pub const MAX_CHECK_TIME: Duration = Duration::from_secs(30);

/// The question, from evaluator to loader. The body of its frame is the policy, as JSON; it has at most
/// [`BROKER_MAX_PAYLOAD`](crate::BROKER_MAX_PAYLOAD) bytes. The body of the reply is a [`CheckVerdict`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerCheck {
    /// The number of the message, unique on its connection; the reply has the same.
    pub number: u64,
    /// How the policy is to be checked.
    pub check: PolicyCheck,
}

/// How a policy is to be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyCheck {
    /// How long the answer may take, in milliseconds.
    pub millis: u64,
}

/// The result of checking a policy that is applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckVerdict {
    /// Whether it would load.
    pub outcome: CheckOutcome,
    /// Why it does not load, or why that is not known, without the name of the policy; absent if it loads.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failure: Option<CheckFailure>,
    /// What its author should know although it loads, one sentence each. Texts of a guest or module are cleaned.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub warnings: Vec<String>,
}

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckOutcome {
    /// It loads.
    Passed,
    /// It cannot load until it is edited, so it is refused.
    Refused,
    /// It does not load now, or there was no time to find out. It is admitted, and its author is warned.
    Unknown,
}

/// Why a policy does not load, or why that is not known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckFailure {
    /// The reason that its status would have; absent if the time ran out.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<Reason>,
    /// The cause, as a sentence.
    pub message: String,
}

impl CheckVerdict {
    /// It loads.
    pub fn passed(warnings: Vec<String>) -> Self {
        Self { outcome: CheckOutcome::Passed, failure: None, warnings }
    }

    /// It is refused.
    pub fn refused(reason: Reason, message: String) -> Self {
        let failure = Some(CheckFailure { reason: Some(reason), message });
        Self { outcome: CheckOutcome::Refused, failure, warnings: Vec::new() }
    }

    /// It is not known whether it loads.
    pub fn unknown(reason: Option<Reason>, message: impl Into<String>) -> Self {
        let failure = Some(CheckFailure { reason, message: message.into() });
        Self { outcome: CheckOutcome::Unknown, failure, warnings: Vec::new() }
    }

    /// What a failure of loader or evaluator means for the author of the policy. Only a policy that must be edited is refused: a
    /// module may be pushed, and a pull secret created, right after the policy.
    pub fn of_failure(failure: &Failure) -> Self {
        match failure.reason.class() {
            crate::Class::Final => Self::refused(failure.reason, failure.message.clone()),
            crate::Class::Outside | crate::Class::Retry => Self::unknown(Some(failure.reason), failure.message.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::{BrokerMessage, decode_frame, encode_frame};

    #[test]
    fn only_what_an_edit_alone_can_mend_is_refused() {
        for (reason, outcome) in [
            (Reason::SettingsInvalid, CheckOutcome::Refused),
            (Reason::ModuleInvalid, CheckOutcome::Refused),
            (Reason::NotFound, CheckOutcome::Unknown),
            (Reason::RegistryUnreachable, CheckOutcome::Unknown),
        ] {
            let verdict = CheckVerdict::of_failure(&Failure::new(1, reason, "why", Timestamp::UNIX_EPOCH));
            assert_eq!(verdict.outcome, outcome, "{reason}");
            let failure = verdict.failure.expect("a failure");
            assert_eq!((failure.reason, failure.message.as_str()), (Some(reason), "why"));
        }
    }

    #[test]
    fn a_question_is_told_apart_from_a_call_and_an_export() {
        let check = BrokerCheck { number: 3, check: PolicyCheck { millis: 9000 } };
        let frame = encode_frame(&check, b"{}").expect("encodes");
        let (message, body) = decode_frame::<BrokerMessage>(&frame).expect("decodes");
        assert_eq!((message, &frame[body..]), (BrokerMessage::Check(check), &b"{}"[..]));
    }

    #[test]
    fn a_verdict_is_read_as_it_is_written() {
        for verdict in [
            CheckVerdict::passed(vec!["one".into()]),
            CheckVerdict::refused(Reason::SettingsInvalid, "no".into()),
            CheckVerdict::unknown(None, "late"),
        ] {
            let json = serde_json::to_string(&verdict).expect("encodes");
            assert_eq!(serde_json::from_str::<CheckVerdict>(&json).expect("decodes"), verdict, "{json}");
        }
    }
}
