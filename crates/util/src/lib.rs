//! Small things that any crate may use: locks, pauses after failures, log lines that are written once, causes of
//! errors.
//!
//! It does not depend on policies, Kubernetes or programs, so that every other crate can depend on it.
#![forbid(unsafe_code)]

mod backoff;
mod causes;
mod log_once;
mod shared;

pub use backoff::Backoff;
pub use causes::{causes, root_cause};
pub use log_once::LogOnce;
pub use shared::{lock, set_if_new};
