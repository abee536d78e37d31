//! Certificate and key of the admission port, read again when they change.
//!
//! The files are read once a second instead of being watched: kubelet swaps symbolic links above them, folders are replaced, and
//! reading two small files is simpler than telling all that apart.

mod client_names;
pub(crate) mod expiry;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use portcullis_contract::Digest;
use portcullis_process::Latch;
use portcullis_process::files::{FileError, read_regular};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::http::tls::client_names::only_named;
use crate::http::tls::expiry::Expiry;
use crate::metrics::Metrics;

/// How often the files are read.
const POLL: Duration = Duration::from_secs(1);
/// The largest file, in bytes.
const LARGEST: u64 = 1 << 20;

/// Where the files are.
#[derive(Debug, Clone)]
pub(crate) struct TlsFiles {
    /// The folder with `tls.crt`, which may be a chain, and `tls.key`.
    pub dir: PathBuf,
    /// The authorities of client certificates; with them, every client needs a certificate.
    pub client_ca: Option<PathBuf>,
    /// Names of clients that may send requests; if empty, any client with a certificate of these authorities may.
    pub client_names: Vec<String>,
}

/// The certificate that the port uses.
pub(crate) struct Certificates {
    files: TlsFiles,
    current: ArcSwapOption<ServerConfig>,
}

/// Why certificate and key cannot be used.
#[derive(Debug, thiserror::Error)]
enum TlsError {
    /// A file is missing or cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file is not PEM, or lacks what it should contain.
    #[error("failed to read {what} in {}: {source}", path.display())]
    Pem { what: &'static str, path: PathBuf, source: rustls::pki_types::pem::Error },
    /// The certificate cannot be decoded.
    #[error("failed to decode the certificate in {}", path.display())]
    Certificate { path: PathBuf },
    /// Key and certificate do not belong together, or are of a kind that is not supported.
    #[error("failed to use {} and tls.key together: {source}", path.display())]
    Pair { path: PathBuf, source: rustls::Error },
    /// The authority cannot be used.
    #[error("failed to use the certificates in {}: {problem}", path.display())]
    ClientCa { path: PathBuf, problem: String },
}

/// The files' bytes.
struct Read {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// A certificate and key that were validated.
struct Pair {
    config: Arc<ServerConfig>,
    /// When the certificate expires, in seconds since 1970.
    not_after: i64,
}

impl Certificates {
    /// The certificate of these files, which are not read yet.
    pub(crate) fn new(files: TlsFiles) -> Arc<Self> {
        Arc::new(Self { files, current: ArcSwapOption::empty() })
    }

    /// The configuration for a new connection; none before the first good pair.
    pub(crate) fn current(&self) -> Option<Arc<ServerConfig>> {
        self.current.load_full()
    }

    /// Keeps the pair up to date, on a thread of its own since files may block. `latch` is released with the first good
    /// one; a broken pair leaves the old one in use.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(crate) fn follow(self: &Arc<Self>, latch: Latch, metrics: Metrics, expiry: Expiry) -> io::Result<()> {
        let certificates = Arc::clone(self);
        std::thread::Builder::new().name("certificate".into()).spawn(move || {
            let mut following = Following { seen: Seen::default(), not_after: None, latch, metrics, expiry };
            loop {
                certificates.turn(&mut following);
                std::thread::sleep(POLL);
            }
        })?;
        Ok(())
    }

