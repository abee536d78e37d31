//! What all programs of a pod do in the same way: settings, logs, probes, latches, state, shutdown, files and
//! confinement.
//!
//! A program's `main` calls [`run`], which ends with exit status 64 for a bad setting and 1 for any other error, each with
//! a sentence on standard error. Its probes run on a thread and a runtime of their own ([`ProbeServer`]), so that they
//! answer when everything else hangs.
#![forbid(unsafe_code)]

mod confine;
mod connections;
mod crypto;
mod descriptors;
pub mod eviction;
mod exit;
pub mod failpoint;
mod feed;
pub mod files;
#[cfg(feature = "client")]
mod follow;
mod keyed_permits;
mod latch;
mod listen;
mod live;
mod log;
#[cfg(feature = "client")]
mod loopback;
mod metrics;
mod newest;
mod now;
#[cfg(feature = "client")]
mod poster;
mod probe;
mod shutdown;
mod standard_error;
mod supervise;
pub mod telemetry;

pub use confine::{Confinement, ConfinementReport};
pub use crypto::install_crypto;
pub use descriptors::raise_descriptors;
pub use exit::{
    EXIT_WITH_PARENT, ParseError, PolicyChecks, SettingError, Switch, format_bytes, parse_args, parse_bytes,
    parse_duration, run,
};
pub use feed::{StateFeed, state_route};
#[cfg(feature = "client")]
pub use follow::{FollowError, Follower};
pub use keyed_permits::KeyedPermits;
pub use latch::{Latch, Readiness};
pub use listen::listen;
pub use live::{Beat, Liveness};
pub use log::{LogArgs, LogFormat};
pub use metrics::{counter, counters, gauge, gauges, registered};
pub use newest::set_if_new;
pub use now::Now;
#[cfg(feature = "client")]
pub use poster::{Answer, PostError, Poster};
pub use probe::{ProbeServer, ProbeSources};
pub use shutdown::Shutdown;
pub use standard_error::{GUEST_LOG, write_log_in_background};
pub use supervise::supervised;

/// The product's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
