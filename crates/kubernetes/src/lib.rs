//! What every program does alike that talks to an API server: its clients, the Lease of a leader, waiting after failures, and
//! the names under which it writes.
//!
//! Programs that have no API token never link this crate. It decides nothing about policies.
#![forbid(unsafe_code)]

mod access;
mod backoff;
mod lease;
mod names;

pub use access::{Access, AccessError, Clients};
pub use backoff::{Backoff, random};
pub use lease::{ClientLeases, Leadership, LeaseCalls, LeaseSettings, Seat, hold_lease};
pub use names::{
    CONTROLLER_MANAGER, CONTROLLER_REPORTING, MANAGED_BY_LABEL, REPORT_MANAGER, REPORTER_REPORTING, STATUS_MANAGER,
    siblings_name,
};
