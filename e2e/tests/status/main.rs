//! The status of policies on a real API server, with real reporters that have the rights of their pods, and with loaders and evaluators
//! whose states the test provides.
//!
//! Tests of a row of the fault catalogue (docs/design/faults.md) are named after it.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails like the test")]

mod access;
mod alone;
mod calls;
mod clocks;
mod crowd;
mod evaluator;
mod failing;
mod fences;
mod fleet;
mod full;
mod leader;
mod objects;
mod reinstalled;
mod replicas;
mod slow;
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
