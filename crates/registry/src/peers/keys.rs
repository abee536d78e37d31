//! The certificates by which loaders recognise each other, read again whenever their files change.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use portcullis_certificate::client::check_client_certificates;
use portcullis_contract::{Digest, Hasher};
use portcullis_process::files;
use portcullis_util::lock;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme};

/// Largest file of keys and certificates, in bytes.
const LARGEST: u64 = 1 << 20;
/// The files, all in one folder.
const FILES: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];

/// A folder with `tls.crt`, `tls.key` and `ca.crt`: one authority that serves loaders only, and one name in all their
/// certificates. The files may come later, and change; while they cannot be used, their last usable content stays in
/// use.
#[derive(Clone)]
pub struct PeerKeys {
    folder: PathBuf,
    name: ServerName<'static>,
    known: Arc<Mutex<Known>>,
}

/// A name that cannot be in a certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a DNS name: want for instance {example}", example = super::PEER_NAME)]
pub struct PeerNameError(String);

/// Files that do not make usable certificates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum KeysError {
    #[error("{}: {kind}", path.display())]
    Unreadable { path: PathBuf, kind: io::ErrorKind },
    #[error("{0}: it holds no certificate")]
    NoCertificate(&'static str),
    #[error("tls.key: it holds no key")]
    NoKey,
    /// The files were read, but TLS cannot use their content; `files` are their names.
    #[error("{files}: {problem}")]
    Unusable { files: &'static str, problem: String },
}

impl KeysError {
    fn unusable<E: fmt::Display>(files: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::Unusable { files, problem: error.to_string() }
    }
}

/// The TLS configurations for both sides of a connection.
#[derive(Clone)]
pub struct PeerTls {
    /// For the loader that is asked: a caller must have a certificate of the same authority, with the same name.
    pub server: Arc<ServerConfig>,
    /// For the loader that asks.
    pub client: Arc<ClientConfig>,
}

/// The content that was read last.
#[derive(Default)]
struct Known {
    /// The digest of the bytes from which `tls` was made.
    print: Option<Digest>,
    tls: Option<PeerTls>,
    /// The problem that was logged last.
    told: Option<KeysError>,
}

impl PeerKeys {
    /// The files of this folder, which need not exist yet. `name` is the DNS name in the certificate of every loader.
    ///
    /// # Errors
    /// When that is not a DNS name.
    pub fn new(folder: PathBuf, name: &str) -> Result<Self, PeerNameError> {
        let server = ServerName::try_from(name.to_ascii_lowercase());
        match server {
            Ok(server @ ServerName::DnsName(_)) => Ok(Self { folder, name: server, known: Arc::default() }),
            _ => Err(PeerNameError(name.to_owned())),
        }
    }

    /// The name in the certificate of every loader.
    pub fn name(&self) -> String {
        self.name.to_str().into_owned()
    }

    /// The TLS configurations for the files as they are now. `None` until there have been usable files; the log says
    /// why.
    pub fn tls(&self) -> Option<PeerTls> {
        // If a file was swapped in the meantime, the files do not match; the second try reads all of the new ones.
        let read = read(&self.folder).or_else(|_| read(&self.folder));
        let mut known = lock(&self.known);
        let problem = match read {
            Ok((print, _)) if known.print == Some(print) => None,
            Ok((print, files)) => match make(&files, &self.name) {
                Ok(tls) => {
                    tracing::info!(folder = %self.folder.display(), "certificates for other loaders are in use");
                    (known.print, known.tls) = (Some(print), Some(tls));
                    None
                }
                Err(problem) => Some(problem),
            },
            Err(problem) => Some(problem),
        };
        if known.told != problem {
            if let Some(problem) = &problem {
                let keeps = known.tls.is_some();
                tracing::warn!(error = %problem, keeps, "the certificates for other loaders cannot be used (--siblings-tls-dir)");
            }
            known.told = problem;
        }
        known.tls.clone()
    }
}

impl fmt::Debug for PeerKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerKeys").field("folder", &self.folder).field("name", &self.name).finish_non_exhaustive()
    }
}

/// The bytes of the files and a digest of them all.
fn read(folder: &Path) -> Result<(Digest, [Vec<u8>; 3]), KeysError> {
    // A mounted Secret is a folder of links through `..data`, which is swapped as a whole. So all files are read from
    // the target of that link.
    let data = folder.join("..data");
    let folder = data.canonicalize().or_else(|_| folder.canonicalize());
    let folder = folder.map_err(|error| KeysError::Unreadable { path: data.with_file_name(""), kind: error.kind() })?;
    let mut hasher = Hasher::default();
    let mut files = FILES.map(|_| Vec::new());
    for (name, bytes) in FILES.iter().zip(&mut files) {
        let path = folder.join(name);
        let failed = |error: &io::Error| KeysError::Unreadable { path: path.clone(), kind: error.kind() };
        let real = path.canonicalize().map_err(|error| failed(&error))?;
        *bytes = files::read_regular(&real, LARGEST).map_err(|error| failed(&error.source))?;
        hasher.update(&bytes.len().to_le_bytes());
        hasher.update(bytes);
    }
    Ok((hasher.finish(), files))
}

fn make([certificate, key, authorities]: &[Vec<u8>; 3], name: &ServerName<'static>) -> Result<PeerTls, KeysError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for authority in certificates("ca.crt", authorities)? {
        roots.add(authority).map_err(KeysError::unusable("ca.crt"))?;
    }
    let roots = Arc::new(roots);
    let chain = certificates("tls.crt", certificate)?;
    let key = || PrivateKeyDer::from_pem_slice(key).map_err(|_| KeysError::NoKey);
    let pair = "tls.crt and tls.key";

    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
    let inner = verifier.map_err(KeysError::unusable("ca.crt"))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = builder.map_err(KeysError::unusable(pair))?;
    let builder = builder.with_client_cert_verifier(Arc::new(Named { inner, name: name.clone() }));
    let server = builder.with_single_cert(chain.clone(), key()?).map_err(KeysError::unusable(pair))?;

    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(KeysError::unusable(pair))?.with_root_certificates(roots);
    let client = builder.with_client_auth_cert(chain, key()?).map_err(KeysError::unusable(pair))?;
    Ok(PeerTls { server: Arc::new(server), client: Arc::new(client) })
}

fn certificates(file: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, KeysError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(KeysError::NoCertificate(file)),
    }
}

/// Accepts clients whose certificate has this name, and is issued by an authority that `inner` knows. `inner` is not asked about certificates
/// that would take long.
#[derive(Debug)]
struct Named {
    inner: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl ClientCertVerifier for Named {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        check_client_certificates(end_entity, intermediates)?;
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
pub(super) mod tests;