    fn turn(&self, Following { seen, not_after, latch, metrics, expiry }: &mut Following) {
        match seen.look(&self.files) {
            Look::Same => {}
            Look::Good(pair) => {
                let ends = jiff::Timestamp::from_second(pair.not_after).map(|end| end.to_string()).unwrap_or_default();
                tracing::info!(dir = %self.files.dir.display(), ends, "certificate taken");
                *not_after = Some(pair.not_after);
                expiry.set(pair.not_after);
                self.current.store(Some(pair.config));
                latch.release();
            }
            Look::Bad(error) => {
                metrics.certificate_errors.inc();
                let serving = if not_after.is_some() { "the old one stays in use" } else { "there is none yet" };
                tracing::error!(%error, serving, "failed to take a certificate");
            }
        }
        if let Some(not_after) = not_after {
            metrics.certificate_lasts(*not_after - jiff::Timestamp::now().as_second());
        }
    }
}

struct Following {
    seen: Seen,
    /// When the certificate in use expires, in seconds since 1970; none if there is none.
    not_after: Option<i64>,
    latch: Latch,
    metrics: Metrics,
    expiry: Expiry,
}

/// The last states of the files, so that each is judged once.
#[derive(Default)]
struct Seen {
    judged: Option<Digest>,
    broken: Option<Digest>,
}

enum Look {
    Same,
    Good(Pair),
    Bad(TlsError),
}

impl Seen {
    fn look(&mut self, files: &TlsFiles) -> Look {
        let (digest, result) = match Read::files(files) {
            Ok(read) => {
                let digest = read.digest();
                if self.judged == Some(digest) {
                    return Look::Same;
                }
                (digest, read.pair(files))
            }
            Err(error) => (Digest::of(error.to_string().as_bytes()), Err(error)),
        };
        match result {
            Ok(pair) => {
                *self = Self { judged: Some(digest), broken: None };
                Look::Good(pair)
            }
            // Key and certificate may be replaced one after the other, so a pair is reported only if it is still broken at the next look.
            Err(error) if self.broken == Some(digest) && self.judged != Some(digest) => {
                self.judged = Some(digest);
                Look::Bad(error)
            }
            Err(_) => {
                self.broken = Some(digest);
                Look::Same
            }
        }
    }
}

impl Read {
    fn files(files: &TlsFiles) -> Result<Self, TlsError> {
        let client_ca = files.client_ca.as_deref().map(read).transpose()?;
        Ok(Self { certificate: read(&files.dir.join("tls.crt"))?, key: read(&files.dir.join("tls.key"))?, client_ca })
    }

    fn digest(&self) -> Digest {
        let mut hasher = portcullis_contract::Hasher::default();
        for part in [&self.certificate, &self.key, self.client_ca.as_deref().unwrap_or_default()] {
            hasher.update(Digest::of(part).hex().as_bytes());
        }
        hasher.finish()
    }

