//! The Lease of a leader (status-api section 2.3).
//!
//! The age of somebody else's Lease is judged by the local monotonic time at which its last change was seen, never by comparing
//! clocks. A leader counts itself out before others may count it out.

mod decide;
mod hold;

pub use decide::LeaseSettings;
pub use hold::{Leadership, hold_lease};
