//! How an evaluation ends without a result of its own.

use portcullis_contract::Reason;

use crate::verdict::EvaluationError;

/// Why an evaluation ended without a result of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaneError {
    /// Too many evaluations of the same policy are under way, or too many of all.
    Overloaded {
        /// What is exhausted, and its limit.
        text: String,
    },
    /// The deadline passed while it ran.
    TimedOut,
    /// The evaluation panicked, which is a bug of this program.
    Panicked,
}

impl From<LaneError> for EvaluationError {
    fn from(error: LaneError) -> Self {
        match error {
            LaneError::Overloaded { text } => Self::new(Reason::Overloaded, text),
            LaneError::TimedOut => Self::timed_out(),
            LaneError::Panicked => {
                Self::new(Reason::InternalError, "internal server error: the evaluation ended with a panic")
            }
        }
    }
}
