//! One failure, as status, events, logs and metrics report it.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Class, Reason, Stage};

/// A failure of one generation of one policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// The generation that failed; 0 if none is known.
    pub generation: i64,
    /// The reason, in one word.
    pub reason: Reason,
    /// What failed, the cause, and what helps, for people to read. At most 1 KiB, safe to show.
    pub message: String,
    /// How often it was tried.
    pub attempts: u32,
    /// When it is tried again; absent if it is not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next_retry_time: Option<Timestamp>,
    /// When it began to fail.
    pub since: Timestamp,
}

impl Failure {
    /// The longest `message`, in bytes.
    pub const MAX_MESSAGE: usize = 1024;

    /// A first failure of `generation`. The message is cleaned and cut.
    pub fn new(generation: i64, reason: Reason, message: impl AsRef<str>, since: Timestamp) -> Self {
        Self {
            generation,
            reason,
            message: crate::clean(message.as_ref(), Self::MAX_MESSAGE),
            attempts: 1,
            next_retry_time: None,
            since,
        }
    }

    /// The same failure, as that of a member of a policy group.
    #[must_use]
    pub fn of_member(self, name: &str) -> Self {
        Self { message: crate::clean(&format!("member `{name}`: {}", self.message), Self::MAX_MESSAGE), ..self }
    }

    /// The stage at which it happened.
    pub fn stage(&self) -> Stage {
        self.reason.stage()
    }

    /// Whether retrying can help.
    pub fn class(&self) -> Class {
        self.reason.class()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.message)
    }
}
