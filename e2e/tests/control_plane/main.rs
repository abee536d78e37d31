//! What other tests rely on: a cluster is real, its own, and gone afterwards.
//!
//! Each test starts clusters, and the first one ever builds Kubernetes, so they run when they are asked for:
//! `cargo test -p portcullis-e2e -- --include-ignored`.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails like the test")]

mod apart;
mod commands;
mod left_behind;
mod pods;
mod webhook;

use portcullis_e2e::{Cluster, Options, skip};

/// A cluster with one API server.
fn cluster() -> Cluster {
    Cluster::start(&Options::default()).unwrap()
}

/// Whether its addresses are not the loopback's; tests that need such addresses take root.
fn is_routed(cluster: &Cluster) -> bool {
    let routed = !cluster.api_servers()[0].ip().is_loopback();
    if !routed {
        skip("it takes addresses that are not the loopback's, and those take root");
    }
    routed
}
