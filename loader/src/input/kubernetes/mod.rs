//! Policies of a cluster: a watch of the revisions that the controller writes (docs/design/overview.md, sections 3 and 4).
//!
//! ```text
//!  API server ──► watch ──► store (one revision each, read once) ──► snapshot ──► plan
//! ```
//!
//! `revision` and `snapshot` decide and are pure; `watch` talks to the API server and keeps trying while it is unreachable.

mod object;
mod revision;
mod snapshot;
mod store;
mod watch;

use portcullis_kubernetes::Access;

pub(crate) use self::watch::watch_revisions;

/// The installation whose revisions are watched.
#[derive(Debug, Clone)]
pub struct Installation {
    /// The namespace that the installation is in, and its revisions with it.
    pub namespace: String,
    /// The `policyServer` of its policies.
    pub policy_server: String,
    /// Longest watch, in seconds.
    pub watch_seconds: u32,
    /// How the API server is reached.
    pub access: Access,
}
