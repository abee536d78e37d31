//! How many certificates a TLS client may show, and how large they may be.
//!
//! A server verifies them as soon as they arrive, before the client proves that it has their key: anybody who can connect can have this work
//! done. At every step of its search for a path, webpki reads all certificates that were sent, and it limits only the steps, so that 64 KiB of
//! them, the most that rustls takes, can hold a thread for seconds.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::{CertificateError, Error, OtherError};

use crate::MAX_CERTIFICATE;

/// The most certificates that a client may show beside its own: an authority signs clients itself, or by one or two more. In any order, these
/// are at most 64 steps.
pub const MAX_INTERMEDIATES: usize = 4;

/// Why the certificates of a client are not even verified.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientCertificatesError {
    /// The client shows too many.
    #[error("the client shows {0} certificates beside its own, the limit is {MAX_INTERMEDIATES}")]
    TooMany(usize),
    /// One of them is too large.
    #[error("a certificate of the client has {0} bytes of DER, the limit is {MAX_CERTIFICATE}")]
    TooLarge(usize),
}

impl From<ClientCertificatesError> for Error {
    fn from(error: ClientCertificatesError) -> Self {
        Self::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
    }
}

/// Refuses certificates of a client that take long to verify. Call it before they are verified.
///
/// # Errors
/// When they are too many, or one is too large.
pub fn check_client_certificates(
    own: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<(), ClientCertificatesError> {
    if intermediates.len() > MAX_INTERMEDIATES {
        return Err(ClientCertificatesError::TooMany(intermediates.len()));
    }
    let mut sizes = std::iter::once(own).chain(intermediates).map(|certificate| certificate.len());
    sizes.find(|bytes| *bytes > MAX_CERTIFICATE).map_or(Ok(()), |bytes| Err(ClientCertificatesError::TooLarge(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_or_large_certificates_are_refused_whoever_has_them() {
        let of = |bytes: usize| CertificateDer::from(vec![0; bytes]);
        let check = |own: usize, intermediates: &[usize]| {
            let intermediates: Vec<_> = intermediates.iter().map(|bytes| of(*bytes)).collect();
            check_client_certificates(&of(own), &intermediates)
        };
        let large = MAX_CERTIFICATE + 1;
        assert_eq!(check(MAX_CERTIFICATE, &[MAX_CERTIFICATE; MAX_INTERMEDIATES]), Ok(()));
        assert_eq!(check(1, &[1; MAX_INTERMEDIATES + 1]), Err(ClientCertificatesError::TooMany(MAX_INTERMEDIATES + 1)));
        assert_eq!(check(large, &[]), Err(ClientCertificatesError::TooLarge(large)));
        assert_eq!(check(1, &[1, large]), Err(ClientCertificatesError::TooLarge(large)));
    }
}
