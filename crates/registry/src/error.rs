//! Why a fetch failed.

use std::time::Duration;

use portcullis_contract::Reason;

/// Why a fetch failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct FetchError {
    /// The reason.
    pub reason: Reason,
    /// The message for users; never with credentials.
    pub message: String,
    /// The shortest wait until another attempt: what the source asked for. After a final failure, `Some` says that another attempt may help
    /// all the same.
    pub retry_after: Option<Duration>,
}

impl FetchError {
    /// An error. The message is cleaned and cut.
    pub fn new(reason: Reason, message: impl AsRef<str>) -> Self {
        let message = portcullis_contract::clean(message.as_ref(), portcullis_contract::Failure::MAX_MESSAGE);
        Self { reason, message, retry_after: None }
    }
}
