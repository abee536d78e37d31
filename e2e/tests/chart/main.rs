//! The chart: the objects that it renders, the values that it refuses, and whether a real API server accepts it.
//!
//! Most tests only run Helm. Those that need an API server share a cluster without nodes.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails like the test")]

mod api_server;
mod monitoring;
mod names;
mod network;
mod notes;
mod pods;
mod refused;
mod rights;
mod settings;
mod side_by_side;
mod switches;
mod uninstall;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use portcullis_e2e::{Cache, Cluster, Helm, Options, objects_of};
use serde_json::{Value, json};

/// The namespace of the rendered objects.
const NAMESPACE: &str = "gate";

/// Helm, which is built first if it is not in the cache.
fn helm() -> &'static Helm {
    static HELM: LazyLock<Helm> =
        LazyLock::new(|| Helm::build(&Cache::from_env().unwrap(), &|line| eprintln!("{line}")).unwrap());
    &HELM
}

/// The cluster of all tests of this binary that need one.
fn cluster() -> &'static Cluster {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(&Options::default()).unwrap());
    &CLUSTER
}

/// The objects that the chart renders for these values, including hooks. For the same values, Helm runs once.
fn render(values: &Value) -> Vec<Value> {
    /// What was rendered, or is being rendered by another test, for values in JSON.
    type Rendered = HashMap<String, Arc<OnceLock<Vec<Value>>>>;
    static RENDERED: LazyLock<Mutex<Rendered>> = LazyLock::new(Mutex::default);
    let objects = Arc::clone(RENDERED.lock().unwrap().entry(values.to_string()).or_default());
    let render = || {
        let rendered = helm().template("portcullis", NAMESPACE, values);
        assert!(rendered.is_ok(), "{values}: {}", rendered.stderr);
        assert_eq!(rendered.stderr, "", "{values}");
        objects_of(&rendered.stdout)
    };
    objects.get_or_init(render).clone()
}

/// Helm's message for values that it refuses.
fn refusal(values: &Value) -> String {
    let rendered = helm().template("portcullis", NAMESPACE, values);
    assert!(!rendered.is_ok(), "{values} was not refused");
    rendered.stderr
}

