//! Modules and manifests from the loaders beside this one, by digest, over mutual TLS.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use portcullis_contract::{Digest, Reason};
use portcullis_process::files;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use url::Url;

use crate::{FetchError, Receive, Web, client};

/// The name in the certificate of every loader.
pub const PEER_NAME: &str = "portcullis-sibling";
/// Largest file of keys and certificates, in bytes.
const LARGEST: u64 = 1 << 20;
/// Longest time for a connection, and to the head of an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The folder with `tls.crt`, `tls.key` and `ca.crt`: one authority for loaders and nobody else. Read again for each connection.
#[derive(Debug, Clone)]
pub struct PeerKeys(PathBuf);

/// Other loaders.
#[derive(Debug, Clone)]
pub struct Peers {
    addresses: Vec<SocketAddr>,
    keys: PeerKeys,
}

impl PeerKeys {
    /// The files of this folder.
    pub fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// The side that is asked: who asks must have a certificate of the same authority.
    ///
    /// # Errors
    /// The file that cannot be used, and why.
    pub fn server(&self) -> Result<ServerConfig, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()?), Arc::clone(&provider)).build();
        let verifier = verifier.map_err(|error| format!("ca.crt: {error}"))?;
        let (chain, key) = self.identity()?;
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| error.to_string())?.with_client_cert_verifier(verifier);
        builder.with_single_cert(chain, key).map_err(|error| format!("tls.crt: {error}"))
    }

    fn client(&self) -> Result<ClientConfig, String> {
        let (chain, key) = self.identity()?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| error.to_string())?.with_root_certificates(self.roots()?);
        builder.with_client_auth_cert(chain, key).map_err(|error| format!("tls.crt: {error}"))
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates("ca.crt")? {
            roots.add(certificate).map_err(|error| format!("ca.crt: {error}"))?;
        }
        Ok(roots)
    }

    fn identity(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
        let key =
            PrivateKeyDer::from_pem_slice(&self.read("tls.key")?).map_err(|_| "tls.key: it holds no key".to_owned())?;
        Ok((self.certificates("tls.crt")?, key))
    }

    fn certificates(&self, name: &str) -> Result<Vec<CertificateDer<'static>>, String> {
        let pem = self.read(name)?;
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        match certificates {
            Ok(certificates) if !certificates.is_empty() => Ok(certificates),
            _ => Err(format!("{name}: it holds no certificate")),
        }
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, String> {
        let path = self.0.join(name);
        let failed = |problem: String| format!("{}: {problem}", path.display());
        // Mounted secrets are symbolic links.
        let real = path.canonicalize().map_err(|error| failed(error.kind().to_string()))?;
        files::read_regular(&real, LARGEST).map_err(|error| failed(error.source.kind().to_string()))
    }
}

impl Peers {
    /// The loaders at these addresses.
    pub fn new(addresses: Vec<SocketAddr>, keys: PeerKeys) -> Self {
        Self { addresses, keys }
    }

    /// Brings the bytes with a digest from the first loader that has them. `kind` is `modules` or `manifests`; `receive` makes a
    /// receiver for one attempt. The caller checks the digest, as he would anybody's.
    ///
    /// # Errors
    /// What the last one said. With nobody to ask, `NotFound`.
    pub async fn fetch<R: Receive>(
        &self,
        web: &Web,
        kind: &str,
        digest: &Digest,
        receive: impl Fn() -> Result<R, FetchError>,
    ) -> Result<R, FetchError> {
        let mut last = FetchError::new(Reason::NotFound, "no other loader is known");
        for &address in &self.addresses {
            match self.ask(web, address, &format!("/v1/{kind}/{digest}"), receive()?).await {
                Ok(received) => return Ok(received),
                Err(error) => {
                    tracing::debug!(%address, %error, "another loader does not help");
                    last = error;
                }
            }
        }
        Err(last)
    }

    async fn ask<R: Receive>(
        &self,
        web: &Web,
        address: SocketAddr,
        path: &str,
        mut receive: R,
    ) -> Result<R, FetchError> {
        let unusable = |text: String| FetchError::new(Reason::TLSFailed, format!("--siblings-tls-dir: {text}"));
        let builder = reqwest::Client::builder()
            .tls_backend_preconfigured(self.keys.client().map_err(unusable)?)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(PATIENCE)
            .resolve(PEER_NAME, address);
        let sibling = builder.build().map_err(|error| unusable(error.to_string()))?;
        let url = Url::parse(&format!("https://{PEER_NAME}:{}{path}", address.port()));
        let url = url.map_err(|error| unusable(error.to_string()))?;
        let host = address.to_string();
        let answer = tokio::time::timeout(PATIENCE, sibling.get(url).send()).await;
        let answer = answer.map_err(|_| client::slow(&host, "no answer", PATIENCE))?;
        let answer = answer.map_err(|error| client::failed(&host, error, false, false))?;
        if !answer.status().is_success() {
            return Err(client::refused(&host, answer.status(), answer.headers()));
        }
        web.in_time(&host, web.body(&host, answer, &mut receive)).await?;
        Ok(receive)
    }
}

/// Whether a folder has what both sides need.
///
/// # Errors
/// The file that cannot be used, and why.
pub fn check_peer_keys(folder: &Path) -> Result<(), String> {
    let keys = PeerKeys::new(folder.to_owned());
    keys.server()?;
    keys.client().map(drop)
}
