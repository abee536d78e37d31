//! The loader watches revisions on a real API server, and the pods serve them.
//!
//! The tests write the revisions in place of the controller, so that they can create every state.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails like the test")]

mod faults;
mod pinned;
mod serving;
mod watch;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use portcullis_e2e::{
    Cluster, Installation, InstallationOptions, Options, Pod, PodSetup, Program, eventually_within, guest, guest_with,
};
use serde_json::{Value, json};

/// The longest wait for anything that the loader's watch does only after a backoff, which takes at most 30 s, or 60 s with jitter.
pub(crate) const AFTER_BACKOFF: Duration = Duration::from_secs(180);

/// The cluster of all tests of this binary.
fn cluster() -> &'static Cluster {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(&Options::default()).unwrap());
    &CLUSTER
}

/// An installation without a controller, in which the test writes the revisions.
fn installation(name: &str) -> Installation<'static> {
    let installation = Installation::start(cluster(), InstallationOptions::named(name).certified_by_the_test());
    installation.without_canary("without a controller there are no webhooks, so no API server calls the evaluators");
    installation
}

/// Adds a replica without a reporter, because the tests do not read statuses.
fn replica(installation: &Installation<'_>) -> Arc<Pod> {
    replica_with(installation, PodSetup::default())
}

fn replica_with(installation: &Installation<'_>, setup: PodSetup) -> Arc<Pod> {
    installation.add_replica_with(setup.without(Program::Reporter))
}

/// The digest of a module, in the form of statuses and annotations.
fn digest(module: &[u8]) -> String {
    portcullis_contract::Digest::of(module).to_string()
}

/// A cluster policy of an installation, which consists only of revisions.
struct Policy<'i> {
    installation: &'i Installation<'i>,
    name: &'static str,
}

impl<'i> Policy<'i> {
    fn of(installation: &'i Installation<'i>, name: &'static str) -> Self {
        Self { installation, name }
    }

    fn id(&self) -> String {
        format!("cluster/{}", self.name)
    }

    /// Puts a module at a path of the source, and returns its address.
    fn module(&self, path: &str, module: &[u8]) -> String {
        self.installation.source().put(path, module);
        self.installation.source().url(path)
    }

    fn path(&self) -> String {
        format!("/apis/apps/v1/namespaces/{}/controllerrevisions", self.installation.namespace())
    }

    fn revision_name(&self, generation: i64) -> String {
        format!("{}-0123456789abcdef-{generation}", self.name)
    }

    /// Creates the revision of a generation, with a module at this address and more fields in its spec.
    fn revise(&self, generation: i64, module: &str, extra: &Value, annotations: &[(&str, &str)]) {
        let server = self.installation.policy_server();
        let mut spec = json!({
            "policyServer": server, "module": module, "settings": {},
            // The limits are long because debug builds share the machine. The second also limits the start of a module.
            "timeoutSeconds": 30, "timeoutEvalSeconds": 9,
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"] }],
        });
        for (key, value) in extra.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        let uid = format!("{server}-{}", self.name);
        let of = |key: &str| format!("policies.portcullis.dev/{key}");
        let revision = json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": generation,
            "metadata": {
                "name": self.revision_name(generation),
                "labels": {
                    of("policy-server"): server, of("policy-uid"): uid,
                    of("policy-kind"): "ClusterPolicy", of("policy-name"): self.name,
                },
                "annotations": marks(annotations),
            },
            "data": {
                "policy": { "kind": "ClusterPolicy", "name": self.name, "uid": uid },
                "generation": generation, "spec": spec,
            },
        });
        self.installation.api().create(&self.path(), &revision).unwrap().expect("a revision");
    }

    /// Sets annotations of a revision.
    fn mark(&self, generation: i64, annotations: &[(&str, &str)]) {
        let patch = json!({ "metadata": { "annotations": marks(annotations) } });
        let path = format!("{}/{}", self.path(), self.revision_name(generation));
        self.installation.api().patch(&path, &patch).unwrap().expect("a mark");
    }

    /// The policy in the state of a pod's loader; null if it does not know the policy.
    fn loading(&self, pod: &Pod) -> Value {
        let state = state(pod, 9082);
        let mut policies = state["policies"].as_array().into_iter().flatten();
        policies.find(|policy| policy["id"] == self.id()).cloned().unwrap_or_default()
    }

    /// The generation and digest that the evaluator of a pod serves; generation 0 if it serves none, and `None` if it does not know the policy.
    fn serving(&self, pod: &Pod) -> Option<(i64, String)> {
        let state = state(pod, 9081);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if let Some(current) = state["current"].get(self.id()) {
            return Some((current["generation"].as_i64()?, text(&current["digest"])));
        }
        let deviation = state["deviations"].as_array()?.iter().find(|deviation| deviation["id"] == self.id())?;
        Some((deviation["serving"].as_i64()?, text(&deviation["digest"])))
    }

    /// Waits until a pod serves this generation, and returns the digest of its module.
    fn wait_serving(&self, pod: &Pod, generation: i64) -> String {
        let what = format!("generation {generation} of {} to serve", self.id());
        eventually_within(AFTER_BACKOFF, &what, || self.serving(pod).filter(|(serving, _)| *serving == generation)).1
    }

    /// Waits until the loader of a pod reports a failure with this reason, and returns its message.
    fn wait_failure(&self, pod: &Pod, reason: &str) -> String {
        let what = format!("{} to fail with {reason}", self.id());
        eventually_within(AFTER_BACKOFF, &what, || {
            let failure = &self.loading(pod)["failure"];
            (failure["reason"] == reason).then(|| failure["message"].as_str().unwrap_or_default().to_owned())
        })
    }
}

fn marks(annotations: &[(&str, &str)]) -> BTreeMap<String, String> {
    let mark = |(key, value): &(&str, &str)| (format!("policies.portcullis.dev/{key}"), (*value).to_owned());
    annotations.iter().map(mark).collect()
}

/// Two modules that accept, with different bytes.
fn two_modules() -> (Vec<u8>, Vec<u8>) {
    (guest("always_accept"), guest_with("answer", br#"{"accepted":true}"#))
}

/// The `/v1/state` of a program of a pod, at this port on the pod's own loopback. Tries until it answers.
fn state(pod: &Pod, port: u16) -> Value {
    eventually_within(AFTER_BACKOFF, "a state", || ask_state(pod, port))
}

fn ask_state(pod: &Pod, port: u16) -> Option<Value> {
    let [_, a, b, c] = pod.address().octets();
    let mut stream =
        TcpStream::connect_timeout(&SocketAddr::from(([127, a, b, c], port)), Duration::from_secs(5)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    stream.write_all(b"GET /v1/state HTTP/1.1\r\nhost: pod\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    assert!(!head.to_ascii_lowercase().contains("chunked"), "{head}");
    serde_json::from_str(body).ok()
}
