//! What tests of installed products rely on: a cluster with a node runs pods as any other does, and all of it is gone afterwards.
//!
//! Each cluster takes root, containerd, runc, plugins of pod networks and nftables, so these tests run when they are asked for:
//! `cargo xtask test --filter "cluster: tests node"`.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails like the test")]

mod ends;
mod pods;
mod restarts;
mod scene;

use portcullis_e2e::{Cluster, Options};

/// A cluster with a node.
fn cluster() -> Cluster {
    Cluster::start(&Options { node: true, ..Options::default() }).unwrap()
}
