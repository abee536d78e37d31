//! Sharing what is scarce among those who ask for it.

pub(crate) mod claimant;
pub(crate) mod policies;
pub(crate) mod pool;
pub(crate) mod sources;
