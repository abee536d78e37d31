//! Pods without a kubelet: objects in the API, for which a process of the test does what the pod would do.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::Cluster;

/// The node that they are on. It is an object too.
pub(crate) const NODE: &str = "stand-in";

/// A pod that a process stands in for.
#[derive(Debug, Clone, Copy)]
pub struct StandIn<'a> {
    /// Its namespace, which must be there.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its service account, which must be there.
    pub service_account: &'a str,
    /// Its labels, by which services find it.
    pub labels: &'a [(&'a str, &'a str)],
    /// Where the process listens, from [`Cluster::pod_address`]. The pod is ready when it has one.
    pub address: Option<Ipv4Addr>,
}

impl Cluster {
    /// Makes the pod, or changes it: without an address it stops being ready.
    ///
    /// # Panics
    /// When the API server refuses it.
    pub fn stand_in(&self, pod: &StandIn<'_>) {
        let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [node(), manifest(pod)] });
        self.apply(&objects.to_string()).expect("a pod to stand in for");
        let status = json!({ "status": status(pod.address) }).to_string();
        let patch = ["patch", "pod", pod.name, "--namespace", pod.namespace, "--subresource=status", "--type=merge"];
        self.kubectl(patch.into_iter().chain(["--patch", &status])).expect("its status");
    }

    /// A token as the pod would have one: of its service account, and bound to the pod, so that it is worth nothing when the pod
    /// has gone. Makes the pod when it is not there.
    ///
    /// # Panics
    /// When the API server refuses it.
    pub fn token_for_pod(&self, namespace: &str, service_account: &str, pod: &str) -> String {
        let get =
            ["get", "pod", pod, "--namespace", namespace, "--ignore-not-found", "--output=jsonpath={.metadata.uid}"];
        let mut uid = self.kubectl(get).expect("looking for the pod").to_owned();
        if uid.is_empty() {
            self.stand_in(&StandIn { namespace, name: pod, service_account, labels: &[], address: None });
            self.kubectl(get).expect("looking for the pod").clone_into(&mut uid);
        }
        let create = ["create", "token", service_account, "--namespace", namespace, "--duration=24h"];
        let bound = ["--bound-object-kind=Pod", "--bound-object-name", pod, "--bound-object-uid", &uid];
        self.kubectl(create.into_iter().chain(bound)).expect("a token").to_owned()
    }
}

pub(crate) fn node() -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } })
}

pub(crate) fn manifest(pod: &StandIn<'_>) -> Value {
    let labels: serde_json::Map<_, _> =
        pod.labels.iter().map(|&(name, value)| (name.to_owned(), Value::from(value))).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": pod.name, "namespace": pod.namespace, "labels": labels },
        "spec": {
            "nodeName": NODE,
            "serviceAccountName": pod.service_account,
            // No kubelet mounts anything; the process is given its token by the test.
            "automountServiceAccountToken": false,
            "containers": [{ "name": "stand-in", "image": "stand-in.invalid/none" }],
        },
    })
}

fn status(address: Option<Ipv4Addr>) -> Value {
    let ready = if address.is_some() { "True" } else { "False" };
    let ips: Vec<Value> = address.iter().map(|address| json!({ "ip": address })).collect();
    json!({
        "phase": "Running",
        "podIP": address,
        "podIPs": ips,
        "conditions": [{ "type": "Ready", "status": ready }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_with_an_address_is_ready() {
        let status = status(Some(Ipv4Addr::new(198, 18, 0, 32)));
        assert_eq!(status["podIPs"], json!([{ "ip": "198.18.0.32" }]));
        assert_eq!(status["conditions"][0]["status"], "True");
    }

    #[test]
    fn a_pod_without_one_is_not() {
        assert_eq!(status(None)["conditions"][0]["status"], "False");
        assert_eq!(status(None)["podIP"], Value::Null);
    }

    #[test]
    fn labels_are_those_that_services_select() {
        let labels = [("app", "evaluator")];
        let pod = StandIn { namespace: "n", name: "p", service_account: "s", labels: &labels, address: None };
        assert_eq!(manifest(&pod)["metadata"]["labels"], json!({ "app": "evaluator" }));
    }
}
