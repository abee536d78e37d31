//! Small things that any crate may use: locks, pauses after failures, log lines that are written once, causes of
//! errors, untrusted texts made safe to show.
//!
//! It does not depend on policies, Kubernetes or programs, nor on any other crate, so that every crate can depend on it.
#![forbid(unsafe_code)]

mod backoff;
mod causes;
mod lock;
mod log_once;
mod text;

pub use backoff::Backoff;
pub use causes::{causes, root_cause};
pub use lock::lock;
pub use log_once::LogOnce;
pub use text::{clean, truncate};
