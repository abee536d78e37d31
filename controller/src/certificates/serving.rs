//! The serving certificate with its key.

use rcgen::{KeyPair, PublicKeyData as _};

use super::certificate::{Certificate, CertificateError};

/// What replicas show to API servers.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    /// The certificate.
    pub(crate) leaf: Certificate,
    /// Certificates between it and its authority, where others made it.
    pub(crate) chain: Vec<Certificate>,
    /// The key, as PEM. For the Secret and for nothing else.
    pub(crate) key: String,
}

/// Why a pair cannot be used. Nothing of the key is quoted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PairError {
    /// The certificate cannot be read.
    #[error("`tls.crt` {0}")]
    Certificate(#[from] CertificateError),
    /// The key cannot be read, or is of a kind that is not supported.
    #[error("`tls.key` is no private key of a supported kind")]
    Key,
    /// Key and certificate do not belong together.
    #[error("`tls.key` is not the key of the certificate in `tls.crt`")]
    OtherKey,
}

impl Pair {
    /// Reads the two texts of a Secret.
    pub(crate) fn parse(certificate: &[u8], key: &[u8]) -> Result<Self, PairError> {
        let mut chain = Certificate::parse_all(certificate)?;
        let leaf = chain.remove(0);
        let text = std::str::from_utf8(key).map_err(|_| PairError::Key)?;
        let key = KeyPair::from_pem(text).map_err(|_| PairError::Key)?;
        if key.subject_public_key_info() != leaf.public_key() {
            return Err(PairError::OtherKey);
        }
        Ok(Self { leaf, chain, key: text.to_owned() })
    }

    /// Certificate and chain, as PEM.
    pub(crate) fn certificate_pem(&self) -> String {
        std::iter::once(&self.leaf).chain(&self.chain).map(Certificate::pem).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::authority::Authority;
    use super::super::decide::tests::{now, rules};
    use super::*;

    #[test]
    fn a_pair_is_read_back_and_a_wrong_one_is_not() {
        let authority = Authority::make(&rules(), now()).expect("an authority");
        let (one, other) = (authority.issue(&rules(), now()), authority.issue(&rules(), now()));
        let (one, other) = (one.expect("a certificate"), other.expect("a certificate"));
        let parse = |certificate: &str, key: &str| Pair::parse(certificate.as_bytes(), key.as_bytes());
        assert!(parse(&one.certificate_pem(), &one.key).is_ok_and(|read| read == one));
        assert_eq!(parse(&one.certificate_pem(), &other.key).err(), Some(PairError::OtherKey));
        assert_eq!(parse(&one.certificate_pem(), "").err(), Some(PairError::Key));
        assert_eq!(parse("noise", &one.key).err(), Some(PairError::Certificate(CertificateError::Empty)));
    }
}
