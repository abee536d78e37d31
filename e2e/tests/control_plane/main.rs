//! Tests of the clusters that other tests use: a cluster is real, isolated from others, and completely removed afterwards.
//!
//! They start clusters, and the very first one builds Kubernetes, so they only run on request:
//! `cargo test -p portcullis-e2e -- --include-ignored`.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails like the test")]

mod apart;
mod commands;
mod left_behind;
mod pods;
mod webhook;

use std::sync::LazyLock;

use portcullis_e2e::{Cache, Cluster, Options, Running, skip};

/// The cluster of all tests that neither end one nor look at its start. It has one API server and ends with the process.
fn cluster() -> &'static Cluster {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(fresh);
    &CLUSTER
}

/// A cluster of the test's own, with one API server.
fn fresh() -> Cluster {
    Cluster::start(&Options::default()).unwrap()
}

/// The clusters of all tests.
fn all_running() -> Vec<Running> {
    Running::list(&Cache::from_env().unwrap()).unwrap()
}

/// Whether the addresses of the cluster are not those of the loopback device. If they are, the test is marked as skipped: other addresses
/// need root.
fn is_routed(cluster: &Cluster) -> bool {
    let routed = !cluster.api_servers()[0].ip().is_loopback();
    if !routed {
        skip("it takes addresses that are not the loopback's, and those take root");
    }
    routed
}
