//! How a policy answers: when it denies, and when it cannot be evaluated.

use serde::{Deserialize, Serialize};

/// What a denial does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Rejects.
    #[default]
    Protect,
    /// Admits, with the denial as a warning.
    Warn,
    /// Admits, and only logs.
    Monitor,
}

impl Mode {
    /// The name in specs and columns.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Protect => "protect",
            Self::Warn => "warn",
            Self::Monitor => "monitor",
        }
    }
}

/// What a policy without a usable generation answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum FailurePolicy {
    /// Rejects.
    #[default]
    Fail,
    /// Admits with a warning.
    Ignore,
}
