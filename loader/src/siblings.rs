//! Serving the loaders beside this one: modules, manifests and signatures by digest, over mutual TLS.
//!
//! Nothing else is served: no list, no artifact, no policy. The loader that asks checks the answer like that of any other source.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::StatusCode;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use portcullis_contract::Digest;
use portcullis_process::Shutdown;
use portcullis_registry::PeerKeys;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;

use crate::jobs::blocking;
use crate::volume::Volume;

/// Connections at the same time.
const MOST: usize = 32;
/// Answers at the same time. Each is in memory as a whole, until it is sent.
const MOST_READERS: usize = 2;
/// Longest time of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Longest time of a connection.
const LONGEST: Duration = Duration::from_secs(300);

struct Served {
    volume: Arc<Volume>,
    limit: u64,
    readers: Arc<Semaphore>,
}

/// Serves until the shutdown.
pub(crate) async fn serve(listener: TcpListener, keys: PeerKeys, volume: Arc<Volume>, limit: u64, shutdown: Shutdown) {
    let served = Arc::new(Served { volume, limit, readers: Arc::new(Semaphore::new(MOST_READERS)) });
    let router = Router::new()
        .route("/v1/modules/{digest}", get(module))
        .route("/v1/manifests/{digest}", get(manifest))
        .route("/v1/signatures/{digest}", get(signatures))
        .with_state(served);
    let places = Arc::new(Semaphore::new(MOST));
    loop {
        let accepted = tokio::select! {
            () = shutdown.begun() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // The process is perhaps out of file descriptors, which will be free again soon.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        // With too many connections this one is closed, and the caller asks another loader.
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
    // Without certificates no caller can be trusted. The reason was already logged.
    let Ok(Some(tls)) = blocking(move || keys.tls()).await else { return };
    let handshake = TlsAcceptor::from(tls.server).accept(stream);
    let stream = match tokio::time::timeout(HANDSHAKE, handshake).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "a caller is not a loader of this installation"),
        Err(_) => return,
    };
    let service = TowerToHyperService::new(router);
    // An error means that the other side hung up.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn module(State(served): State<Arc<Served>>, Path(digest): Path<String>) -> Response {
    give(served, &digest, |served, digest| {
        let bytes = portcullis_process::files::read_regular(&served.volume.module(digest), served.limit).ok()?;
        (Digest::of(&bytes) == *digest).then_some(bytes)
    })
    .await
}

async fn manifest(State(served): State<Arc<Served>>, Path(digest): Path<String>) -> Response {
    give(served, &digest, |served, digest| Some(served.volume.oci_manifest(digest)?.bytes)).await
}

/// The manifests of a module and their signatures, by the module's digest.
async fn signatures(State(served): State<Arc<Served>>, Path(digest): Path<String>) -> Response {
    give(served, &digest, |served, digest| {
        let kept = served.volume.signed_manifests(digest);
        if kept.is_empty() { None } else { serde_json::to_vec(&kept).ok() }
    })
    .await
}

/// An answer. It takes one of the [`MOST_READERS`] places from before it is read until it is sent or its connection ends; if the caller hangs
/// up during the read, until the read ends.
struct Answer {
    bytes: Vec<u8>,
    _reader: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

async fn give(
    served: Arc<Served>,
    digest: &str,
    read: impl FnOnce(&Served, &Digest) -> Option<Vec<u8>> + Send + 'static,
) -> Response {
    let Ok(digest) = digest.parse::<Digest>() else { return StatusCode::NOT_FOUND.into_response() };
    let reader = Arc::clone(&served.readers).acquire_owned().await.expect("the semaphore is never closed");
    // Reading goes on when this future is dropped, so the permit goes along.
    match blocking(move || read(&served, &digest).map(|bytes| Answer { bytes, _reader: reader })).await {
        Ok(Some(answer)) => Bytes::from_owner(answer).into_response(),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use portcullis_util::lock;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn an_answer_holds_its_place_until_it_is_sent() {
        let folder = tempfile::tempdir().expect("a folder");
        let volume = Volume::open(folder.path(), "00000000000000aa").expect("opens").expect("is free");
        let readers = Arc::new(Semaphore::new(MOST_READERS));
        let served = Arc::new(Served { volume: Arc::new(volume), limit: 1 << 20, readers });
        let digest = Digest::of(b"module").to_string();
        let ask = || give(Arc::clone(&served), &digest, |_, _| Some(vec![0; 1 << 20]));
        let mut slow = Vec::new();
        for _ in 0..MOST_READERS {
            slow.push(ask().await);
        }
        timeout(Duration::from_millis(100), ask()).await.expect_err("as many answers are in memory as may be");
        slow.pop();
        assert_eq!(ask().await.status(), StatusCode::OK);

        // Callers that have gone while their answers are read.
        slow.clear();
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        let goes_on = Arc::new(Mutex::new(goes_on));
        for _ in 0..MOST_READERS {
            let goes_on = Arc::clone(&goes_on);
            let read = move |_: &Served, _: &Digest| {
                let _ = lock(&goes_on).recv();
                Some(Vec::new())
            };
            timeout(Duration::from_millis(10), give(Arc::clone(&served), &digest, read)).await.expect_err("it is read");
        }
        timeout(Duration::from_millis(100), ask()).await.expect_err("they are still read");
        drop(go_on);
        assert_eq!(ask().await.status(), StatusCode::OK);
    }
}
