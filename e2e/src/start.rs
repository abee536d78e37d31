//! Starts a cluster in a claimed slot: files, processes, and the conditions for it to be ready.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::Client;
use crate::command_line::{self, AUDIT_POLICY};
use crate::component::Component;
use crate::kubeconfig::{self, Credentials};
use crate::layout::Layout;
use crate::process::ProcessId;
use crate::{Error, Kubernetes, files, node, pki};

/// How long each condition may take. It is long, because several clusters may start beside a build on two cores.
const LIMIT: Duration = Duration::from_secs(300);

/// The interval at which a condition is checked.
const PACE: Duration = Duration::from_millis(25);

/// A component that was started.
pub(crate) struct Started {
    pub(crate) component: Component,
    /// The process that was started: the component, or the process that starts it on the node and ends with it. Its standard input
    /// is a pipe: when it is closed, the component ends; after one byte, the component runs on without it. Parts of a node do not
    /// have such a pipe, except the first, with which they all end.
    pub(crate) child: Child,
    /// The process of the component itself.
    pub(crate) process: ProcessId,
}

/// Writes the files of the components.
pub(crate) fn write_files(layout: &Layout) -> Result<(), Error> {
    pki::make(layout)?;
    files::make_folder(&layout.file("logs"))?;
    files::write(&layout.file("audit-policy.yaml"), AUDIT_POLICY)?;
    write_components(layout, 1)?;
    files::write(&layout.kubeconfig(), &render_user(layout, 1, "admin")?)
}

/// Writes the kubeconfigs of the components, for one of the API servers.
pub(crate) fn write_components(layout: &Layout, api_server: u8) -> Result<(), Error> {
    let of_node = layout.node.iter().flat_map(|_| ["kube-scheduler", "kubelet", "kube-proxy"]);
    for name in of_node.chain(["kube-controller-manager"]) {
        files::write(&layout.kubeconfig_of(name), &render_user(layout, api_server, name)?)?;
    }
    Ok(())
}

fn render_user(layout: &Layout, current: u8, name: &str) -> Result<String, Error> {
    let (certificate, key) = (read_pki(layout, &format!("{name}.crt"))?, read_pki(layout, &format!("{name}.key"))?);
    render(layout, current, Credentials::Certificate { certificate: &certificate, key: &key })
}

/// A kubeconfig of this cluster, in which the API server `current` is current.
pub(crate) fn render(layout: &Layout, current: u8, credentials: Credentials<'_>) -> Result<String, Error> {
    let servers: Vec<_> = layout.api_server_numbers().map(|number| (number, layout.api_server(number))).collect();
    Ok(kubeconfig::render(&read_pki(layout, "ca.crt")?, &servers, current, credentials))
}

/// [`render`] with one server, at this address.
pub(crate) fn render_at(layout: &Layout, server: SocketAddr, credentials: Credentials<'_>) -> Result<String, Error> {
    Ok(kubeconfig::render(&read_pki(layout, "ca.crt")?, &[(1, server)], 1, credentials))
}

fn read_pki(layout: &Layout, name: &str) -> Result<String, Error> {
    let path = layout.pki(name);
    fs::read_to_string(&path).map_err(Error::file("read", &path))
}

/// Starts a component, in a process group of its own, so that an interrupt in a terminal reaches only the owner. Parts of a node
/// start on the node with the first process `node`.
pub(crate) fn spawn(
    kubernetes: &Kubernetes,
    layout: &Layout,
    component: Component,
    node: Option<u32>,
) -> Result<Started, Error> {
    let log = layout.log(&component.to_string());
    let output = File::options().create(true).append(true).open(&log).map_err(Error::file("write", &log))?;
    let errors = output.try_clone().map_err(Error::file("open", &log))?;
    let is_guarded = !component.is_of_node() || component == Component::Node;
    let mut command = node::command(kubernetes, component, node);
    if is_guarded {
        command.env("PORTCULLIS_OWNER", "stdin");
    }
    let mut child = command
        .args(command_line::args(component, layout, kubernetes.bin()))
        .current_dir(layout.folder())
        .stdin(if is_guarded { Stdio::piped() } else { Stdio::null() })
        .stdout(output)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .map_err(|source| Error::Start {
            program: component.to_string(),
            next: "remove the folder kubernetes-… from the cache, so that it is built again",
            source,
        })?;
    let process = process_of(layout, component, &mut child)?;
    Ok(Started { component, child, process })
}

