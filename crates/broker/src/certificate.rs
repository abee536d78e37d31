//! Certificates of signers that a guest names: their keys, and the chains that vouch for them.

use std::fmt::Display;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use portcullis_certificate::MAX_CHAIN;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use webpki::anchor_from_trusted_cert;
use x509_parser::certificate::X509Certificate;
use x509_parser::parse_x509_certificate;

use crate::ProvideError;

/// A certificate that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Certificate {
    /// Its public key, in PEM.
    pub(crate) key: String,
    /// When it becomes valid, in seconds since 1970.
    pub(crate) not_before: i64,
    /// When it expires, in seconds since 1970.
    pub(crate) not_after: i64,
}

impl Certificate {
    /// Reads a certificate, PEM or DER, and checks that the chain vouches for it at this time. The root comes last in the chain. Without a chain
    /// the certificate counts as trusted.
    ///
    /// # Errors
    /// When one of them cannot be read, the certificate is for something else or not valid yet, or the chain does not
    /// lead to it.
    pub(crate) fn check(certificate: &[u8], chain: Option<&[Vec<u8>]>, now: Timestamp) -> Result<Self, ProvideError> {
        let der = der(certificate);
        let (_, parsed) = parse_x509_certificate(&der).map_err(failed)?;
        check_usage(&parsed, chain.is_some())?;
        let validity = parsed.validity();
        let (not_before, not_after) = (validity.not_before.timestamp(), validity.not_after.timestamp());
        if now.as_second() < not_before {
            return Err(failed("it is being used before its validity date"));
        }
        if let Some(chain) = chain {
            verify(&der, chain, now)?;
        }
        let body = BASE64_STANDARD.encode(parsed.public_key().raw);
        let key = format!("-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n");
        Ok(Self { key, not_before, not_after })
    }
}

/// Checks what the certificate is for: signatures, if it says that at all, and with a chain the signing of code.
fn check_usage(certificate: &X509Certificate<'_>, has_chain: bool) -> Result<(), ProvideError> {
    let usage = certificate.key_usage().map_err(failed)?;
    if usage.is_some_and(|usage| !usage.value.digital_signature()) {
        return Err(failed("its key usage does not include digitalSignature"));
    }
    let purposes = certificate.extended_key_usage().map_err(failed)?;
    if has_chain && purposes.is_none_or(|purposes| !purposes.value.code_signing) {
        let text = "its extended key usage does not include codeSigning, which is needed with a certificate_chain";
        return Err(failed(text));
    }
    Ok(())
}

/// What is wrong with the certificate itself.
fn failed(problem: impl Display) -> ProvideError {
    ProvideError::failed(format!("certificate: {problem}"))
}

/// Checks that the chain vouches for the certificate. Authorities may be for anything; what the certificate itself is for is checked by
/// [`check_usage`].
fn verify(certificate: &CertificateDer<'_>, chain: &[Vec<u8>], now: Timestamp) -> Result<(), ProvideError> {
    if chain.len() > MAX_CHAIN {
        let text = format!("certificate_chain has {} certificates, the limit is {MAX_CHAIN}", chain.len());
        return Err(ProvideError::failed(text));
    }
    let failed = |error: webpki::Error| {
        ProvideError::failed(format!("the certificate is not trusted by certificate_chain: {error}"))
    };
    let chain: Vec<_> = chain.iter().map(|one| der(one)).collect();
    let (root, intermediates) = chain.split_last().ok_or_else(|| failed(webpki::Error::UnknownIssuer))?;
    let anchors = [anchor_from_trusted_cert(root).map_err(failed)?];
    portcullis_certificate::verify(certificate, &anchors, intermediates, now).map_err(failed)
}

