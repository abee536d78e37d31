//! What of a guest's host calls failed.

/// How host calls of one guest failed.
#[derive(Debug, Default)]
pub(super) struct FailedCalls {
    /// Whether a right was missing.
    pub(super) denied: bool,
    /// The last capability that could not be provided, and why.
    pub(super) failed: Option<String>,
}
