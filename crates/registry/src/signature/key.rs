//! Public keys of signers.

use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA256, UnparsedPublicKey, VerificationAlgorithm,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_PKCS1_RSAENCRYPTION, OID_SIG_ED25519,
};
use x509_parser::parse_x509_certificate;
use x509_parser::prelude::{FromDer as _, SubjectPublicKeyInfo};

/// Largest RSA key, in bits. Neither cosign nor Kubewarden takes a larger one, and each check takes longer the larger the key is.
const MAX_RSA: usize = 4096;

/// A key that signatures are checked with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    kind: Kind,
    /// The key in ring's form: a point, or the two numbers of RSA.
    bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    P256,
    P384,
    Ed25519,
    Rsa {
        /// The length of its signatures, in bytes.
        signature: usize,
    },
}

/// A text that is not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It is not PEM, or damaged.
    #[error("the key is not PEM of a public key")]
    NotPem,
    /// This kind of key is not supported.
    #[error("the key has an unsupported type: want ECDSA P-256 or P-384, Ed25519, or RSA")]
    Kind,
    /// It is a larger RSA key than is supported.
    #[error("the RSA key has more than {MAX_RSA} bits")]
    TooLarge,
}

impl PublicKey {
    /// Reads PEM (`BEGIN PUBLIC KEY`).
    ///
    /// # Errors
    /// When it is not a key, or not one of a known kind.
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let der = SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes()).map_err(|_| KeyError::NotPem)?;
        Self::from_der(der.as_ref())
    }

    /// Reads PEM of a key, or of a certificate with a key.
    ///
    /// # Errors
    /// When it is neither, or the kind of key is not known.
    pub(super) fn of_holder(pem: &str) -> Result<Self, KeyError> {
        let Ok(certificate) = CertificateDer::from_pem_slice(pem.as_bytes()) else { return Self::from_pem(pem) };
        let (_, certificate) = parse_x509_certificate(&certificate).map_err(|_| KeyError::NotPem)?;
        Self::from_der(certificate.public_key().raw)
    }

    /// Reads a key in DER.
    ///
    /// # Errors
    /// When it is not a key, or not one of a known kind.
    pub(super) fn from_der(der: &[u8]) -> Result<Self, KeyError> {
        let (rest, info) = SubjectPublicKeyInfo::from_der(der).map_err(|_| KeyError::NotPem)?;
        if !rest.is_empty() {
            return Err(KeyError::NotPem);
        }
        let algorithm = &info.algorithm.algorithm;
        let curve = info.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
        let kind = if *algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY && curve == Some(OID_EC_P256) {
            Kind::P256
        } else if *algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY && curve == Some(OID_NIST_EC_P384) {
            Kind::P384
        } else if *algorithm == OID_SIG_ED25519 {
            Kind::Ed25519
        } else if *algorithm == OID_PKCS1_RSAENCRYPTION {
            rsa(&info)?
        } else {
            return Err(KeyError::Kind);
        };
        Ok(Self { kind, bytes: info.subject_public_key.data.to_vec() })
    }

    /// Whether this key can have made `signature`, as far as its length shows. Costs nothing, unlike [`Self::has_signed`].
    pub(super) fn may_have_made(&self, signature: &[u8]) -> bool {
        let length = signature.len();
        match self.kind {
            // Two numbers below the order of the curve, in DER.
            Kind::P256 => (8..=72).contains(&length),
            Kind::P384 => (8..=104).contains(&length),
            Kind::Ed25519 => length == 64,
            Kind::Rsa { signature } => length == signature,
        }
    }

    /// Whether this key made `signature` over `message`.
    pub fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        if !self.may_have_made(signature) {
            return false;
        }
        let algorithms: &[&'static dyn VerificationAlgorithm] = match self.kind {
            Kind::P256 => &[&ECDSA_P256_SHA256_ASN1],
            Kind::P384 => &[&ECDSA_P384_SHA384_ASN1, &ECDSA_P384_SHA256_ASN1],
            Kind::Ed25519 => &[&ED25519],
            Kind::Rsa { .. } => &[&RSA_PKCS1_2048_8192_SHA256, &RSA_PSS_2048_8192_SHA256],
        };
        let checks = |algorithm: &&'static dyn VerificationAlgorithm| {
            UnparsedPublicKey::new(*algorithm, &self.bytes).verify(message, signature).is_ok()
        };
        algorithms.iter().any(checks)
    }
}

fn rsa(info: &SubjectPublicKeyInfo<'_>) -> Result<Kind, KeyError> {
    let Ok(x509_parser::public_key::PublicKey::RSA(key)) = info.parsed() else { return Err(KeyError::NotPem) };
    let zeros = key.modulus.iter().take_while(|byte| **byte == 0).count();
    let signature = key.modulus.len() - zeros;
    if signature > MAX_RSA / 8 { Err(KeyError::TooLarge) } else { Ok(Kind::Rsa { signature }) }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};

    use super::*;

    #[test]
    fn what_a_key_signed_is_known_and_nothing_else() {
        let pair = rcgen::KeyPair::generate().expect("a key");
        let other = rcgen::KeyPair::generate().expect("a key");
        let key = |pair: &rcgen::KeyPair| PublicKey::from_pem(&pair.public_key_pem()).expect("a key");
        let random = SystemRandom::new();
        let signer = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &pair.serialize_der(), &random);
        let signature = signer.expect("a key").sign(&random, b"message").expect("signs");
        assert!(key(&pair).has_signed(b"message", signature.as_ref()));
        assert!(!key(&pair).has_signed(b"another", signature.as_ref()));
        assert!(!key(&other).has_signed(b"message", signature.as_ref()));
        assert!(!key(&pair).has_signed(b"message", b""));
    }

    /// A text as `BEGIN PUBLIC KEY` of an RSA key whose modulus has this many bytes.
    fn rsa_pem(modulus: usize) -> String {
        let der = |tag: u8, content: Vec<u8>| {
            let length = u16::try_from(content.len()).expect("is short").to_be_bytes();
            [vec![tag, 0x82, length[0], length[1]], content].concat()
        };
        let number = der(2, [vec![0, 0xff], vec![0xff; modulus - 1]].concat());
        let key = der(0x30, [number, vec![2, 3, 1, 0, 1]].concat());
        let algorithm = vec![0x30, 13, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 1, 5, 0];
        let whole = der(0x30, [algorithm, der(3, [vec![0], key].concat())].concat());
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(whole))
    }

    #[test]
    fn an_rsa_key_is_not_asked_about_signatures_of_another_length_nor_too_large() {
        let key = PublicKey::from_pem(&rsa_pem(512)).expect("a key of 4096 bits");
        assert!(key.may_have_made(&[1; 512]) && !key.may_have_made(&[1; 511]) && !key.may_have_made(&[1; 1024]));
        assert!(PublicKey::from_pem(&rsa_pem(256)).expect("a key").may_have_made(&[1; 256]));
        assert_eq!(PublicKey::from_pem(&rsa_pem(513)), Err(KeyError::TooLarge));
        assert_eq!(PublicKey::from_pem(&rsa_pem(1024)), Err(KeyError::TooLarge));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for pem in ["", "key", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"] {
            assert_eq!(PublicKey::from_pem(pem), Err(KeyError::NotPem), "{pem}");
        }
        let private = rcgen::KeyPair::generate().expect("a key").serialize_pem();
        assert_eq!(PublicKey::from_pem(&private), Err(KeyError::NotPem));
    }
}