/// The process of the component itself; one that has ended already is an error.
fn process_of(layout: &Layout, component: Component, child: &mut Child) -> Result<ProcessId, Error> {
    let start = Instant::now();
    loop {
        let pid = if component.is_of_node() { node::process_inside(child.id()) } else { Some(child.id()) };
        if let Some(process) = pid.and_then(ProcessId::of) {
            return Ok(process);
        }
        if let Some(error) = ended(layout, component, child) {
            return Err(error);
        }
        if start.elapsed() > LIMIT {
            return Err(not_ready(layout, "its process", component));
        }
        thread::sleep(PACE);
    }
}

/// Waits until an API server is ready.
pub(crate) fn wait_for_api_server(
    layout: &Layout,
    client: &Client,
    started: &mut [Started],
    number: u8,
) -> Result<(), Error> {
    let address = layout.api_server(number);
    wait(layout, started, Component::ApiServer(number), "its /readyz", || client.is_ok(address, "/readyz"))
}

/// Waits until the controllers work, and the address of every API server is published.
pub(crate) fn wait_for_controllers(layout: &Layout, client: &Client, started: &mut [Started]) -> Result<(), Error> {
    let server = layout.api_server(1);
    wait(layout, started, Component::ControllerManager, "the service account of the namespace default", || {
        client.object(server, "/api/v1/namespaces/default/serviceaccounts/default").is_some()
    })?;
    if layout.has_endpoints() {
        let last = Component::ApiServer(layout.api_servers);
        wait(layout, started, last, "the addresses of all API servers in an EndpointSlice", || {
            let slice = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
            client.object(server, slice).is_some_and(|slice| addresses(&slice) == usize::from(layout.api_servers))
        })?;
    }
    Ok(())
}

/// The number of addresses in an EndpointSlice.
fn addresses(slice: &Value) -> usize {
    let endpoints = slice["endpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
    endpoints.iter().filter_map(|endpoint| endpoint["addresses"].as_array()).map(Vec::len).sum()
}

/// Waits until a condition is true, or one of the components has ended.
pub(crate) fn wait(
    layout: &Layout,
    started: &mut [Started],
    whose: Component,
    what: &str,
    is: impl Fn() -> bool,
) -> Result<(), Error> {
    let start = Instant::now();
    while !is() {
        if let Some(error) = started.iter_mut().find_map(|one| ended(layout, one.component, &mut one.child)) {
            return Err(error);
        }
        if start.elapsed() > LIMIT {
            return Err(not_ready(layout, what, whose));
        }
        thread::sleep(PACE);
    }
    Ok(())
}

fn ended(layout: &Layout, component: Component, child: &mut Child) -> Option<Error> {
    let status = child.try_wait().ok().flatten()?;
    let component = component.to_string();
    Some(Error::Ended { log: files::tail(&layout.log(&component), 20), component, status })
}

/// The failure of a wait, with the last output of the component in question.
pub(crate) fn not_ready(layout: &Layout, what: &str, whose: Component) -> Error {
    let log = files::tail(&layout.log(&whose.to_string()), 20);
    Error::NotReady { what: format!("{what} ({whose})"), limit: LIMIT, log }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_of_all_endpoints_count() {
        let slice = json!({ "endpoints": [{ "addresses": ["198.18.0.1"] }, { "addresses": ["198.18.0.2"] }] });
        assert_eq!(addresses(&slice), 2);
        assert_eq!(addresses(&json!({ "endpoints": null })), 0);
    }
}
