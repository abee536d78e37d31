//! The probe port: `/livez`, `/readyz`, `/metrics`, and what a program adds.
//!
//! It has a thread and a runtime of its own, so that it answers when the program's main runtime hangs, and a cap on its
//! connections, so that a scan of it costs the main port nothing.

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
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus::{Encoder as _, Registry, TextEncoder};
use serde::Deserialize;
use tokio::sync::Semaphore;

use crate::listen::listen;
use crate::metrics::CommonMetrics;
use crate::{Liveness, Readiness};

/// Connections at the same time, on all ports of the probe server together. Further ones are closed at once.
const CONNECTIONS: usize = 128;
/// Longest time for a request's head, and for an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest life of a connection; longer than a long poll.
const CONNECTION_LIFE: Duration = Duration::from_secs(90);

/// What the common routes tell.
#[derive(Clone, Default)]
pub struct ProbeSources {
    /// For `/readyz`.
    pub readiness: Readiness,
    /// For `/livez`.
    pub liveness: Liveness,
    /// For `/metrics`.
    pub metrics: Registry,
}

/// What the routes look at.
struct Probed {
    sources: ProbeSources,
    common: CommonMetrics,
}

/// Listeners that are bound and not served yet.
pub struct ProbeServer {
    ports: Vec<(TcpListener, Router)>,
}

impl ProbeServer {
    /// No port yet.
    pub fn new() -> Self {
        Self { ports: Vec::new() }
    }

    /// Binds the probe port with the common routes and `extra` ones. Gives the address, with the real port where 0 was
    /// asked.
    ///
    /// # Errors
    /// When the address cannot be bound, or the registry has a metric of this crate's already; the text names it.
    pub fn probes(&mut self, address: SocketAddr, sources: ProbeSources, extra: Router) -> io::Result<SocketAddr> {
        let common = CommonMetrics::new(&sources.metrics).map_err(io::Error::other)?;
        let routes = Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(Arc::new(Probed { sources, common }));
        self.port(address, routes.merge(extra))
    }

    /// Binds another port, for instance the state's on the loopback.
    ///
    /// # Errors
    /// When the address cannot be bound; the text names it.
    pub fn port(&mut self, address: SocketAddr, routes: Router) -> io::Result<SocketAddr> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("failed to listen on {address}: {error}"));
        let listener = listen(address).map_err(named)?;
        listener.set_nonblocking(true).map_err(named)?;
        let bound = listener.local_addr().map_err(named)?;
        self.ports.push((listener, routes));
        Ok(bound)
    }

    /// Serves all ports on a thread of its own until the process ends.
    ///
    /// # Errors
    /// When the thread or its runtime cannot be started.
    pub fn start(self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("probes".into()).spawn(move || {
            runtime.block_on(async {
                let permits = Arc::new(Semaphore::new(CONNECTIONS));
                let ports =
                    self.ports.into_iter().map(|(listener, routes)| serve(listener, routes, Arc::clone(&permits)));
                futures::future::join_all(ports).await;
            });
        })?;
        Ok(())
    }
}

impl Default for ProbeServer {
    fn default() -> Self {
        Self::new()
    }
}

async fn serve(listener: TcpListener, routes: Router, permits: Arc<Semaphore>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "failed to serve a probe port");
            return;
        }
    };
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: waiting is all that helps.
                tracing::debug!(%error, "failed to accept on a probe port");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else { continue };
        let service = TowerToHyperService::new(routes.clone());
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(16 << 10)
                .serve_connection(TokioIo::new(stream), service);
            // Errors here are the client's: it hung up or sent noise.
            let _ = tokio::time::timeout(CONNECTION_LIFE, connection).await;
            drop(permit);
        });
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

/// The form of the API server's own `/readyz?verbose`; details also whenever something fails.
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
    let mut body = Vec::new();
    probed.common.update(&probed.sources.readiness);
    match TextEncoder::new().encode(&probed.sources.metrics.gather(), &mut body) {
        Ok(()) => ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
