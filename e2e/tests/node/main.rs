//! Tests of the clusters with a node that tests of installations use: they run pods like any cluster, and are completely removed afterwards.
//!
//! Each cluster needs root, containerd, runc, plugins of pod networks and nftables, so these tests only run on request:
//! `cargo xtask test --filter "cluster: tests node"`.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails like the test")]

mod ends;
mod pods;
mod restarts;
mod scene;
