//! A certificate authority with its key.

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData as _,
};
use rustls::pki_types::CertificateDer;

use super::bundle::CaBundle;
use super::certificate::{Certificate, CertificateError};
use super::rules::{Purpose, Rules, Validity};
use super::serving::Pair;

/// The authority that signs serving certificates. It has no `Debug` or `Display`: its key is a secret.
pub(crate) struct Authority {
    /// Its certificate.
    pub(crate) certificate: Certificate,
    key: KeyPair,
}

/// Why an authority cannot be used. Nothing of the key is quoted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AuthorityError {
    /// The certificate cannot be read.
    #[error("`ca.crt` {0}")]
    Certificate(#[from] CertificateError),
    /// The certificate may not sign others.
    #[error("the first certificate in `ca.crt` is not that of an authority")]
    NoAuthority,
    /// The key cannot be read, or its type is not supported.
    #[error("`ca.key` is not a private key of a supported type")]
    Key,
    /// Key and certificate do not belong together.
    #[error("`ca.key` is not the key of the certificate in `ca.crt`")]
    OtherKey,
    /// Cryptography failed.
    #[error("failed to sign a certificate: {0}")]
    Sign(String),
}

impl From<rcgen::Error> for AuthorityError {
    fn from(error: rcgen::Error) -> Self {
        Self::Sign(error.to_string())
    }
}

impl Authority {
    /// Makes a new authority, with a P-256 key.
    pub(crate) fn make(rules: &Rules, now: Timestamp) -> Result<Self, AuthorityError> {
        let mut params = CertificateParams::default();
        // With the time, so that people can tell two authorities apart that are trusted at the same time.
        let name = match rules.purpose {
            Purpose::Webhooks => format!("portcullis {} {now:.0}", rules.policy_server),
            Purpose::Siblings => format!("portcullis {} siblings {now:.0}", rules.policy_server),
        };
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        set(&mut params, Validity::starting(now, rules.ca_lifetime));
        let key = KeyPair::generate()?;
        let certificate = certificate(params.self_signed(&key)?.into())?;
        Ok(Self { certificate, key })
    }

    /// Reads the two texts of a Secret.
    pub(crate) fn parse(certificate: &[u8], key: &[u8]) -> Result<Self, AuthorityError> {
        let certificate = Certificate::parse_all(certificate)?.swap_remove(0);
        if !certificate.is_authority {
            return Err(AuthorityError::NoAuthority);
        }
        let key = std::str::from_utf8(key).ok().and_then(|key| KeyPair::from_pem(key).ok());
        let key = key.ok_or(AuthorityError::Key)?;
        if key.subject_public_key_info() != certificate.public_key() {
            return Err(AuthorityError::OtherKey);
        }
        Ok(Self { certificate, key })
    }

    /// A new key and a certificate of this authority for the names of the rules.
    pub(crate) fn issue(&self, rules: &Rules, now: Timestamp) -> Result<Pair, AuthorityError> {
        let mut params = CertificateParams::new(rules.names.clone())?;
        let name = rules.names.first().cloned().unwrap_or_default();
        // Without a common name: it has at most 64 characters and is ignored in favour of the alternative names.
        params.distinguished_name.push(DnType::CommonName, name.chars().take(64).collect::<String>());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match rules.purpose {
            Purpose::Webhooks => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Purpose::Siblings => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.use_authority_key_identifier_extension = true;
        set(&mut params, Validity::starting(now, rules.serving_lifetime).until(self.certificate.not_after));
        let issuer = Issuer::from_ca_cert_der(self.certificate.der(), &self.key)?;
        let key = KeyPair::generate()?;
        let leaf = certificate(params.signed_by(&key, &issuer)?.into())?;
        Ok(Pair { leaf, chain: Vec::new(), key: key.serialize_pem() })
    }

    /// A bundle of this authority alone.
    pub(crate) fn bundle(&self) -> CaBundle {
        CaBundle::of([self.certificate.clone()])
    }

    /// The key as PEM, for the Secret only.
    pub(crate) fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }
}

