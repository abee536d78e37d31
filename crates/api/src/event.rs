//! Events on policies (docs/design/status-api.md, section 5), in the form kept by the reporter of a folder.

use jiff::Timestamp;
use portcullis_contract::PolicyId;
use serde::{Deserialize, Serialize};

/// Something that happened to a policy. Notes hold reasons and counts, never what a guest said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyEvent {
    /// The policy.
    pub policy: PolicyId,
    /// `Normal` or `Warning`.
    pub r#type: EventType,
    /// What happened, in one word.
    pub reason: String,
    /// What happened, in words; 1 KiB at most.
    pub note: String,
    /// How often.
    pub count: u32,
    /// When first.
    pub first_time: Timestamp,
    /// When last.
    pub last_time: Timestamp,
}

/// Whether somebody should look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EventType {
    /// All goes its way.
    Normal,
    /// Somebody should look.
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
