//! Events on policies (docs/design/status-api.md, section 5), as the reporter of a folder keeps them.

use jiff::Timestamp;
use portcullis_contract::PolicyId;
use serde::{Deserialize, Serialize};

/// An event on a policy. Notes contain reasons and counts, never text of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyEvent {
    /// The policy that the event is about.
    pub policy: PolicyId,
    /// `Normal` or `Warning`.
    pub r#type: EventType,
    /// What happened, in one word.
    pub reason: String,
    /// What happened, for people to read; at most 1 KiB.
    pub note: String,
    /// How often it happened.
    pub count: u32,
    /// When it first happened.
    pub first_time: Timestamp,
    /// When it last happened.
    pub last_time: Timestamp,
}

/// How serious an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EventType {
    /// Everything works as intended.
    Normal,
    /// Something needs attention.
    Warning,
}

impl EventType {
    /// The name in a list of events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}
