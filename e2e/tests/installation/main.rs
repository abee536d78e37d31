//! What cluster tests rely on: an installation has the rights of its pods and no others, and the test is a faithful kubelet.
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
