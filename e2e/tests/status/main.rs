//! Status that is true, on a real API server: real reporters with the rights of their pods, and loaders and evaluators whose states the
//! test provides.
//!
//! Names tell which row of the fault catalogue (docs/design/faults.md) a test is for.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails like the test")]

mod access;
mod alone;
mod calls;
mod clocks;
mod crowd;
mod failing;
mod fences;
mod fleet;
mod full;
mod leader;
mod objects;
mod replicas;
mod stage;
mod states;
mod storm;

use std::sync::LazyLock;

use portcullis_e2e::{Cluster, Options};

/// The cluster of most tests of this binary.
fn cluster() -> &'static Cluster {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(&Options::default()).unwrap());
    &CLUSTER
}
