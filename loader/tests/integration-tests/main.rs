//! The real loader on folders of its own.
