//! Waits until the parts of a node are ready.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Client;
use crate::component::Component;
use crate::connection::Question;
use crate::layout::Layout;
use crate::node::paths::{self, NAME};
use crate::node::{config, import, link};
use crate::start::{Started, not_ready, wait};
use crate::{Cache, Error};

/// The time limit of one request, which is repeated.
const LIMIT: Duration = Duration::from_secs(10);

/// Waits until a part of the node, or of the control plane of a cluster with a node, can be used by the parts that start
/// after it.
pub(crate) fn wait_for_part(
    cache: &Cache,
    layout: &Layout,
    started: &mut [Started],
    component: Component,
) -> Result<(), Error> {
    let Some(process) = started.iter().find(|one| one.component == component).map(|one| one.process.pid) else {
        return Ok(());
    };
    match component {
        Component::Dns => {
            let address = SocketAddr::from((layout.network.dns(), config::DNS_PORT));
            wait(layout, started, component, "its port", || TcpStream::connect_timeout(&address, LIMIT).is_ok())
        }
        Component::Node => {
            let mark = paths::ready(layout);
            wait(layout, started, component, "its namespaces", || mark.exists())?;
            link::make(layout.network, process)
        }
        Component::Containerd => {
            let socket = format!("/proc/{process}/root{}", config::SOCKET);
            wait(layout, started, component, "its socket", || UnixStream::connect(&socket).is_ok())?;
            let node = started.iter().find(|one| one.component == Component::Node).map(|one| one.process.pid);
            node.map_or(Ok(()), |node| import::import_pod_image(cache, node))
        }
        Component::Kubelet => {
            // The node object may still be ready from before a restart.
            let address = SocketAddr::from((layout.network.node(), config::KUBELET_PORT));
            wait(layout, started, component, "its port", || TcpStream::connect_timeout(&address, LIMIT).is_ok())
        }
        Component::KubeProxy => {
            let address = SocketAddr::from((layout.network.node(), config::PROXY_HEALTH_PORT));
            wait(layout, started, component, "its /healthz", || answers_ok(address, "/healthz"))
        }
        _ => Ok(()),
    }
}

/// Waits until the node is ready and accepts pods.
pub(crate) fn wait_for_node(layout: &Layout, client: &Client, started: &mut [Started]) -> Result<(), Error> {
    let path = format!("/api/v1/nodes/{NAME}");
    let servers: Vec<_> = layout.api_server_numbers().map(|number| layout.api_server(number)).collect();
    let node = || servers.iter().find_map(|&server| client.object(server, &path));
    let result =
        wait(layout, started, Component::Kubelet, "the node Ready", || node().as_ref().is_some_and(takes_pods));
    result.map_err(|error| match (error, node()) {
        // The kubelet reports the cause to the API server, and its log has at most a hint.
        (Error::NotReady { .. }, Some(node)) => not_ready(
            layout,
            &format!("the node Ready, which says {}", node["status"]["conditions"]),
            Component::Kubelet,
        ),
        (error, _) => error,
    })
}

/// Whether a node is ready and has no taint that keeps pods away.
fn takes_pods(node: &Value) -> bool {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let is_ready =
        list(&node["status"]["conditions"]).iter().any(|one| one["type"] == "Ready" && one["status"] == "True");
    is_ready && list(&node["spec"]["taints"]).is_empty()
}

/// Lets API servers call the kubelet, for `kubectl logs` and `exec`. An API server that has just started may refuse this
/// for a moment.
pub(crate) fn allow_kubelet_api(layout: &Layout, client: &Client, started: &mut [Started]) -> Result<(), Error> {
    let name = "portcullis-tests:kube-apiserver-kubelet-client";
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    // After a restart of an API server it exists already. The API server may also refuse to create anything then,
    // because webhooks may be unavailable.
    if client.object(layout.api_server(1), &format!("{path}/{name}")).is_some() {
        return Ok(());
    }
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:kubelet-api-admin" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "kube-apiserver-kubelet-client" }],
    });
    let body = binding.to_string();
    let question = Question { method: "POST", path, content_type: "application/json", body: body.as_bytes() };
    let what = "the right of API servers to ask the kubelet";
    wait(layout, started, Component::ApiServer(1), what, || {
        client.send(layout.api_server(1), &question).is_ok_and(|answer| matches!(answer.code, 201 | 409))
    })
}

/// Whether a path answers with status 200, without TLS.
fn answers_ok(address: SocketAddr, path: &str) -> bool {
    let ask = || -> std::io::Result<[u8; 12]> {
        let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        Ok(head)
    };
    ask().is_ok_and(|head| head.ends_with(b" 200"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_a_taint_takes_no_pods() {
        let ready = json!([{ "type": "Ready", "status": "True" }]);
        assert!(takes_pods(&json!({ "spec": {}, "status": { "conditions": ready } })));
        let taints = json!([{ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" }]);
        assert!(!takes_pods(&json!({ "spec": { "taints": taints }, "status": { "conditions": ready } })));
        assert!(!takes_pods(&json!({ "spec": {}, "status": {} })));
    }
}
