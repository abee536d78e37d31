//! The trusted authorities, and the texts for a certificate that is not trusted.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;

use portcullis_contract::Reason;
use portcullis_process::files;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::FetchError;

/// Largest file of certificates, in bytes.
const MAX_CA_FILE: u64 = 4 << 20;

/// The bytes of the file of extra authorities.
///
/// # Errors
/// When it cannot be read; the text names it.
pub(crate) fn read_authorities(path: &Path) -> Result<Vec<u8>, FetchError> {
    let failed = |text: String| FetchError::new(Reason::TLSFailed, format!("--source-ca: {text}"));
    // Mounted secrets are symbolic links.
    let real = path.canonicalize().map_err(|error| failed(format!("failed to find {}: {error}", path.display())))?;
    files::read_regular(&real, MAX_CA_FILE).map_err(|error| failed(error.to_string()))
}

/// Which certificates a host may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Certificates issued by the system's authorities or by extra ones, which are PEM.
    System(Option<Vec<u8>>),
    /// Certificates issued by these authorities only.
    Only(Vec<CertificateDer<'static>>),
    /// Any certificate.
    Anybody,
}

/// The certificates of extra authorities, as PEM.
///
/// # Errors
/// When the file has no certificate, or one that cannot be used.
pub(crate) fn certificates_of(pem: &[u8]) -> Result<RootCertStore, FetchError> {
    let failed = |text: String| FetchError::new(Reason::TLSFailed, format!("--source-ca: {text}"));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| failed(format!("the file is not PEM: {error:?}")))?;
        roots.add(certificate).map_err(|error| failed(format!("a certificate cannot be used: {error}")))?;
    }
    if roots.is_empty() { Err(failed("the file holds no certificate".to_owned())) } else { Ok(roots) }
}

/// The client's TLS configuration.
///
/// # Errors
/// When the extra authorities cannot be used.
pub(crate) fn config(trust: &Trust) -> Result<ClientConfig, FetchError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| FetchError::new(Reason::TLSFailed, format!("failed to set up TLS: {error}")))?;
    let roots = match trust {
        Trust::System(extra) => system_roots(extra.as_deref())?,
        Trust::Only(authorities) => {
            let mut roots = RootCertStore::empty();
            // They were checked when they were read.
            roots.add_parsable_certificates(authorities.iter().cloned());
            roots
        }
        Trust::Anybody => {
            let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(NoVerifier(provider)));
            return Ok(builder.with_no_client_auth());
        }
    };
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn system_roots(extra: Option<&[u8]>) -> Result<RootCertStore, FetchError> {
    let mut roots = RootCertStore::empty();
    // A system without authorities is not an error until a host relies on them.
    let (_, ignored) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    tracing::debug!(roots = roots.len(), ignored, "certificate authorities of the system");
    if let Some(extra) = extra {
        roots.extend(certificates_of(extra)?.roots);
    }
    Ok(roots)
}

/// Accepts any certificate, for hosts that the installation lists as insecure.
#[derive(Debug)]
struct NoVerifier(Arc<CryptoProvider>);

impl ServerCertVerifier for NoVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The first error of this type among `error` and its causes.
pub(crate) fn find<'e, E: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // An I/O error returns the source of the error that it wraps as its own, and skips the wrapped error.
        if let Some(inner) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            next = Some(inner);
            continue;
        }
        next = error.source();
    }
    None
}

/// The cause in words.
pub(crate) fn explain(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::InvalidCertificate(error) => match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => "its certificate has expired",
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid yet"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "its certificate is for another host name"
            }
            // A bad signature is what one gets from an authority that has the name of a known one.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "its certificate is signed by an unknown authority (--source-ca adds one)"
            }
            CertificateError::Revoked => "its certificate has been revoked",
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                "its certificate is not meant for a server"
            }
            _ => "its certificate cannot be used",
        },
        rustls::Error::AlertReceived(AlertDescription::ProtocolVersion) | rustls::Error::PeerIncompatible(_) => {
            "it speaks no TLS version or cipher of today (TLS 1.2 or 1.3 is needed)"
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => "it wants a client certificate",
        rustls::Error::InvalidMessage(_) => {
            "it does not answer in TLS: is this the right port? (--allow-http-host allows plain HTTP)"
        }
        _ => "the TLS handshake failed",
    }
}
