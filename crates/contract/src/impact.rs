//! What a policy would do to the existing objects, as counted by a check when a user applied the policy.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The figures of the last check of a policy's spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImpactFigures {
    /// When the objects were counted.
    pub checked_at: Timestamp,
    /// How many objects the policy was asked about.
    pub evaluated: u64,
    /// About how many objects the policy would be asked about; absent if that is not known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub total: Option<u64>,
    /// How many of the evaluated objects it would deny.
    pub denied: u64,
    /// How many of them it would change.
    pub changed: u64,
    /// How many of them it could not evaluate.
    pub failed: u64,
    /// How many namespaces have objects that it would deny.
    pub namespaces: u64,
    /// Some of the objects that it would deny, for instance `team-a/web-1`: [`ImpactFigures::MAX_EXAMPLES`] at most, cleaned and cut to
    /// [`ImpactFigures::MAX_EXAMPLE`] bytes each.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub examples: Vec<String>,
    /// Whether some objects of these kinds were not read, because there are too many.
    pub sample: bool,
    /// Whether there was time for all kinds, each of them could be listed, and match conditions could be decided for each object.
    pub complete: bool,
}

impl ImpactFigures {
    /// The largest number of entries of `examples`.
    pub const MAX_EXAMPLES: usize = 5;
    /// The longest entry of `examples`, in bytes: a namespace and a name fit.
    pub const MAX_EXAMPLE: usize = 320;
}
