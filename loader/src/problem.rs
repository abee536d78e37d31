//! Why a policy's content cannot be used.

use portcullis_contract::Reason;
use serde::{Deserialize, Serialize};

/// Why a policy's content cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Problem {
    /// The reason.
    pub reason: Reason,
    /// The message for users. It never contains values of settings.
    pub message: String,
}

impl Problem {
    /// The message is cleaned and cut.
    pub(crate) fn new(reason: Reason, message: impl AsRef<str>) -> Self {
        let message = portcullis_contract::clean(message.as_ref(), portcullis_contract::Failure::MAX_MESSAGE);
        Self { reason, message }
    }

    /// The same problem with `path` before its message, which begins with a field below that path.
    pub(crate) fn below(self, path: &str) -> Self {
        Self::new(self.reason, format!("{path}{}", self.message))
    }
}
