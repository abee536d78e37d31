//! From a claimed slot to a cluster that answers: files, processes, and the conditions that say it is ready.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::Client;
use crate::component::{AUDIT_POLICY, Component};
use crate::kubeconfig::{self, Credentials};
use crate::layout::Layout;
use crate::process::ProcessId;
use crate::{Error, Kubernetes, files, pki};

/// For each condition; wide, as several clusters may start beside a build on two cores.
const LIMIT: Duration = Duration::from_secs(180);

/// How often a condition is looked at.
const PACE: Duration = Duration::from_millis(25);

/// A component that was started.
pub(crate) struct Started {
    pub(crate) component: Component,
    /// Standard input is a pipe: the component ends when it is closed, and goes on alone after one byte.
    pub(crate) child: Child,
}

/// Writes what the components read.
pub(crate) fn write_files(layout: &Layout) -> Result<(), Error> {
    pki::make(layout)?;
    files::make_folder(&layout.file("logs"))?;
    files::write(&layout.file("audit-policy.yaml"), AUDIT_POLICY)?;
    write_controllers(layout, 1)?;
    files::write(&layout.kubeconfig(), &render_user(layout, 1, "admin")?)
}

/// Writes the kubeconfig of the controllers, for one of the API servers.
pub(crate) fn write_controllers(layout: &Layout, api_server: u8) -> Result<(), Error> {
    files::write(&layout.controllers(), &render_user(layout, api_server, "kube-controller-manager")?)
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

/// [`render`] with one server, which is at an address of its own.
pub(crate) fn render_at(layout: &Layout, server: SocketAddr, credentials: Credentials<'_>) -> Result<String, Error> {
    Ok(kubeconfig::render(&read_pki(layout, "ca.crt")?, &[(1, server)], 1, credentials))
}

fn read_pki(layout: &Layout, name: &str) -> Result<String, Error> {
    let path = layout.pki(name);
    fs::read_to_string(&path).map_err(Error::file("read", &path))
}

/// Starts a component, in a process group of its own so that an interrupt in a terminal is the owner's alone.
pub(crate) fn spawn(kubernetes: &Kubernetes, layout: &Layout, component: Component) -> Result<Started, Error> {
    let log = layout.log(&component.to_string());
    let output = File::options().create(true).append(true).open(&log).map_err(Error::file("write", &log))?;
    let errors = output.try_clone().map_err(Error::file("open", &log))?;
    let child = Command::new(kubernetes.program(component.program()))
        .args(component.args(layout))
        .current_dir(layout.folder())
        .env_clear()
        .env("PORTCULLIS_OWNER", "stdin")
        .stdin(Stdio::piped())
        .stdout(output)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .map_err(|source| Error::Start {
            program: component.to_string(),
            next: "remove the folder kubernetes-… from the cache, so that it is built again",
            source,
        })?;
    Ok(Started { component, child })
}

/// What the state file has to say about it; a component that has ended already is an error.
pub(crate) fn process_of(layout: &Layout, started: &mut Started) -> Result<ProcessId, Error> {
    match ProcessId::of(started.child.id()) {
        Some(process) => Ok(process),
        None => Err(ended(layout, started).unwrap_or_else(|| not_ready(layout, "its process", started.component))),
    }
}

/// Waits until an API server says that it is ready.
pub(crate) fn wait_for_api_server(
    layout: &Layout,
    client: &Client,
    started: &mut [Started],
    number: u8,
) -> Result<(), Error> {
    let address = layout.api_server(number);
    wait(layout, started, Component::ApiServer(number), "its /readyz", || client.is_ok(address, "/readyz"))
}

/// Waits until the controllers work, and every API server is published.
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

/// How many addresses an EndpointSlice has.
fn addresses(slice: &Value) -> usize {
    let endpoints = slice["endpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
    endpoints.iter().filter_map(|endpoint| endpoint["addresses"].as_array()).map(Vec::len).sum()
}

fn wait(
    layout: &Layout,
    started: &mut [Started],
    whose: Component,
    what: &str,
    is: impl Fn() -> bool,
) -> Result<(), Error> {
    let start = Instant::now();
    while !is() {
        if let Some(error) = started.iter_mut().find_map(|one| ended(layout, one)) {
            return Err(error);
        }
        if start.elapsed() > LIMIT {
            return Err(not_ready(layout, what, whose));
        }
        thread::sleep(PACE);
    }
    Ok(())
}

fn ended(layout: &Layout, started: &mut Started) -> Option<Error> {
    let status = started.child.try_wait().ok().flatten()?;
    let component = started.component.to_string();
    Some(Error::Ended { log: files::tail(&layout.log(&component), 20), component, status })
}

fn not_ready(layout: &Layout, what: &str, whose: Component) -> Error {
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
