//! Tests of the installations that cluster tests use: programs have only the rights of their pods, and the test acts like a kubelet.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails like the test")]

mod components;
mod pods;
mod proxy;

use std::sync::LazyLock;

use portcullis_e2e::{Cluster, Options};

/// The cluster of all tests of this binary.
fn cluster() -> &'static Cluster {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(&Options::default()).unwrap());
    &CLUSTER
}