/// Values with everything that can be switched on at once, except certificates of cert-manager and monitoring, which need kinds that a plain
/// cluster does not have.
fn everything() -> Value {
    json!({
        "policyServer": "edge",
        "labels": { "team": "platform" },
        "image": {
            "registry": "registry.example.com:5000/portcullis",
            "tag": "v9",
            "digests": { "loader": format!("sha256:{}", "0".repeat(64)) },
            "pullSecrets": [{ "name": "images" }],
        },
        "logs": { "format": "text", "level": "info,portcullis_loader=debug" },
        "server": {
            "priorityClassName": "system-cluster-critical",
            "podLabels": { "team": "platform" },
            "podAnnotations": { "example.com/note": "one" },
            "nodeSelector": { "kubernetes.io/arch": "amd64" },
            "tolerations": [{ "key": "dedicated", "operator": "Exists" }],
            "affinity": { "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
                "weight": 1,
                "preference": { "matchExpressions": [{ "key": "fast", "operator": "Exists" }] },
            }] } },
            "whenUnspreadable": "DoNotSchedule",
            "policyPaths": true,
            "extraVolumes": [{ "name": "authorities", "configMap": { "name": "authorities" } }],
        },
        "loader": {
            "extraArgs": ["--keep-newest=4"],
            "extraEnv": [{ "name": "RUST_BACKTRACE", "value": "1" }],
            "extraVolumeMounts": [{ "name": "authorities", "mountPath": "/authorities" }],
        },
        "evaluator": {
            "audit": true, "validateRaw": true, "kubewardenMetrics": true, "extraArgs": ["--poll-interval=10s"],
        },
        "telemetry": { "otlp": {
            "endpoint": "http://collector.observability:4318", "headersSecret": "collector", "samplerRatio": "0.01",
            "metrics": true,
        } },
        "reporter": {
            "extraArgs": ["--status-writes=20"],
            "extraVolumeMounts": [{ "name": "authorities", "mountPath": "/authorities", "readOnly": true }],
        },
        "controller": {
            "replicas": 3,
            "priorityClassName": "system-cluster-critical",
            "nodeSelector": { "kubernetes.io/os": "linux" },
            "tolerations": [{ "operator": "Exists" }],
            "extraArgs": ["--parallel-writes=4"],
            "extraVolumes": [{ "name": "collector", "configMap": { "name": "collector" } }],
            "extraVolumeMounts": [{ "name": "collector", "mountPath": "/collector", "readOnly": true }],
        },
        "volume": { "persistence": { "enabled": true, "size": "5Gi", "storageClassName": "fast" } },
        "autoscaling": { "enabled": true },
        "disruptionBudget": { "maxUnavailable": "34%" },
        "service": { "annotations": { "example.com/note": "one" }, "ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4"] },
        "networkPolicy": {
            "metricsFrom": [{ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "monitoring" } } }],
            "egressPorts": [443, 6443],
        },
        "certificates": {
            "mode": "external",
            "clientAuthorities": "-----BEGIN CERTIFICATE-----\nBBBB\n-----END CERTIFICATE-----\n",
            "clientNames": ["kube-apiserver"],
        },
        "policyChecks": { "mode": "deny" },
        "audit": { "enabled": true, "interval": "30m", "format": "wgpolicy" },
        "siblings": { "enabled": true },
        "modules": {
            "allowedSources": ["registry://ghcr.io/*"],
            "allowedPrivate": ["10.0.0.0/8"],
            "plainHTTPHosts": ["registry.internal:5000"],
            "pullSecret": "registries",
            "authorities": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "sources": { "proxies": { "https_proxy": "http://proxy:3128" } },
            "verification": { "apiVersion": "v1", "allOf": [{ "kind": "pubKey", "key": "k" }] },
            "trustRoot": "{\"mediaType\": \"application/vnd.dev.sigstore.trustedroot+json;version=0.1\"}",
        },
        "rbac": { "contextAwareReads": [
            { "apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "list", "watch"] },
        ], "auditReads": [{ "apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["list"] }] },
    })
}

/// The object of a kind and name.
fn find<'o>(objects: &'o [Value], kind: &str, name: &str) -> &'o Value {
    let found = objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("there is no {kind} {name}"))
}

/// Whether there is such an object.
fn has(objects: &[Value], kind: &str, name: &str) -> bool {
    objects.iter().any(|object| object["kind"] == kind && object["metadata"]["name"] == name)
}

/// The pods of these objects, also by templates: the name of the object, and the pod's spec.
fn pods(objects: &[Value]) -> Vec<(&str, &Value)> {
    fn pod(object: &Value) -> Option<(&str, &Value)> {
        let spec = match object["kind"].as_str()? {
            "Pod" => &object["spec"],
            "Deployment" | "StatefulSet" | "Job" => &object["spec"]["template"]["spec"],
            _ => return None,
        };
        Some((object["metadata"]["name"].as_str()?, spec))
    }
    objects.iter().filter_map(pod).collect()
}

/// The containers of a pod.
fn containers(pod: &Value) -> &[Value] {
    pod["containers"].as_array().map_or(&[], Vec::as_slice)
}

/// The container of this name, in any pod.
fn container<'o>(objects: &'o [Value], name: &str) -> &'o Value {
    let all = pods(objects).into_iter().flat_map(|(_, pod)| containers(pod));
    let mut found = all.filter(|container| container["name"] == name);
    found.next().unwrap_or_else(|| panic!("there is no container {name}"))
}

/// The flags of a container.
fn args(container: &Value) -> Vec<&str> {
    container["args"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}
