//! Whom the loader trusts, and what it says when it does not.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;

use portcullis_contract::Reason;
use portcullis_process::files;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};

use super::SourceError;

/// Largest file of certificates, in bytes.
const MAX_CA_FILE: u64 = 4 << 20;

/// The bytes of the file of extra authorities.
///
/// # Errors
/// When it cannot be read; the text names it.
pub(super) fn read_authorities(path: &Path) -> Result<Vec<u8>, SourceError> {
    let failed = |text: String| SourceError::new(Reason::TLSFailed, format!("--source-ca: {text}"));
    // Mounted secrets are symbolic links.
    let real = path.canonicalize().map_err(|error| failed(format!("failed to find {}: {error}", path.display())))?;
    files::read_regular(&real, MAX_CA_FILE).map_err(|error| failed(error.to_string()))
}

/// The system's authorities and `extra` ones, PEM.
///
/// # Errors
/// When `extra` holds no certificate.
pub(super) fn config(extra: Option<&[u8]>) -> Result<ClientConfig, SourceError> {
    let mut roots = RootCertStore::empty();
    // A system without authorities is no error as long as nobody relies on them.
    let (_, ignored) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    tracing::debug!(roots = roots.len(), ignored, "certificate authorities of the system");
    if let Some(extra) = extra {
        let failed = |text: String| SourceError::new(Reason::TLSFailed, format!("--source-ca: {text}"));
        let mut found = false;
        for certificate in CertificateDer::pem_slice_iter(extra) {
            let certificate = certificate.map_err(|error| failed(format!("the file is no PEM: {error:?}")))?;
            roots.add(certificate).map_err(|error| failed(format!("a certificate cannot be used: {error}")))?;
            found = true;
        }
        if !found {
            return Err(failed("the file holds no certificate".to_owned()));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| SourceError::new(Reason::TLSFailed, format!("failed to set up TLS: {error}")))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// The TLS error somewhere below `error`.
pub(super) fn find<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // An I/O error names the source of what it wraps as its own, and passes over what it wraps.
        if let Some(inner) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            next = Some(inner);
            continue;
        }
        next = error.source();
    }
    None
}

/// The cause in words.
pub(super) fn explain(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::InvalidCertificate(error) => match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => "its certificate has expired",
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid yet"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "its certificate is for another host name"
            }
            // A bad signature is what an authority of the same name leaves.
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
        rustls::Error::InvalidMessage(_) => "it does not answer in TLS; is this the right port?",
        _ => "the TLS handshake failed",
    }
}
