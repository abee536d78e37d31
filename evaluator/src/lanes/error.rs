//! How an evaluation ends without a result of its own.

use portcullis_contract::Reason;

use crate::verdict::EvaluationError;

/// An evaluation that did not end with a result of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Too much of the same policy is under way, or too much of everything.
    Overloaded {
        /// What is full, and its bound.
        text: String,
    },
    /// The deadline passed while it ran.
    TimedOut,
    /// The evaluation panicked: a mistake of this program.
    Panicked,
}

/// What docs/design/policy-abi.md, section 11, fixes for an evaluation beyond its time limit.
pub(crate) const TIMED_OUT: &str = "Policy execution interrupted because it exceeded the allowed execution time";

impl From<Refusal> for EvaluationError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Overloaded { text } => Self::new(Reason::Overloaded, text),
            Refusal::TimedOut => Self::new(Reason::EvaluationTimedOut, TIMED_OUT),
            Refusal::Panicked => {
                Self::new(Reason::InternalError, "internal server error: the evaluation ended with a panic")
            }
        }
    }
}
