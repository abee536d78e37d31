//! What the programs that talk to an API server share: a client with limits of time and size, watches, pauses after failures, the
//! Lease of a leader, discovery of resources, and the names under which they write.
//!
//! Programs without an API token do not link this crate. It decides nothing about policies.
#![forbid(unsafe_code)]

mod access;
mod backoff;
mod client;
mod discovery;
mod error;
mod failures;
mod lease;
mod names;
mod object_text;
mod proxy;
mod selection;
mod watch;

pub use access::{Access, AccessError};
pub use backoff::Retry;
pub use client::{AnswerLimits, ApiServer};
pub use discovery::{Discovery, discover};
pub use error::{CallError, asked_wait, root_cause};
pub use failures::Failures;
pub use lease::{Leadership, LeadershipSender, LeaseSettings, OfTerm, hold_lease};
pub use names::{
    AUDIT_MANAGER, CONTROLLER_MANAGER, CONTROLLER_REPORTING, MANAGED_BY_LABEL, REPORT_MANAGER, REPORTER_REPORTING,
    STATUS_MANAGER, is_namespace_name, is_object_name, is_path_segment, siblings_name,
};
pub use object_text::ObjectText;
pub use proxy::{ProxyError, set_proxy};
pub use selection::Selection;
pub use watch::watch;
