//! What code that has broken out of its instance can do in the evaluator of an installed pod.

use std::collections::BTreeMap;

use portcullis_e2e::{Container, Release, eventually};
use serde_json::{Value, json};

use crate::stage::{Stage, own_cluster};

/// The name of the pod in which it is tried.
const POD: &str = "probed";

/// The outcome of a system call that the evaluator's filter refuses.
const NO_CALL: &str = "refused: Operation not permitted (os error 1)";
/// The outcome of an access to a file that Landlock refuses.
const NO_FILE: &str = "refused: Permission denied (os error 13)";

/// One more pod with the spec of the Deployment's pods and a variable for the evaluator. It is deleted when this is dropped.
struct Probed(&'static Release<'static>);

impl Probed {
    fn start(release: &'static Release<'static>, name: &str, value: &str) -> Self {
        let namespace = release.namespace();
        let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments/portcullis-policy-server");
        let mut spec = release.api().get(&path).unwrap()["spec"]["template"]["spec"].clone();
        let containers = spec["containers"].as_array_mut().unwrap();
        let evaluator = containers.iter_mut().find(|container| container["name"] == "evaluator").unwrap();
        evaluator["env"] = json!([{ "name": name, "value": value }]);
        // Without the labels of the Deployment's pods, it does not count as one of them.
        let metadata = json!({ "name": POD, "namespace": namespace });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
        release.site().kubectl_with(["create", "--filename=-"], &pod.to_string()).expect("one more pod");
        Self(release)
    }
}

impl Drop for Probed {
    fn drop(&mut self) {
        let path = format!("/api/v1/namespaces/{}/pods/{POD}", self.0.namespace());
        // If this fails, the pod ends with the namespace.
        let _ = self.0.api().delete(&path, Some(0));
    }
}

/// The outcome of each attempt, from the evaluator's log; `None` before the last one.
fn attempts(release: &Release<'_>) -> Option<BTreeMap<String, String>> {
    let log = release.kubectl(["logs", POD, "--container=evaluator"]);
    let lines: Vec<Value> = log.stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let probes = lines.iter().filter(|line| line["message"] == "probe");
    let found: BTreeMap<_, _> = probes.map(|line| (text(&line["attempt"]), text(&line["outcome"]))).collect();
    found.contains_key("environment").then_some(found)
}

#[test]
#[ignore = "starts a cluster"]
fn fault_x01_x10_z19_code_in_the_evaluator_of_an_installed_pod_reaches_nothing() {
    let stage = Stage::new("confined");
    if own_cluster("fault_x10").is_none() {
        // An existing cluster has the images of users, which do not contain the attempts.
        return;
    }
    let release = stage.release();
    let canary = release.own_canary();
    let _probed = Probed::start(release, "PORTCULLIS_FAILPOINTS", "evaluator.probe_inside=error");
    let attempts = eventually("the end of the attempts", || attempts(release));
    canary.end();

    let mounts = ["mount", "open a file system", "connect while sending"];
    let others =
        ["connect", "connect to the API server", "listen", "datagram", "exec", "exec itself", "handle of a process"];
    for call in others.into_iter().chain(mounts) {
        assert_eq!(attempts[call], NO_CALL, "{call}: {attempts:#?}");
    }
    // The container would allow writing to the first two, and reading the others.
    let files =
        ["write beside the private copies", "write to shared memory", "read", "look around", "look for processes"];
    for file in files {
        assert_eq!(attempts[file], NO_FILE, "{file}: {attempts:#?}");
    }
    for absent in ["write", "write to the volume", "token"] {
        assert!(attempts[absent].starts_with("refused: "), "{absent}: {attempts:#?}");
    }
    assert_eq!(attempts["environment"], "nothing", "no credential in the environment");
    assert_eq!(attempts["write a private copy"], "written", "what it needs it may do");
}

#[test]
#[ignore = "starts a cluster"]
fn every_evaluator_of_the_installation_says_that_it_is_shut_in_and_the_kernel_has_its_filter() {
    let stage = Stage::new("shut-in");
    if own_cluster("shut-in").is_none() {
        return;
    }
    let release = stage.release();
    for pod in release.pods() {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let metrics = release.metrics(&pod, 8081).expect("the metrics of an evaluator");
        for metric in ["portcullis_landlock_enforced 1", "portcullis_seccomp_enforced 1"] {
            assert!(metrics.lines().any(|line| line == metric), "{name}: no {metric}");
        }
        // All containers have the filter of the container runtime. The evaluator has two of its own: the list, and one for `clone3`.
        let filters = |container| Container::of(&pod, container).unwrap().status("Seccomp_filters");
        assert_eq!([filters("evaluator"), filters("loader"), filters("reporter")], ["3", "1", "1"], "{name}");
    }
}