    fn pair(&self, files: &TlsFiles) -> Result<Pair, TlsError> {
        let (certificate, key) = (files.dir.join("tls.crt"), files.dir.join("tls.key"));
        let chain = pem_certificates(&self.certificate, &certificate)?;
        let not_after =
            chain.first().and_then(|first| Some(X509Certificate::from_der(first).ok()?.1.validity().not_after));
        let not_after = not_after.ok_or_else(|| TlsError::Certificate { path: certificate.clone() })?.timestamp();
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|source| TlsError::Pem {
            what: "a private key",
            path: key,
            source,
        })?;
        let builder = ServerConfig::builder();
        let builder = match (&self.client_ca, &files.client_ca) {
            (Some(pem), Some(path)) => {
                let problem = |problem: String| TlsError::ClientCa { path: path.clone(), problem };
                let mut roots = RootCertStore::empty();
                for certificate in pem_certificates(pem, path)? {
                    roots.add(certificate).map_err(|error| problem(error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
                let verifier = verifier.map_err(|error| problem(error.to_string()))?;
                builder.with_client_cert_verifier(only_named(verifier, files.client_names.clone()))
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config =
            builder.with_single_cert(chain, key).map_err(|source| TlsError::Pair { path: certificate, source })?;
        // API servers speak nothing else to webhooks, and another protocol would be one more to attack.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Pair { config: Arc::new(config), not_after })
    }
}

/// Reads a file behind whatever links lead there.
fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let real = fs::canonicalize(path).map_err(FileError::new("find", path))?;
    read_regular(&real, LARGEST)
}

fn pem_certificates(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |source| TlsError::Pem { what: "a certificate", path: path.to_owned(), source };
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(failed)?;
    if certificates.is_empty() {
        return Err(failed(rustls::pki_types::pem::Error::NoItemsFound));
    }
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, certificate: &str, key: &str) {
        fs::write(dir.join("tls.crt"), certificate).expect("writes");
        fs::write(dir.join("tls.key"), key).expect("writes");
    }

    fn pair(name: &str) -> (String, String) {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate");
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    fn seen(seen: &mut Seen, files: &TlsFiles) -> &'static str {
        match seen.look(files) {
            Look::Same => "same",
            Look::Good(_) => "good",
            Look::Bad(_) => "bad",
        }
    }

    #[test]
    fn a_broken_pair_is_told_once_and_a_mended_one_is_taken() {
        portcullis_process::install_crypto();
        let folder = tempfile::tempdir().expect("a folder");
        let files = TlsFiles { dir: folder.path().to_owned(), client_ca: None, client_names: Vec::new() };
        let mut state = Seen::default();
        assert_eq!(["same", "bad", "same"], [(); 3].map(|()| seen(&mut state, &files)), "no file");
        let (first, second) = (pair("a.example"), pair("b.example"));
        write(folder.path(), &first.0, &first.1);
        assert_eq!(["good", "same"], [(); 2].map(|()| seen(&mut state, &files)));
        write(folder.path(), &second.0, &first.1);
        assert_eq!(["same", "bad", "same"], [(); 3].map(|()| seen(&mut state, &files)), "key of another");
        write(folder.path(), "noise", &first.1);
        assert_eq!(["same", "bad", "same"], [(); 3].map(|()| seen(&mut state, &files)), "no certificate");
        write(folder.path(), &second.0, &second.1);
        assert_eq!(["good", "same"], [(); 2].map(|()| seen(&mut state, &files)));
    }

    #[test]
    fn a_pair_that_comes_in_two_steps_is_not_an_error() {
        portcullis_process::install_crypto();
        let folder = tempfile::tempdir().expect("a folder");
        let files = TlsFiles { dir: folder.path().to_owned(), client_ca: None, client_names: Vec::new() };
        let mut state = Seen::default();
        let (first, second) = (pair("a.example"), pair("b.example"));
        write(folder.path(), &first.0, &first.1);
        assert_eq!(seen(&mut state, &files), "good");
        write(folder.path(), &second.0, &first.1);
        assert_eq!(seen(&mut state, &files), "same");
        write(folder.path(), &second.0, &second.1);
        assert_eq!(seen(&mut state, &files), "good");
    }

    #[test]
    fn the_time_left_is_shown_once_there_is_a_certificate() {
        portcullis_process::install_crypto();
        let folder = tempfile::tempdir().expect("a folder");
        let files = TlsFiles { dir: folder.path().to_owned(), client_ca: None, client_names: Vec::new() };
        let certificates = Certificates::new(files);
        let metrics = Metrics::new().expect("registers");
        let mut following = Following {
            seen: Seen::default(),
            not_after: None,
            latch: Latch::default(),
            metrics: metrics.clone(),
            expiry: Expiry::default(),
        };
        let left = || {
            let text = prometheus::TextEncoder::new().encode_to_string(&metrics.registry.gather()).expect("encodes");
            let mut lines = text.lines().filter_map(|line| line.strip_prefix("portcullis_certificate_seconds_left "));
            lines.next().map(|seconds| seconds.parse::<i64>().expect("a number"))
        };
        for _ in 0..2 {
            certificates.turn(&mut following);
            assert_eq!(left(), None, "none is not one that has expired");
        }
        let (certificate, key) = pair("a.example");
        write(folder.path(), &certificate, &key);
        certificates.turn(&mut following);
        assert!(left().is_some_and(|seconds| seconds > 0), "{:?}", left());
    }

    #[test]
    fn links_are_followed_as_kubelet_makes_them() {
        portcullis_process::install_crypto();
        let folder = tempfile::tempdir().expect("a folder");
        let (certificate, key) = pair("a.example");
        let data = folder.path().join("..2026");
        fs::create_dir(&data).expect("makes");
        write(&data, &certificate, &key);
        std::os::unix::fs::symlink("..2026", folder.path().join("..data")).expect("links");
        for name in ["tls.crt", "tls.key"] {
            std::os::unix::fs::symlink(format!("..data/{name}"), folder.path().join(name)).expect("links");
        }
        let files = TlsFiles {
            dir: folder.path().to_owned(),
            client_ca: Some(data.join("tls.crt")),
            client_names: vec!["a".into()],
        };
        assert_eq!(seen(&mut Seen::default(), &files), "good");
    }
}
