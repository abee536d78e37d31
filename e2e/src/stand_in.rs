//! Pods without a kubelet: objects in the API, for which a process of the test does what the pod would do.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::Cluster;
use crate::api::Api;

/// The node that they are on, which exists only as an object too.
pub(crate) const NODE: &str = "stand-in";

/// A pod for which a process stands in.
#[derive(Debug, Clone, Copy)]
pub struct StandIn<'a> {
    /// Its namespace, which must exist.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its service account, which must exist.
    pub service_account: &'a str,
    /// Its labels, by which services find it.
    pub labels: &'a [(&'a str, &'a str)],
    /// The address of the process, from [`Cluster::pod_address`]. The pod is ready if it has one.
    pub address: Option<Ipv4Addr>,
}

impl Cluster {
    /// Creates the pod, or changes it: without an address it is no longer ready.
    ///
    /// # Panics
    /// When the API server refuses it.
    pub fn stand_in(&self, pod: &StandIn<'_>) {
        let (api, path) = (self.api(), pod_path(pod.namespace, pod.name));
        make_node(&api);
        api.apply(&path, "stand-in", &manifest(pod)).expect("an API server answers").expect("a pod to stand in for");
        let status = json!({ "status": status(pod.address, pod.address.is_some()) });
        api.patch(&format!("{path}/status"), &status).expect("an API server answers").expect("its status");
    }

    /// A token like the pod's own: of its service account, and bound to the pod, so that it is not valid when the pod is gone.
    /// Creates the pod if it does not exist.
    ///
    /// # Panics
    /// When the API server refuses it.
    pub fn token_for_pod(&self, namespace: &str, service_account: &str, pod: &str) -> String {
        let api = self.api();
        let uid = match api.get(&pod_path(namespace, pod)) {
            Some(object) => uid_of(&object),
            None => create(&api, &StandIn { namespace, name: pod, service_account, labels: &[], address: None }),
        };
        token(&api, namespace, service_account, pod, &uid)
    }
}

/// Makes the object of a pod and returns its uid.
pub(crate) fn create(api: &Api, pod: &StandIn<'_>) -> String {
    make_node(api);
    let created = api.create(&format!("/api/v1/namespaces/{}/pods", pod.namespace), &manifest(pod));
    uid_of(&created.expect("an API server answers").expect("a pod object"))
}

/// A token of this account that is bound to a pod, as a kubelet requests it.
pub(crate) fn token(api: &Api, namespace: &str, account: &str, pod: &str, uid: &str) -> String {
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {
            "expirationSeconds": 86_400,
            "boundObjectRef": { "apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid },
        },
    });
    let answer = api.create(&format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"), &request);
    let answer = answer.expect("an API server answers").expect("a token");
    answer["status"]["token"].as_str().expect("the answer has a token").to_owned()
}

/// The path of a pod in the API.
pub(crate) fn pod_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

fn uid_of(object: &Value) -> String {
    object["metadata"]["uid"].as_str().expect("the object has a uid").to_owned()
}

/// Creates the node, which all pods share, unless it exists already.
fn make_node(api: &Api) {
    let _ = api.create("/api/v1/nodes", &json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } }));
}

fn manifest(pod: &StandIn<'_>) -> Value {
    let labels: serde_json::Map<_, _> =
        pod.labels.iter().map(|&(name, value)| (name.to_owned(), Value::from(value))).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": pod.name, "namespace": pod.namespace, "labels": labels },
        "spec": {
            "nodeName": NODE,
            "serviceAccountName": pod.service_account,
            // Without a kubelet nothing is mounted; the test gives the process its token.
            "automountServiceAccountToken": false,
            "containers": [{ "name": "stand-in", "image": "stand-in.invalid/none" }],
        },
    })
}

/// The status of a running pod. A pod that is not ready may have its address already.
pub(crate) fn status(address: Option<Ipv4Addr>, is_ready: bool) -> Value {
    let ready = if is_ready { "True" } else { "False" };
    let ips: Vec<Value> = address.iter().map(|address| json!({ "ip": address })).collect();
    json!({
        "phase": "Running", "podIP": address, "podIPs": ips,
        "conditions": [{ "type": "Ready", "status": ready }, { "type": "ContainersReady", "status": ready }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_is_ready_has_an_address() {
        let status = status(Some(Ipv4Addr::new(198, 18, 0, 32)), true);
        assert_eq!(status["podIPs"], json!([{ "ip": "198.18.0.32" }]));
        assert_eq!(status["conditions"][0]["status"], "True");
    }

    #[test]
    fn a_pod_that_is_not_ready_may_have_one() {
        let [with, without] = [Some(Ipv4Addr::new(198, 18, 0, 40)), None].map(|address| status(address, false));
        assert_eq!((&with["podIP"], &without["podIP"]), (&json!("198.18.0.40"), &Value::Null));
        assert_eq!([&with, &without].map(|status| &status["conditions"][0]["status"]), ["False", "False"]);
    }

    #[test]
    fn labels_are_those_that_services_select() {
        let labels = [("app", "evaluator")];
        let pod = StandIn { namespace: "n", name: "p", service_account: "s", labels: &labels, address: None };
        assert_eq!(manifest(&pod)["metadata"]["labels"], json!({ "app": "evaluator" }));
    }
}