fn der(certificate: &[u8]) -> CertificateDer<'_> {
    CertificateDer::from_pem_slice(certificate).unwrap_or_else(|_| CertificateDer::from(certificate))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};

    use super::*;

    /// An authority with this name, signed by another one or by itself.
    fn authority(name: &str, above: Option<&Issuer<'static, KeyPair>>) -> (Vec<u8>, Issuer<'static, KeyPair>) {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = match above {
            Some(above) => params.signed_by(&key, above),
            None => params.self_signed(&key),
        };
        (certificate.expect("a certificate").pem().into_bytes(), Issuer::new(params, key))
    }

    fn seconds(time: Timestamp) -> Duration {
        Duration::from_secs(u64::try_from(time.as_second()).expect("after 1970"))
    }

    #[test]
    fn a_certificate_must_be_for_signatures_and_with_a_chain_for_code() {
        use ExtendedKeyUsagePurpose::{CodeSigning, ServerAuth};
        use KeyUsagePurpose::{DigitalSignature, KeyEncipherment};
        let (root, by_root) = authority("root", None);
        let chain = [root];
        let check = |usages: &[KeyUsagePurpose], purposes: &[ExtendedKeyUsagePurpose], chain: Option<&[Vec<u8>]>| {
            let mut params = CertificateParams::new(["signer@example.com".to_owned()]).expect("a name");
            params.key_usages = usages.to_vec();
            params.extended_key_usages = purposes.to_vec();
            let key = KeyPair::generate().expect("a key");
            let leaf = params.signed_by(&key, &by_root).expect("a certificate");
            Certificate::check(leaf.der(), chain, Timestamp::now()).map(drop).map_err(|error| error.to_string())
        };
        for usages in [&[][..], &[DigitalSignature], &[DigitalSignature, KeyEncipherment]] {
            assert_eq!(check(usages, &[CodeSigning, ServerAuth], Some(&chain)), Ok(()));
            assert_eq!(check(usages, &[ServerAuth], None), Ok(()));
            assert_eq!(check(usages, &[], None), Ok(()));
            for purposes in [&[][..], &[ServerAuth]] {
                let error = check(usages, purposes, Some(&chain)).expect_err("is for something else");
                assert!(error.contains("does not include codeSigning"), "{error}");
            }
        }
        for chain in [None, Some(&chain[..])] {
            let error = check(&[KeyEncipherment], &[CodeSigning], chain).expect_err("is for something else");
            assert!(error.contains("does not include digitalSignature"), "{error}");
        }
    }

    #[test]
    fn a_chain_must_lead_to_the_certificate() {
        let (root, by_root) = authority("root", None);
        let (middle, by_middle) = authority("middle", Some(&by_root));
        let (other, _) = authority("other", None);
        let now = Timestamp::now();
        let mut params = CertificateParams::new(["signer@example.com".to_owned()]).expect("a name");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        (params.not_before, params.not_after) =
            (epoch + seconds(now) - Duration::from_secs(60), epoch + seconds(now) + Duration::from_secs(60));
        let key = KeyPair::generate().expect("a key");
        let leaf = params.signed_by(&key, &by_middle).expect("a certificate");
        let check = |chain: Option<&[Vec<u8>]>, at| {
            let checked = Certificate::check(leaf.pem().as_bytes(), chain, at);
            assert_eq!(checked, Certificate::check(leaf.der(), chain, at), "PEM and DER");
            checked.map_err(|error| error.to_string())
        };
        let good = [middle.clone(), root.clone()];
        let found = check(Some(&good), now).expect("leads to it");
        assert_eq!((found.not_before, found.not_after), (now.as_second() - 60, now.as_second() + 60));
        assert_eq!(found.key.replace('\n', ""), key.public_key_pem().replace("\r\n", "").replace('\n', ""));
        assert_eq!(check(None, now), Ok(found));
        for (chain, text) in [
            (vec![root], "not trusted by certificate_chain"),
            (vec![middle.clone(), other], "not trusted by certificate_chain"),
            (vec![], "not trusted by certificate_chain"),
            (vec![b"nonsense".to_vec()], "not trusted by certificate_chain"),
            (vec![middle; 8], "has 8 certificates, the limit is 7"),
        ] {
            let error = check(Some(&chain), now).expect_err(text);
            assert!(error.contains(text), "{error}");
        }
        let minutes = |minutes: i64| Timestamp::from_second(now.as_second() + 60 * minutes).expect("a time");
        let error = check(None, minutes(-2)).expect_err("not yet");
        assert!(error.contains("before its validity date"), "{error}");
        let error = check(Some(&good), minutes(2)).expect_err("expired");
        assert!(error.contains("not trusted by certificate_chain"), "{error}");
        assert!(Certificate::check(b"nonsense", None, now).is_err());
    }
}
