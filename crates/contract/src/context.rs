//! Objects of the cluster that a policy reads but that the broker does not have, or has only in an old version.

use serde::{Deserialize, Serialize};

use crate::clean;

/// Why objects that a policy reads are missing or old. It is API like a [`crate::Reason`]: once released it is not renamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ContextReason {
    /// The API server refuses to list or to watch them.
    ContextForbidden,
    /// The API server has no such kind.
    ContextKindUnknown,
    /// They take more memory than the broker gives them.
    ContextTooLarge,
    /// Not all of them have come yet, or there is no API server, or it does not answer.
    ContextNotSynced,
    /// All of them came, and then the watch failed for so long that they may be old.
    ContextStale,
}

impl ContextReason {
    /// Every reason, the worst first.
    pub const ALL: &[Self] = &[
        Self::ContextForbidden,
        Self::ContextKindUnknown,
        Self::ContextTooLarge,
        Self::ContextNotSynced,
        Self::ContextStale,
    ];

    /// The reason in one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ContextForbidden => "ContextForbidden",
            Self::ContextKindUnknown => "ContextKindUnknown",
            Self::ContextTooLarge => "ContextTooLarge",
            Self::ContextNotSynced => "ContextNotSynced",
            Self::ContextStale => "ContextStale",
        }
    }

    /// Whether the policy cannot judge because not all of these objects are here. Old objects are not missing.
    pub fn is_missing(self) -> bool {
        self != Self::ContextStale
    }

    /// Whether waiting does not help, because a user must change something.
    pub fn needs_a_change(self) -> bool {
        matches!(self, Self::ContextForbidden | Self::ContextKindUnknown | Self::ContextTooLarge)
    }
}

/// What is wrong with the objects of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContextProblem {
    /// Why they are missing or old.
    pub reason: ContextReason,
    /// The kind, the cause and what to do, for people to read; at most 400 bytes, safe to show.
    pub message: String,
}

impl ContextProblem {
    /// The longest `message`, in bytes.
    pub const MAX_MESSAGE: usize = 400;

    /// A problem. The message is cleaned and cut.
    pub fn new(reason: ContextReason, message: impl AsRef<str>) -> Self {
        Self { reason, message: clean(message.as_ref(), Self::MAX_MESSAGE) }
    }
}
