//! The probe port: `/livez`, `/readyz`, `/metrics`, and the program's own routes.
//!
//! Each port has a thread and a runtime of its own, so that it answers when the program's main runtime hangs, and its own
//! limit of connections, so that a flood of one port does not affect the others.

use std::fmt::Write as _;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::response::IntoResponse;
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus::{IntCounter, Registry, TextEncoder};
use serde::Deserialize;
use tokio::net::TcpStream;

use crate::connections::{Connections, OpenConnection};
use crate::listen::listen;
use crate::metrics::{CommonMetrics, Exposition};
use crate::{Liveness, Readiness};

/// Connections at the same time on a probe port: those of the kubelet, of scrapers, and of people.
const PROBE_CONNECTIONS: usize = 128;
/// Connections at the same time on another port, which is for the programs of the pod.
const OTHER_CONNECTIONS: usize = 64;
/// Connections that wait to be accepted. It is more than usual: if the kernel drops a kubelet's connection, the kubelet
/// tries again only after a second, when its probe has already failed.
const BACKLOG: i32 = 1024;
/// Longest time for a request's head, and for an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest life of a connection; longer than a long poll.
const CONNECTION_LIFE: Duration = Duration::from_secs(90);

/// What the common routes report on.
#[derive(Clone, Default)]
pub struct ProbeSources {
    /// The checks of `/readyz`.
    pub readiness: Readiness,
    /// The checks of `/livez`.
    pub liveness: Liveness,
    /// The metrics of `/metrics`.
    pub metrics: Registry,
}

/// The data of the routes.
struct Probed {
    sources: ProbeSources,
    exposition: Exposition,
}

/// Listeners that are bound but not served yet.
pub struct ProbeServer {
    ports: Vec<Port>,
    /// Connections that were closed to make room, on all ports.
    closed: IntCounter,
}

struct Port {
    /// The last part of its thread's name.
    name: &'static str,
    listener: TcpListener,
    routes: Router,
    limit: usize,
}

impl ProbeServer {
    /// A server without ports.
    pub fn new() -> Self {
        Self { ports: Vec::new(), closed: CommonMetrics::probe_connections_closed() }
    }

    /// Binds the probe port with the common routes and the `extra` ones. Returns the address, with the real port if
    /// port 0 was asked for.
    ///
    /// # Errors
    /// When the address cannot be bound, or the registry already has a metric with a name of this crate's; the text
    /// names it.
    pub fn probes(&mut self, address: SocketAddr, sources: ProbeSources, extra: Router) -> io::Result<SocketAddr> {
        CommonMetrics::register(&sources.metrics, &sources.readiness, &self.closed).map_err(io::Error::other)?;
        let routes = Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(Arc::new(Probed { sources, exposition: Exposition::default() }));
        self.bind("probes", address, routes.merge(extra), PROBE_CONNECTIONS)
    }

    /// Binds another port, for instance the state's on the loopback.
    ///
    /// # Errors
    /// When the address cannot be bound; the text names it.
    pub fn port(&mut self, address: SocketAddr, routes: Router) -> io::Result<SocketAddr> {
        self.bind("state", address, routes, OTHER_CONNECTIONS)
    }

    fn bind(
        &mut self,
        name: &'static str,
        address: SocketAddr,
        routes: Router,
        limit: usize,
    ) -> io::Result<SocketAddr> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("failed to listen on {address}: {error}"));
        let listener = listen(address).map_err(named)?;
        rustix::net::listen(&listener, BACKLOG).map_err(|error| named(error.into()))?;
        listener.set_nonblocking(true).map_err(named)?;
        let bound = listener.local_addr().map_err(named)?;
        self.ports.push(Port { name, listener, routes, limit });
        Ok(bound)
    }

    /// Serves all ports, each on a thread of its own, until the process ends.
    ///
    /// # Errors
    /// When a thread or its runtime cannot be started.
    pub fn start(self) -> io::Result<()> {
        for port in self.ports {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let connections = Connections::new(port.limit, self.closed.clone());
            let serving = move || runtime.block_on(serve(port.listener, port.routes, &connections));
            thread::Builder::new().name(port.name.into()).spawn(serving)?;
        }
        Ok(())
    }
}

impl Default for ProbeServer {
    fn default() -> Self {
        Self::new()
    }
}

async fn serve(listener: TcpListener, routes: Router, connections: &Arc<Connections>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "failed to serve a probe port");
            return;
        }
    };
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                tokio::spawn(connection(stream, routes.clone(), connections.enter(from.ip())));
                // Let pending requests be answered before many more connections are accepted and some must be closed.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                // Most likely there are no more file descriptors, and only waiting helps.
                tracing::debug!(%error, "failed to accept on a probe port");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, routes: Router, open: OpenConnection) {
    let routes = TowerToHyperService::new(routes);
    let service = service_fn(|request| {
        open.answering(true);
        async {
            let response = routes.call(request).await;
            open.answering(false);
            response
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // Errors here are the client's: it closed the connection or sent garbage.
        _ = tokio::time::timeout(CONNECTION_LIFE, connection) => {}
        () = open.over() => {}
    }
}

#[derive(Deserialize)]
struct Verbose {
    verbose: Option<String>,
}

async fn livez(State(probed): State<Arc<Probed>>, Query(query): Query<Verbose>) -> impl IntoResponse {
    let checks = probed.sources.liveness.checks().into_iter().map(|(name, ok, age)| {
        let detail = if ok { String::new() } else { format!("last turn {} ms ago", age.as_millis()) };
        (name, ok, detail)
    });
    report("livez", checks, query.verbose.is_some())
}

async fn readyz(State(probed): State<Arc<Probed>>, Query(query): Query<Verbose>) -> impl IntoResponse {
    let checks = probed.sources.readiness.checks().into_iter().map(|(name, ok)| (name, ok, String::new()));
    report("readyz", checks, query.verbose.is_some())
}

/// The form of the API server's own `/readyz?verbose`. Details are also shown whenever a check fails.
fn report<'n>(
    path: &str,
    checks: impl Iterator<Item = (&'n str, bool, String)>,
    verbose: bool,
) -> (StatusCode, String) {
    let (mut text, mut passed) = (String::new(), true);
    for (name, ok, detail) in checks {
        passed &= ok;
        let line = if ok {
            writeln!(text, "[+]{name} ok")
        } else {
            writeln!(text, "[-]{name} failed{}{detail}", if detail.is_empty() { "" } else { ": " })
        };
        line.expect("writing to a String never fails");
    }
    match (passed, verbose) {
        (true, false) => (StatusCode::OK, "ok".to_owned()),
        (true, true) => (StatusCode::OK, format!("{text}{path} check passed\n")),
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, format!("{text}{path} check failed\n")),
    }
}

async fn metrics(State(probed): State<Arc<Probed>>) -> impl IntoResponse {
    let text = || TextEncoder::new().encode_to_string(&probed.sources.metrics.gather());
    match probed.exposition.text(text).await {
        Ok(body) => ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
