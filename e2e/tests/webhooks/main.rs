//! The controller against a real API server: which webhooks there are, what happens when something else changes them, and that no request falls
//! between two of them. Tests are named after rows of the fault catalogue (docs/design/faults.md).
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails like the test")]

mod changed;
mod deleted;
mod failure_policy;
mod fences;
mod first;
mod generated;
mod locked_out;
mod many;
mod mutating;
mod newcomers;
mod quota;
mod repaired;
mod resolved;
mod restarted;
mod scene;
mod shared;
mod token;
mod turns;
mod unreadable;

use std::sync::LazyLock;

use portcullis_e2e::{Cluster, Options};

/// The cluster of all tests of this binary.
fn cluster() -> &'static Cluster {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(&Options::default()).unwrap());
    &CLUSTER
}
