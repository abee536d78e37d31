//! The certificates of an installation: created, rotated under load, or provided from outside; and the proof that each API server calls
//! the installation's webhooks.
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
mod terms;
mod two_api_servers;

use std::sync::LazyLock;
use std::time::Duration;

use portcullis_e2e::{Cluster, Installation, InstallationOptions, Options, PodSetup, Policy, Program};
use serde_json::Value;

/// The longest wait for a rotation with the pauses of [`hurried`].
const ROTATION: Duration = Duration::from_secs(240);

/// The cluster of all tests of this binary except those that need two API servers.
fn cluster() -> &'static Cluster {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(&Options::default()).unwrap());
    &CLUSTER
}

/// A controller with short pauses. They are long enough for API servers and pods to take over a change and for the test to see it, even if
/// the machine stands still for a while.
fn hurried() -> PodSetup {
    let flags = [("--ca-pause", "15s"), ("--tls-pause", "15s")];
    flags.into_iter().fold(PodSetup::default(), |setup, (flag, value)| setup.flag(Program::Controller, flag, value))
}

/// An installation with this controller and this many replicas, all ready.
fn installation<'c>(cluster: &'c Cluster, name: &str, replicas: usize, controller: PodSetup) -> Installation<'c> {
    let installation = Installation::start(cluster, InstallationOptions::named(name));
    installation.start_controller_with(controller);
    for _ in 0..replicas {
        installation.add_replica();
    }
    installation.wait_ready();
    installation
}

/// A policy that denies every ConfigMap in the namespaces of an installation, and the message of its denials.
fn denying(installation: &Installation<'_>) -> (Policy, String) {
    let text = format!("not in {}", installation.namespace());
    let name = format!("{}-deny", installation.namespace());
    (installation.cluster_policy(&name).on(&["configmaps"]).denying(&text), text)
}

/// An installation with an enforced policy that denies.
struct Serving<'c> {
    installation: Installation<'c>,
    /// A namespace in which the policy denies ConfigMaps.
    namespace: String,
    policy: Policy,
    /// The message of the policy's denials.
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