fn certificate(der: CertificateDer<'static>) -> Result<Certificate, AuthorityError> {
    Ok(Certificate::parse(der)?)
}

fn set(params: &mut CertificateParams, validity: Validity) {
    let time = |moment: Timestamp| {
        let seconds = u64::try_from(moment.as_second()).unwrap_or(0);
        rcgen::date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(seconds)
    };
    params.not_before = time(validity.not_before);
    params.not_after = time(validity.not_after);
}

#[cfg(test)]
mod tests {
    use super::super::decide::tests::{now, rules};
    use super::*;

    #[test]
    fn an_authority_vouches_for_what_it_issued_and_for_nothing_else() {
        let (one, other) = (Authority::make(&rules(), now()), Authority::make(&rules(), now()));
        let (one, other) = (one.expect("an authority"), other.expect("an authority"));
        let pair = one.issue(&rules(), now()).expect("a certificate");
        assert!(one.certificate.vouches_for(&pair.leaf, &[]));
        assert!(!other.certificate.vouches_for(&pair.leaf, &[]));
        assert!(pair.leaf.is_for(&rules().names));
        assert!(!pair.leaf.is_for(&["other.svc".to_owned()]));
        assert!(one.certificate.is_authority && !pair.leaf.is_authority);
    }

    #[test]
    fn h18_only_certificates_of_loaders_are_those_of_a_client() {
        use x509_parser::prelude::{FromDer as _, X509Certificate};
        for (purpose, is_client) in [(Purpose::Webhooks, false), (Purpose::Siblings, true)] {
            let rules = Rules { purpose, ..rules() };
            let pair = Authority::make(&rules, now()).and_then(|authority| authority.issue(&rules, now()));
            let pair = pair.expect("a certificate");
            let (_, parsed) = X509Certificate::from_der(pair.leaf.der()).expect("rcgen wrote it");
            let usage = parsed.extended_key_usage().expect("is readable").expect("is there").value;
            assert_eq!((usage.server_auth, usage.client_auth, usage.any), (true, is_client, false));
        }
    }

    #[test]
    fn no_certificate_outlives_its_authority() {
        let authority = Authority::make(&rules(), now()).expect("an authority");
        let late = authority.certificate.not_after.checked_sub(jiff::SignedDuration::from_secs(60)).expect("a time");
        let pair = authority.issue(&rules(), late).expect("a certificate");
        assert_eq!(pair.leaf.not_after, authority.certificate.not_after);
    }

    #[test]
    fn an_authority_is_read_back() {
        let made = Authority::make(&rules(), now()).expect("an authority");
        let read = Authority::parse(made.certificate.pem().as_bytes(), made.key_pem().as_bytes());
        let read = read.expect("the same one");
        assert_eq!(read.certificate, made.certificate);
        let pair = read.issue(&rules(), now()).expect("a certificate");
        assert!(made.certificate.vouches_for(&pair.leaf, &[]));
    }

    #[test]
    fn what_is_wrong_with_a_pair_is_told() {
        let (one, other) = (Authority::make(&rules(), now()), Authority::make(&rules(), now()));
        let (one, other) = (one.expect("an authority"), other.expect("an authority"));
        let leaf = one.issue(&rules(), now()).expect("a certificate");
        let parse = |certificate: &str, key: &str| Authority::parse(certificate.as_bytes(), key.as_bytes()).err();
        let pem = one.certificate.pem();
        assert_eq!(parse(&pem, &other.key_pem()), Some(AuthorityError::OtherKey));
        assert_eq!(parse(&pem, "noise"), Some(AuthorityError::Key));
        assert_eq!(parse(&leaf.leaf.pem(), &leaf.key), Some(AuthorityError::NoAuthority));
        assert_eq!(parse("", ""), Some(AuthorityError::Certificate(CertificateError::Empty)));
    }
}
