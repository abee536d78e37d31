//! The serving certificate with its key.

use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::sign::CertifiedKey;

use super::certificate::{Certificate, CertificateError};

/// The certificate that replicas show to API servers, with its key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    /// The certificate.
    pub(crate) leaf: Certificate,
    /// Intermediate certificates, if another program made it.
    pub(crate) chain: Vec<Certificate>,
    /// The key as PEM, for the Secret only.
    pub(crate) key: String,
}

/// Why a pair cannot be used. Nothing of the key is quoted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PairError {
    /// The certificate cannot be read.
    #[error("`tls.crt` {0}")]
    Certificate(#[from] CertificateError),
    /// The key cannot be read, or its type is not supported.
    #[error("`tls.key` is not a private key of a supported type")]
    Key,
    /// Key and certificate do not belong together.
    #[error("`tls.key` is not the key of the certificate in `tls.crt`")]
    OtherKey,
}

impl Pair {
    /// Reads the two texts of a Secret.
    pub(crate) fn parse(certificate: &[u8], key: &[u8]) -> Result<Self, PairError> {
        let mut chain = Certificate::parse_all(certificate)?;
        check_key(&chain, key)?;
        let leaf = chain.remove(0);
        let key = String::from_utf8(key.to_vec()).map_err(|_| PairError::Key)?;
        Ok(Self { leaf, chain, key })
    }

    /// Certificate and chain, as PEM.
    pub(crate) fn certificate_pem(&self) -> String {
        std::iter::once(&self.leaf).chain(&self.chain).map(Certificate::pem).collect()
    }
}

/// Checks that key and certificate belong together, as a pod will. It accepts the forms of keys that a pod accepts.
pub(super) fn check_key(chain: &[Certificate], key: &[u8]) -> Result<(), PairError> {
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| PairError::Key)?;
    let chain = chain.iter().map(|certificate| certificate.der().clone()).collect();
    match CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider()) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InconsistentKeys(_)) => Err(PairError::OtherKey),
        Err(_) => Err(PairError::Key),
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::super::authority::Authority;
    use super::super::decide::tests::{now, rules};
    use super::*;

    /// A P-256 key without what PKCS #8 puts around it, as in RFC 5915.
    fn as_cert_manager_writes(pem: &str) -> String {
        const AROUND: usize = 29;
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).expect("a key");
        let text = STANDARD.encode(&key.secret_der()[AROUND..]);
        format!("-----BEGIN EC PRIVATE KEY-----\n{text}\n-----END EC PRIVATE KEY-----\n")
    }

    #[test]
    fn a_pair_is_read_back_and_a_wrong_one_is_not() {
        let authority = Authority::make(&rules(), now()).expect("an authority");
        let (one, other) = (authority.issue(&rules(), now()), authority.issue(&rules(), now()));
        let (one, other) = (one.expect("a certificate"), other.expect("a certificate"));
        let parse = |certificate: &str, key: &str| Pair::parse(certificate.as_bytes(), key.as_bytes());
        assert!(parse(&one.certificate_pem(), &one.key).is_ok_and(|read| read == one));
        assert_eq!(parse(&one.certificate_pem(), &other.key).err(), Some(PairError::OtherKey));
        assert_eq!(parse(&one.certificate_pem(), "").err(), Some(PairError::Key));
        let key = as_cert_manager_writes(&one.key);
        assert!(parse(&one.certificate_pem(), &key).is_ok_and(|read| read.key == key));
        assert_eq!(parse("noise", &one.key).err(), Some(PairError::Certificate(CertificateError::Empty)));
    }
}
