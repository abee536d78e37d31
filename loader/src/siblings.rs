//! Serving the loaders beside this one: modules, manifests and signatures by digest, over mutual TLS.
//!
//! Nothing else is there to be had: no list, no artifact, no policy. Who asks checks what he gets like any other source's.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
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
use portcullis_registry::{PEER_NAME, PeerKeys, Peers, Place};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use crate::args::Input;
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
    /// Other loaders that are asked for a module while its registry is away: an address with a port, or a name with a port,
    /// like that of a headless Service, which is looked up each time. May be given several times.
    #[arg(
        long,
        env = "PORTCULLIS_SIBLINGS",
        value_name = "PLACE",
        value_delimiter = ',',
        requires = "siblings_tls_dir"
    )]
    pub siblings: Vec<Place>,

    /// Where other loaders may ask this one for modules; nowhere by default.
    #[arg(long, env = "PORTCULLIS_SIBLINGS_ADDRESS", value_name = "ADDRESS", requires = "siblings_tls_dir")]
    pub siblings_address: Option<SocketAddr>,

    /// This pod's own address, which is left out when others are asked. May be given several times.
    #[arg(long, env = "PORTCULLIS_SIBLINGS_OWN_ADDRESS", value_name = "IP", value_delimiter = ',')]
    pub siblings_own_address: Vec<IpAddr>,

    /// A folder with tls.crt, tls.key and ca.crt, of an authority for loaders and nobody else. Read again for each connection;
    /// the files may come later.
    #[arg(long, env = "PORTCULLIS_SIBLINGS_TLS_DIR", value_name = "DIR")]
    pub siblings_tls_dir: Option<PathBuf>,

    /// The DNS name in the certificates of all loaders. [default: siblings.<policy server>.<namespace>.portcullis in a cluster,
    /// portcullis-sibling elsewhere]
    #[arg(long, env = "PORTCULLIS_SIBLINGS_NAME", value_name = "NAME")]
    pub siblings_name: Option<String>,
}

/// What the settings come to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Siblings {
    /// Whom to ask.
    pub(crate) peers: Option<Peers>,
    /// Where to be asked, and with which certificates.
    pub(crate) port: Option<(SocketAddr, PeerKeys)>,
}

impl SiblingArgs {
    /// Whom to ask and where to be asked. The certificates need not be there yet.
    pub(crate) fn siblings(&self, input: &Input, name_server: Option<SocketAddr>) -> Result<Siblings, SettingError> {
        let Some(folder) = &self.siblings_tls_dir else { return Ok(Siblings::default()) };
        let name = match (&self.siblings_name, input) {
            (Some(name), _) => name.clone(),
            (None, Input::Cluster(installation)) => {
                portcullis_kubernetes::siblings_name(&installation.policy_server, &installation.namespace)
            }
            (None, Input::Folder(_)) => PEER_NAME.to_owned(),
        };
        let keys = PeerKeys::new(folder.clone(), &name).map_err(|error| SettingError::new("--siblings-name", error))?;
        let peers = (!self.siblings.is_empty())
            .then(|| Peers::new(self.siblings.clone(), self.own(), keys.clone(), name_server));
        Ok(Siblings { peers, port: self.siblings_address.map(|address| (address, keys)) })
    }

    /// Where this loader itself answers.
    fn own(&self) -> BTreeSet<SocketAddr> {
        let Some(address) = self.siblings_address else { return BTreeSet::new() };
        self.siblings_own_address.iter().map(|ip| SocketAddr::new(*ip, address.port())).chain([address]).collect()
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
        .route("/v1/signatures/{digest}", get(signatures))
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
    // Without certificates there is nobody to talk to; the log says so already.
    let Ok(Some(tls)) = blocking(move || keys.tls()).await else { return };
    let handshake = TlsAcceptor::from(tls.server).accept(stream);
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

/// What proves who signed a module, by the digest of the module.
async fn signatures(State(shelf): State<Arc<Shelf>>, Path(digest): Path<String>) -> Response {
    give(shelf, &digest, |shelf, digest| {
        let kept = shelf.volume.signed_manifests(digest);
        if kept.is_empty() { None } else { serde_json::to_vec(&kept).ok() }
    })
    .await
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::input::Directory;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        siblings: SiblingArgs,
    }

    fn siblings(args: &[&str]) -> Result<Siblings, String> {
        let args = ["portcullis-loader"].iter().chain(args);
        let only = Only::try_parse_from(args).map_err(|error| error.to_string())?;
        let folder = Input::Folder(Directory::Manifests("/policies".into()));
        only.siblings.siblings(&folder, None).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_is_asked_or_served_by_default_and_certificates_may_come_later() {
        let none = siblings(&[]).expect("good");
        assert!(none.peers.is_none() && none.port.is_none());
        let both = ["--siblings", "a.svc:8444,10.0.0.1:8444", "--siblings-address", "0.0.0.0:8444"];
        let both = siblings(&[&both[..], &["--siblings-tls-dir", "/nowhere/yet"]].concat()).expect("good");
        assert!(both.peers.is_some() && both.port.is_some_and(|(_, keys)| keys.name() == PEER_NAME));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (args, named) in [
            (&["--siblings", "a.svc", "--siblings-tls-dir", "/a"][..], "a.svc"),
            (&["--siblings", "a.svc:1"], "--siblings-tls-dir"),
            (&["--siblings-tls-dir", "/a", "--siblings-name", "a b"], "--siblings-name"),
        ] {
            let error = siblings(args).expect_err(named);
            assert!(error.contains(named), "{error}");
        }
    }
}
