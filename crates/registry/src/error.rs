//! Why something was not brought.

use std::time::Duration;

use portcullis_contract::Reason;

/// Why something was not brought.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct FetchError {
    /// In one word.
    pub reason: Reason,
    /// In words; never with credentials.
    pub message: String,
    /// The source asked not to be asked again before this has passed.
    pub retry_after: Option<Duration>,
}

impl FetchError {
    /// The message is cleaned and cut.
    pub fn new(reason: Reason, message: impl AsRef<str>) -> Self {
        let message = portcullis_contract::clean(message.as_ref(), portcullis_contract::Failure::MAX_MESSAGE);
        Self { reason, message, retry_after: None }
    }
}
