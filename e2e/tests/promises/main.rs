//! Tests of what users see in the output of kubectl, with the real programs behind a real API server.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails like the test")]

mod audit;
mod audit_drift;
mod audit_faults;
mod away;
mod capabilities;
mod check_advice;
mod check_impact;
mod check_shares;
mod checks;
mod decoding;
mod definitions_away;
mod edits;
mod first_apply;
mod fleet;
mod groups;
mod hostile;
mod large_lists;
mod lifecycle;
mod load;
mod metrics;
mod modes;
mod nested_objects;
mod policy_groups;
mod reads;
mod reads_token;
mod requests;
mod secrets;
mod source_back;
mod sources;
mod status_faults;
mod switching_off;

use std::sync::LazyLock;

use portcullis_e2e::{Cluster, Installation, InstallationOptions, Options, Output, eventually};

/// An installation with a controller and this many replicas, in the cluster that the tests of this binary share.
fn installation(name: &str, replicas: usize) -> Installation<'static> {
    Installation::start(cluster(), InstallationOptions::named(name)).with(replicas)
}

/// The same with checks of applied policies in this mode.
fn installation_with(name: &str, replicas: usize, policy_checks: &str) -> Installation<'static> {
    let options = InstallationOptions::named(name).checking_policies(policy_checks);
    Installation::start(cluster(), options).with(replicas)
}

fn cluster() -> &'static Cluster {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(&Options::default()).unwrap());
    &CLUSTER
}

/// Asserts that a request was denied, and that kubectl shows this text.
fn assert_denied(output: &Output, text: &str) {
    assert!(!output.is_ok() && output.stderr.contains("denied the request: "), "{output:?}");
    assert!(output.stderr.contains(text), "{output:?}");
}

/// The name of the pod whose reporter leads.
fn leading_pod(installation: &Installation<'_>) -> String {
    eventually("a reporter that leads", || installation.lease_holder("reporter"))
}

/// Creates a pod in a dry run. Returns the status and the message of the API server.
fn try_pod(installation: &Installation<'_>, namespace: &str) -> (u16, String) {
    installation.try_pod(namespace)
}
