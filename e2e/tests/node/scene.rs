//! A namespace with a small service and its pods.

use std::path::Path;

use portcullis_e2e::{Cluster, Evidence, Output, POD_IMAGE, eventually};
use serde_json::{Value, json};

/// The namespace of a test.
pub(crate) struct Scene<'a> {
    cluster: &'a Cluster,
    name: &'a str,
    _evidence: Evidence<'a>,
}

impl<'a> Scene<'a> {
    /// Creates an empty namespace, from which evidence is kept if the test fails.
    pub(crate) fn new(cluster: &'a Cluster, name: &'a str) -> Self {
        cluster.kubectl(["create", "namespace", name]).expect("a namespace");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("evidence").join(name);
        Self { cluster, name, _evidence: cluster.evidence(folder) }
    }

    /// Runs kubectl in this namespace.
    pub(crate) fn kubectl(&self, args: &[&str]) -> Output {
        self.cluster.kubectl(["--namespace", self.name].into_iter().chain(args.iter().copied()))
    }

    /// Creates the service `web`, with a cluster address, and the headless service `web-pods`, both for the pods of [`Scene::make_pod`].
    pub(crate) fn make_services(&self) {
        let service = |name: &str, extra: Value| {
            let mut spec = json!({ "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": 8080 }] });
            spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": self.name }, "spec": spec })
        };
        let items = [service("web", json!({})), service("web-pods", json!({ "clusterIP": "None" }))];
        self.cluster
            .apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string())
            .expect("services");
    }

    /// Creates a pod that serves, with the strictest pod security, and waits until it is ready.
    pub(crate) fn make_pod(&self, name: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": self.name, "labels": { "app": "web" } },
            "spec": {
                "terminationGracePeriodSeconds": 2,
                "containers": [{
                    "name": "web", "image": POD_IMAGE, "imagePullPolicy": "Never", "args": ["serve"],
                    "readinessProbe": { "httpGet": { "path": "/ready", "port": 8080 }, "periodSeconds": 1 },
                    "resources": { "limits": { "memory": "64Mi", "cpu": "500m" }, "requests": { "cpu": "10m" } },
                    "securityContext": {
                        "runAsNonRoot": true, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
                        "capabilities": { "drop": ["ALL"] }, "seccompProfile": { "type": "RuntimeDefault" },
                    },
                }],
            },
        });
        // The namespace may not have its service account yet.
        eventually("the pod's creation", || self.cluster.apply(&pod.to_string()).is_ok().then_some(()));
        self.wait_ready(name);
    }

    pub(crate) fn wait_ready(&self, pod: &str) {
        self.kubectl(&["wait", "--for=condition=Ready", "--timeout=240s", "pod", pod]).expect("a ready pod");
    }

    /// Runs the pod's program once more inside of it.
    pub(crate) fn exec(&self, pod: &str, args: &[&str]) -> Output {
        self.kubectl(&[&["exec", pod, "--", "/pod"], args].concat())
    }

    /// The answer that a pod gets from an address.
    pub(crate) fn get(&self, pod: &str, url: &str) -> String {
        eventually(&format!("an answer of {url}"), || {
            let output = self.exec(pod, &["get", url]);
            output.is_ok().then(|| output.stdout.trim().to_owned())
        })
    }

    /// The object of a pod.
    pub(crate) fn pod(&self, name: &str) -> Value {
        self.kubectl(&["get", "pod", name, "--output=json"]).json("the pod")
    }

    /// How often the container of a pod was restarted.
    pub(crate) fn restarts(&self, pod: &str) -> u64 {
        self.pod(pod)["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or_default()
    }
}
