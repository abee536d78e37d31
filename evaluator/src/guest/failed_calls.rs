//! Which of a guest's host calls failed.

/// The failed host calls of one guest.
#[derive(Debug, Default)]
pub(super) struct FailedCalls {
    /// Whether a grant was missing.
    pub(super) denied: bool,
    /// The last capability that could not be provided, and why.
    pub(super) failed: Option<String>,
}
