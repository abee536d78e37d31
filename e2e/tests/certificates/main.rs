//! The certificates of an installation: made, rotated while requests go on, and taken from others; and the proof that each API
//! server calls its webhooks.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails like the test")]

mod external;
mod load;
mod making;
mod paths;
mod repair;
mod rotation;
mod secrets;
mod siblings;
mod two_api_servers;

use std::sync::LazyLock;
use std::time::Duration;

use portcullis_e2e::{Cluster, Installation, InstallationOptions, Options, PodSetup, Policy, Program};
use serde_json::Value;

/// Longest wait for a rotation, whose pauses are the test's own.
const ROTATION: Duration = Duration::from_secs(240);

/// The cluster of all tests of this binary but those that want two API servers.
fn cluster() -> &'static Cluster {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(&Options::default()).unwrap());
    &CLUSTER
}

/// A controller whose pauses are seconds. Within each, API servers and pods must have taken over what changed, also on a machine that
/// stalls, and a test must have seen it.
fn hurried() -> PodSetup {
    let flags = [("--ca-pause", "15s"), ("--tls-pause", "15s")];
    flags.into_iter().fold(PodSetup::default(), |setup, (flag, value)| setup.flag(Program::Controller, flag, value))
}

/// An installation with such a controller and so many replicas, all ready.
fn installation<'c>(cluster: &'c Cluster, name: &str, replicas: usize, controller: PodSetup) -> Installation<'c> {
    let installation = Installation::start(cluster, InstallationOptions::named(name));
    installation.start_controller_with(controller);
    for _ in 0..replicas {
        installation.add_replica();
    }
    installation.wait_ready();
    installation
}

/// A policy that denies every ConfigMap in the namespaces of an installation, and what it says.
fn denying(installation: &Installation<'_>) -> (Policy, String) {
    let text = format!("not in {}", installation.namespace());
    let name = format!("{}-deny", installation.namespace());
    (installation.cluster_policy(&name).on(&["configmaps"]).denying(&text), text)
}

/// An installation with a policy that denies, in force.
struct Serving<'c> {
    installation: Installation<'c>,
    /// A namespace in which the policy denies ConfigMaps.
    namespace: String,
    policy: Policy,
    /// What the policy says.
    text: String,
}

/// [`installation`], with such a policy.
fn serving<'c>(cluster: &'c Cluster, name: &str, replicas: usize, controller: PodSetup) -> Serving<'c> {
    let installation = installation(cluster, name, replicas, controller);
    let namespace = installation.make_namespace("shop");
    let (policy, text) = denying(&installation);
    installation.apply_ready(std::slice::from_ref(&policy));
    Serving { installation, namespace, policy, text }
}

/// The events on a Secret with this reason.
fn events(installation: &Installation<'_>, secret: &str, reason: &str) -> Vec<Value> {
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", installation.namespace());
    let all = installation.api().list(&path).into_iter();
    all.filter(|event| event["regarding"]["name"] == secret && event["reason"] == reason).collect()
}
