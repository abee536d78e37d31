//! Serving the loaders beside this one: modules and manifests by digest, over mutual TLS.
//!
//! Nothing else is there to be had: no list, no artifact, no policy. Who asks checks what he gets like any other source's.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use clap::Args;
use http::StatusCode;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use portcullis_contract::Digest;
use portcullis_process::{SettingError, Shutdown};
use portcullis_registry::{PeerKeys, Peers, check_peer_keys};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use crate::jobs::blocking;
use crate::store::Volume;

/// Connections at the same time.
const MOST: usize = 32;
/// Modules that are read at the same time; each is in memory meanwhile.
const MOST_READERS: usize = 2;
/// Longest time of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Longest time of a connection.
const LONGEST: Duration = Duration::from_secs(300);

/// Other loaders of the installation.
#[derive(Debug, Clone, Args)]
pub struct SiblingArgs {
    /// Other loaders (address:port) that are asked for a module while its registry is away. May be given several times.
    #[arg(
        long,
        env = "PORTCULLIS_SIBLINGS",
        value_name = "ADDRESS",
        value_delimiter = ',',
        requires = "siblings_tls_dir"
    )]
    pub siblings: Vec<SocketAddr>,

    /// Where other loaders may ask this one for modules; nowhere by default.
    #[arg(long, env = "PORTCULLIS_SIBLINGS_ADDRESS", value_name = "ADDRESS", requires = "siblings_tls_dir")]
    pub siblings_address: Option<SocketAddr>,

    /// A folder with tls.crt, tls.key and ca.crt, of an authority for loaders and nobody else. The certificate's name is
    /// portcullis-sibling. Read again for each connection.
    #[arg(long, env = "PORTCULLIS_SIBLINGS_TLS_DIR", value_name = "DIR")]
    pub siblings_tls_dir: Option<PathBuf>,
}

impl SiblingArgs {
    /// Checks what only the machine can tell.
    pub(crate) fn check(&self) -> Result<(), SettingError> {
        match &self.siblings_tls_dir {
            Some(folder) => check_peer_keys(folder).map_err(|error| SettingError::new("--siblings-tls-dir", error)),
            None => Ok(()),
        }
    }

    /// Whom to ask.
    pub(crate) fn peers(&self) -> Option<Peers> {
        let keys = PeerKeys::new(self.siblings_tls_dir.clone()?);
        (!self.siblings.is_empty()).then(|| Peers::new(self.siblings.clone(), keys))
    }

    /// Where to be asked, and with which keys.
    pub(crate) fn port(&self) -> Option<(SocketAddr, PeerKeys)> {
        Some((self.siblings_address?, PeerKeys::new(self.siblings_tls_dir.clone()?)))
    }
}

struct Shelf {
    volume: Arc<Volume>,
    limit: u64,
    readers: Semaphore,
}

/// Serves until the shutdown.
pub(crate) async fn serve(listener: TcpListener, keys: PeerKeys, volume: Arc<Volume>, limit: u64, shutdown: Shutdown) {
    let shelf = Arc::new(Shelf { volume, limit, readers: Semaphore::new(MOST_READERS) });
    let router = Router::new()
        .route("/v1/modules/{digest}", get(module))
        .route("/v1/manifests/{digest}", get(manifest))
        .with_state(shelf);
    let places = Arc::new(Semaphore::new(MOST));
    loop {
        let accepted = tokio::select! {
            () = shutdown.begun() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // Out of descriptors, perhaps; they come back.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        // Who finds no place is told by the connection's end, and asks elsewhere.
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let (keys, router) = (keys.clone(), router.clone());
        tokio::spawn(async move {
            let _place = place;
            if tokio::time::timeout(LONGEST, talk(stream, keys, router)).await.is_err() {
                tracing::debug!("a connection of another loader took too long");
            }
        });
    }
}

async fn talk(stream: TcpStream, keys: PeerKeys, router: Router) {
    let config = match blocking(move || keys.server()).await {
        Ok(Ok(config)) => config,
        Ok(Err(error)) => return tracing::warn!(error, "the keys for other loaders cannot be used"),
        Err(_) => return,
    };
    let handshake = TlsAcceptor::from(Arc::new(config)).accept(stream);
    let stream = match tokio::time::timeout(HANDSHAKE, handshake).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "a caller is no loader of this installation"),
        Err(_) => return,
    };
    let service = TowerToHyperService::new(router);
    // An error is the other side's hanging up.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn module(State(shelf): State<Arc<Shelf>>, Path(digest): Path<String>) -> Response {
    give(shelf, &digest, |shelf, digest| {
        let bytes = portcullis_process::files::read_regular(&shelf.volume.module(digest), shelf.limit).ok()?;
        (Digest::of(&bytes) == *digest).then_some(bytes)
    })
    .await
}

async fn manifest(State(shelf): State<Arc<Shelf>>, Path(digest): Path<String>) -> Response {
    give(shelf, &digest, |shelf, digest| Some(shelf.volume.oci_manifest(digest)?.bytes)).await
}

async fn give(
    shelf: Arc<Shelf>,
    digest: &str,
    read: impl FnOnce(&Shelf, &Digest) -> Option<Vec<u8>> + Send + 'static,
) -> Response {
    let Ok(digest) = digest.parse::<Digest>() else { return StatusCode::NOT_FOUND.into_response() };
    let _reader = shelf.readers.acquire().await.expect("the semaphore is never closed");
    let own = Arc::clone(&shelf);
    match blocking(move || read(&own, &digest)).await {
        Ok(Some(bytes)) => bytes.into_response(),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}
