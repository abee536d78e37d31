//! Provides what policies ask their host for and the evaluator cannot: registries, name lookups, the API server
//! (docs/design/policy-abi.md, section 8).
//!
//! ```text
//!  evaluator (listens) ◄── connection ──► admission: grants, shares, cache ──► dns, oci, kubernetes ──► the network
//!                                             ▲
//!                                  grants, published by the loader
//! ```
//!
//! The evaluator is the program that runs strangers' code, so the broker believes nothing that it says except the bytes of a call:
//! grants are checked again here, against what the loader published. A call has a time limit and a limit of bytes, and a share of its
//! policy and of its namespace for what it asks of the network.
#![forbid(unsafe_code)]

mod admission;
mod cache;
mod certificate;
mod check;
mod connection;
mod context;
mod dns;
mod error;
mod exports;
mod grants;
mod kubernetes;
mod metrics;
mod oci;
mod session;
mod share;
mod work;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use portcullis_kubernetes::{AccessError, ApiServer};
use portcullis_process::Shutdown;
use portcullis_process::telemetry::Collectors;
use portcullis_registry::oci::Registry;
use tokio::sync::{mpsc, watch};

use crate::admission::Admission;
pub use crate::check::CheckRequest;
use crate::check::Checks;
use crate::connection::Handlers;
pub use crate::context::{ContextNeed, Contexts};
pub use crate::error::ProvideError;
use crate::exports::Exports;
pub use crate::grants::{EarlierModule, PublishedGrants};
pub use crate::metrics::Metrics;
pub use crate::session::{Session, SessionError};

/// The longest wait for what an earlier loader published. A volume that hangs must not keep the broker from the evaluator for ever: telemetry
/// and checks of policies need no grants.
const RESTORE: Duration = Duration::from_secs(10);

/// What the broker works with.
pub struct Services {
    /// The client for images: logins, limits and address rules are the same as for modules.
    pub registry: Registry,
    /// `trusted_root.json`, for signers by certificate.
    pub trust_root: Option<PathBuf>,
    /// The name server to ask; `None` for the system's.
    pub name_server: Option<SocketAddr>,
    /// The API server; or why there is no client for it, for guests that ask for its objects.
    pub cluster: Result<ApiServer, AccessError>,
    /// The capabilities that policies of a namespace may have, as patterns; they must be granted in the policy as well.
    pub namespaced: Vec<String>,
    /// Whether calls are recorded, or answered from a recording.
    pub session: Session,
    /// Where the evaluator's spans and metrics are posted.
    pub collectors: Collectors,
    /// Where the broker says what is wrong with the objects that policies read.
    pub contexts: watch::Sender<Arc<Contexts>>,
    /// The channel for questions about policies that are applied; `None` where the installation does not check them.
    pub checks: Option<mpsc::Sender<CheckRequest>>,
}

/// The evaluator's socket.
pub struct Socket {
    /// Its path.
    pub path: PathBuf,
    /// The user that the evaluator runs as; `None` for this program's own user.
    pub user: Option<u32>,
}

/// Connects to the evaluator and answers its calls; it connects again whenever the connection ends. First it waits for
/// [`PublishedGrants::set_restored`]: the evaluator serves all the time, and calls of policies whose grants are not known yet would fail.
///
/// Once the shutdown has begun, it does not connect again: it ends with its present connection, as an evaluator that drains still calls. A
/// caller that does not want to wait for that aborts it.
pub async fn run(
    socket: Socket,
    mut services: Services,
    published: Arc<PublishedGrants>,
    metrics: Metrics,
    shutdown: Shutdown,
) {
    let handlers = Handlers {
        exports: Exports::new(std::mem::take(&mut services.collectors)),
        checks: Checks::new(services.checks.take()),
    };
    let admission = Arc::new(Admission::new(services, Arc::clone(&published), metrics));
    let answer = async {
        tokio::select! {
            () = published.restored(RESTORE) => {}
            () = shutdown.begun() => return,
        }
        connection::answer_all(socket, Arc::clone(&admission), Arc::new(handlers), shutdown).await;
    };
    tokio::select! {
        () = answer => {}
        () = admission.sweep() => {}
        () = admission.keep() => {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;
    use tokio::time::timeout;

    use super::*;

    /// A limit for what comes by itself.
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn the_broker_connects_once_what_was_published_before_is_known_or_cannot_be_had() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let evaluator = UnixListener::bind(&path).expect("binds");
        let published = Arc::new(PublishedGrants::default());
        let metrics = Metrics::new(&prometheus::Registry::new()).expect("registers");
        let (socket, services) = (Socket { path, user: None }, admission::tests::nothing());
        let shutdown = Shutdown::default();
        let broker = tokio::spawn(run(socket, services, Arc::clone(&published), metrics, shutdown.clone()));
        assert!(timeout(Duration::from_millis(100), evaluator.accept()).await.is_err(), "no grant is known");
        published.set_restored();
        let (connection, _) = timeout(LONG, evaluator.accept()).await.expect("in time").expect("a connection");
        drop(connection);
        let (connection, _) = timeout(LONG, evaluator.accept()).await.expect("in time").expect("it connects again");
        shutdown.begin();
        let mut broker = broker;
        assert!(timeout(Duration::from_millis(100), &mut broker).await.is_err(), "the evaluator may still call");
        drop(connection);
        timeout(LONG, broker).await.expect("in time").expect("ends with the connection");
        assert!(timeout(Duration::from_millis(100), evaluator.accept()).await.is_err(), "it connects once more");
    }

    #[tokio::test]
    async fn a_broker_without_a_connection_ends_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let (metrics, shutdown) = (Metrics::new(&prometheus::Registry::new()).expect("registers"), Shutdown::default());
        let run = |published| {
            let socket = Socket { path: folder.path().join("socket"), user: None };
            run(socket, admission::tests::nothing(), published, metrics.clone(), shutdown.clone())
        };
        let (unknown, restored) = (Arc::new(PublishedGrants::default()), Arc::new(PublishedGrants::default()));
        restored.set_restored();
        let waits_for_grants = tokio::spawn(run(Arc::clone(&unknown)));
        let waits_for_the_socket = tokio::spawn(run(restored));
        tokio::time::sleep(Duration::from_millis(10)).await;
        shutdown.begin();
        for broker in [waits_for_grants, waits_for_the_socket] {
            timeout(RESTORE / 2, broker).await.expect("before the grants are given up").expect("ends");
        }
    }

    #[tokio::test]
    async fn a_volume_that_hangs_does_not_keep_the_broker_from_connecting() {
        let published = PublishedGrants::default();
        timeout(LONG, published.restored(Duration::from_millis(1))).await.expect("its own limit ends it");
    }
}
