//! Fetches modules, manifests and signatures from other loaders, by digest, over mutual TLS.

mod address;
mod keys;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis_contract::{Digest, Reason, Stage};
use url::Url;

pub use self::address::{PeerAddress, PeerAddressError};
pub use self::keys::{PeerKeys, PeerNameError, PeerTls};
use crate::resolve::GuardedResolver;
use crate::{FetchError, Receive, Web, client};

/// The name in the certificate of every loader, unless another one is set.
pub const PEER_NAME: &str = "portcullis-sibling";
/// Longest time for a connection, and to the head of an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What loaders have for one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerContent {
    /// A module, by its digest.
    Module,
    /// A manifest of an artifact, by its digest.
    Manifest,
    /// The manifests that name a module, and their signatures, by the digest of the module.
    Signatures,
}

impl PeerContent {
    fn path(self) -> &'static str {
        match self {
            Self::Module => "modules",
            Self::Manifest => "manifests",
            Self::Signatures => "signatures",
        }
    }
}

/// Other loaders.
#[derive(Clone)]
pub struct Peers {
    places: Vec<PeerAddress>,
    own: BTreeSet<SocketAddr>,
    keys: PeerKeys,
    resolver: GuardedResolver,
}

impl Peers {
    /// The loaders at these places except this one, which is at `own`. Names are looked up each time, by `name_server`
    /// or the system's name server.
    pub fn new(
        places: Vec<PeerAddress>,
        own: BTreeSet<SocketAddr>,
        keys: PeerKeys,
        name_server: Option<SocketAddr>,
    ) -> Self {
        let names = places.iter().filter_map(|place| match place {
            PeerAddress::Name { host, .. } => Some(host.clone()),
            PeerAddress::Address(_) => None,
        });
        // The installation itself chose these names, so they may lead to private addresses.
        let resolver = GuardedResolver::fresh(names.collect(), name_server);
        Self { places, own, keys, resolver }
    }

    /// Fetches the content of a digest from the first loader that has it, within the time limit of one download, for which the time of
    /// writes does not count. `receive` makes a receiver for one attempt. The caller checks the digest, as with any other source.
    ///
    /// # Errors
    /// The error of the last loader; `NotFound` if there is no loader to ask. A failure of the receiver's own volume, which no other loader
    /// can help with, ends the search.
    pub async fn fetch<R: Receive>(
        &self,
        web: &Web,
        content: PeerContent,
        digest: &Digest,
        receive: impl Fn() -> Result<R, FetchError>,
    ) -> Result<R, FetchError> {
        let total = web.settings().total;
        let slow = || client::slow("other loaders", "no answer", total);
        let mut last = FetchError::new(Reason::NotFound, "no other loader is known");
        let path = format!("/v1/{}/{digest}", content.path());
        let begun = Instant::now();
        let others = tokio::time::timeout(total, self.others()).await.map_err(|_| slow())?;
        let mut left = total.saturating_sub(begun.elapsed());
        for address in others {
            let receiver = receive()?;
            let (asked, written) = (Instant::now(), receiver.write_time());
            let ask = self.ask(web, address, &path, receiver);
            let answer = written.timeout(left, ask).await.ok_or_else(slow)?;
            left = left.saturating_sub(asked.elapsed().saturating_sub(written.so_far()));
            match answer {
                Ok(received) => {
                    tracing::info!(%address, %digest, kind = content.path(), "another loader helped");
                    return Ok(received);
                }
                Err(error) if error.reason.stage() == Stage::Volume => return Err(error),
                Err(error) => {
                    tracing::debug!(%address, %error, "another loader does not help");
                    last = error;
                }
            }
        }
        Err(last)
    }

    /// The loaders to ask now.
    async fn others(&self) -> Vec<SocketAddr> {
        let mut found = Vec::new();
        for place in &self.places {
            match place {
                PeerAddress::Address(address) => found.push(*address),
                PeerAddress::Name { host, port } => match self.resolver.look_up(host).await {
                    Ok(addresses) => found.extend(addresses.into_iter().map(|one| SocketAddr::new(one.ip(), *port))),
                    Err(error) => tracing::debug!(host, %error, "the name of other loaders does not resolve"),
                },
            }
        }
        address::choose(found, &self.own, RandomState::new().hash_one(0))
    }

    async fn ask<R: Receive>(
        &self,
        web: &Web,
        address: SocketAddr,
        path: &str,
        mut receive: R,
    ) -> Result<R, FetchError> {
        let unusable = |text: String| FetchError::new(Reason::TLSFailed, format!("--siblings-tls-dir: {text}"));
        let tls = self.keys.tls().ok_or_else(|| unusable("there are no certificates that can be used".to_owned()))?;
        let name = self.keys.name();
        let builder = reqwest::Client::builder()
            .tls_backend_preconfigured(Arc::unwrap_or_clone(tls.client))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(PATIENCE)
            .resolve(&name, address);
        let sibling = builder.build().map_err(|error| unusable(error.to_string()))?;
        let url = Url::parse(&format!("https://{name}:{}{path}", address.port()));
        let url = url.map_err(|error| unusable(error.to_string()))?;
        let host = address.to_string();
        let answer = tokio::time::timeout(PATIENCE, sibling.get(url).send()).await;
        let answer = answer.map_err(|_| client::slow(&host, "no answer", PATIENCE))?;
        let answer = answer.map_err(|error| client::failed(&host, error, false, false))?;
        if !answer.status().is_success() {
            return Err(client::refused(&host, answer.status(), answer.headers()));
        }
        web.write_in_time(&host, &receive.write_time(), web.body(&host, answer, &mut receive)).await?;
        Ok(receive)
    }
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers").field("places", &self.places).field("own", &self.own).finish_non_exhaustive()
    }
}
