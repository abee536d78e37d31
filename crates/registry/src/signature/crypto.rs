//! The cryptography behind certificates and transparency logs: ring, as everywhere here, handed to the verifier of
//! Sigstore.
//!
//! ring cannot check a signature over a digest alone, which the verifier needs; for that the curves of RustCrypto are
//! used.

use p256::ecdsa::signature::hazmat::PrehashVerifier as _;
use ring::digest::{self, Context};
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA384_ASN1, ECDSA_P384_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, ED25519,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, UnparsedPublicKey, VerificationAlgorithm,
};
use sigstore_verify::crypto::{
    CryptoProvider, Error, HashContext, KeyAlgorithm, Result, SigningScheme, install_default_provider,
};
use sigstore_verify::types::HashAlgorithm;

/// Makes the verifier use this cryptography. Later calls do nothing.
pub(super) fn install() {
    // An error means that an earlier call has installed it: nothing else here installs one.
    let _ = install_default_provider(&Ring);
}

#[derive(Debug)]
struct Ring;

struct Hashing(Context);

impl HashContext for Hashing {
    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn finalize(self: Box<Self>) -> Vec<u8> {
        self.0.finish().as_ref().to_vec()
    }
}

impl CryptoProvider for Ring {
    fn hash(&self, algorithm: HashAlgorithm) -> Result<Box<dyn HashContext>> {
        let algorithm = match algorithm {
            HashAlgorithm::Sha2256 => &digest::SHA256,
            HashAlgorithm::Sha2384 => &digest::SHA384,
            HashAlgorithm::Sha2512 => &digest::SHA512,
            other => return Err(Error::UnsupportedAlgorithm(other.to_string())),
        };
        Ok(Box::new(Hashing(Context::new(algorithm))))
    }

    fn verify_raw(&self, scheme: SigningScheme, key: &[u8], data: &[u8], signature: &[u8]) -> Result<()> {
        let algorithm = algorithm(scheme).ok_or_else(|| unsupported(scheme))?;
        UnparsedPublicKey::new(algorithm, key).verify(data, signature).map_err(|_| wrong(scheme))
    }

    fn verify_prehashed(&self, scheme: SigningScheme, key: &[u8], digest: &[u8], signature: &[u8]) -> Result<()> {
        let is_right = match scheme.key_algorithm() {
            KeyAlgorithm::EcdsaP256 => p256::ecdsa::VerifyingKey::from_sec1_bytes(key).and_then(|key| {
                let signature = p256::ecdsa::Signature::from_der(signature)?;
                key.verify_prehash(digest, &signature)
            }),
            KeyAlgorithm::EcdsaP384 => p384::ecdsa::VerifyingKey::from_sec1_bytes(key).and_then(|key| {
                let signature = p384::ecdsa::Signature::from_der(signature)?;
                key.verify_prehash(digest, &signature)
            }),
            _ => return Err(unsupported(scheme)),
        };
        is_right.map_err(|_| wrong(scheme))
    }
}

fn algorithm(scheme: SigningScheme) -> Option<&'static dyn VerificationAlgorithm> {
    Some(match scheme {
        SigningScheme::EcdsaP256Sha256 => &ECDSA_P256_SHA256_ASN1,
        SigningScheme::EcdsaP256Sha384 => &ECDSA_P256_SHA384_ASN1,
        SigningScheme::EcdsaP384Sha256 => &ECDSA_P384_SHA256_ASN1,
        SigningScheme::EcdsaP384Sha384 => &ECDSA_P384_SHA384_ASN1,
        SigningScheme::Ed25519 => &ED25519,
        SigningScheme::RsaPkcs1Sha256 => &RSA_PKCS1_2048_8192_SHA256,
        SigningScheme::RsaPkcs1Sha384 => &RSA_PKCS1_2048_8192_SHA384,
        SigningScheme::RsaPkcs1Sha512 => &RSA_PKCS1_2048_8192_SHA512,
        SigningScheme::RsaPssSha256 => &RSA_PSS_2048_8192_SHA256,
        SigningScheme::RsaPssSha384 => &RSA_PSS_2048_8192_SHA384,
        SigningScheme::RsaPssSha512 => &RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

fn unsupported(scheme: SigningScheme) -> Error {
    Error::UnsupportedAlgorithm(scheme.name().to_owned())
}

fn wrong(scheme: SigningScheme) -> Error {
    Error::Verification(format!("the {} signature is wrong", scheme.name()))
}

#[cfg(test)]
mod tests {
    use rcgen::SigningKey as _;

    use super::*;

    #[test]
    fn both_ways_of_checking_agree() {
        let hash = |algorithm: HashAlgorithm, data: &[u8]| {
            let mut hashing = Ring.hash(algorithm).expect("is known");
            hashing.update(data);
            hashing.finalize()
        };
        for (kind, scheme, other, algorithm) in [
            (
                &rcgen::PKCS_ECDSA_P256_SHA256,
                SigningScheme::EcdsaP256Sha256,
                SigningScheme::EcdsaP384Sha384,
                HashAlgorithm::Sha2256,
            ),
            (
                &rcgen::PKCS_ECDSA_P384_SHA384,
                SigningScheme::EcdsaP384Sha384,
                SigningScheme::EcdsaP256Sha256,
                HashAlgorithm::Sha2384,
            ),
        ] {
            let pair = rcgen::KeyPair::generate_for(kind).expect("a key");
            let signature = pair.sign(b"message").expect("signs");
            let key = pair.public_key_raw();
            let raw = |scheme, data: &[u8]| Ring.verify_raw(scheme, key, data, &signature).is_ok();
            let prehashed =
                |scheme, data: &[u8]| Ring.verify_prehashed(scheme, key, &hash(algorithm, data), &signature).is_ok();
            assert!(raw(scheme, b"message") && prehashed(scheme, b"message"), "{scheme:?}");
            assert!(!raw(scheme, b"another") && !prehashed(scheme, b"another"), "{scheme:?}");
            assert!(!raw(other, b"message") && !prehashed(other, b"message"), "{scheme:?}");
        }
        let unsupported = Ring.verify_prehashed(SigningScheme::RsaPkcs1Sha256, b"", &[0; 32], b"");
        assert!(matches!(unsupported, Err(Error::UnsupportedAlgorithm(_))), "{unsupported:?}");
    }
}
