//! One certificate, with what this program reads of it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rustls::RootCertStore;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// The largest number of certificates in one PEM text.
const MOST: usize = 32;
/// The length of a line of PEM.
const LINE: usize = 64;

/// A certificate that could be decoded. Two are equal if their bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Certificate {
    der: CertificateDer<'static>,
    /// When it begins to be valid.
    pub(crate) not_before: Timestamp,
    /// When it expires.
    pub(crate) not_after: Timestamp,
    /// Whether it may sign other certificates.
    pub(crate) is_authority: bool,
}

/// Why certificates cannot be read from a text. Nothing of the text is quoted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CertificateError {
    /// The text is not PEM.
    #[error("is not PEM: {0}")]
    Pem(String),
    /// The PEM has no certificate.
    #[error("holds no certificate")]
    Empty,
    /// There are too many certificates.
    #[error("holds more than {MOST} certificates")]
    TooMany,
    /// The PEM holds something else than a certificate.
    #[error("holds a certificate that cannot be decoded")]
    Undecodable,
}

impl Certificate {
    /// All certificates of a PEM text, in order.
    pub(crate) fn parse_all(pem: &[u8]) -> Result<Vec<Self>, CertificateError> {
        let mut all = Vec::new();
        for der in CertificateDer::pem_slice_iter(pem) {
            let der = der.map_err(|error| CertificateError::Pem(error.to_string()))?;
            if all.len() == MOST {
                return Err(CertificateError::TooMany);
            }
            all.push(Self::parse(der)?);
        }
        if all.is_empty() { Err(CertificateError::Empty) } else { Ok(all) }
    }

    /// One certificate from its bytes.
    pub(crate) fn parse(der: CertificateDer<'static>) -> Result<Self, CertificateError> {
        let (rest, parsed) = X509Certificate::from_der(&der).map_err(|_| CertificateError::Undecodable)?;
        if !rest.is_empty() {
            return Err(CertificateError::Undecodable);
        }
        let time = |seconds: i64| {
            let seconds = seconds.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
            Timestamp::from_second(seconds).map_err(|_| CertificateError::Undecodable)
        };
        let validity = parsed.validity();
        let (not_before, not_after) = (time(validity.not_before.timestamp())?, time(validity.not_after.timestamp())?);
        let is_authority = parsed.is_ca();
        Ok(Self { der, not_before, not_after, is_authority })
    }

    /// The certificate as PEM, with a line break at the end.
    pub(crate) fn pem(&self) -> String {
        let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
        let text = STANDARD.encode(&self.der);
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let (line, tail) = rest.split_at(rest.len().min(LINE));
            pem.push_str(line);
            pem.push('\n');
            rest = tail;
        }
        pem.push_str("-----END CERTIFICATE-----\n");
        pem
    }

    /// The bytes.
    pub(crate) fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// The certified public key, as SubjectPublicKeyInfo.
    pub(crate) fn public_key(&self) -> Vec<u8> {
        let parsed = X509Certificate::from_der(&self.der);
        parsed.map(|(_, certificate)| certificate.tbs_certificate.subject_pki.raw.to_vec()).unwrap_or_default()
    }

    /// Whether it has expired.
    pub(crate) fn is_over(&self, now: Timestamp) -> bool {
        self.not_after <= now
    }

    /// Whether it is not valid yet.
    pub(crate) fn is_early(&self, now: Timestamp) -> bool {
        self.not_before > now
    }

    /// Whether it is valid at this time.
    pub(crate) fn is_valid(&self, now: Timestamp) -> bool {
        !self.is_early(now) && !self.is_over(now)
    }

    /// When a third of its time is left, which is when it is renewed.
    pub(crate) fn due(&self) -> Timestamp {
        let third = self.not_after.duration_since(self.not_before) / 3;
        self.not_after.checked_sub(third).unwrap_or(self.not_before)
    }

    /// Whether a client that trusts only this authority accepts `leaf` as a server's certificate, apart from its validity period.
    pub(crate) fn vouches_for(&self, leaf: &Self, chain: &[Self]) -> bool {
        let mut roots = RootCertStore::empty();
        let Ok(()) = roots.add(self.der.clone()) else { return false };
        let Ok(parsed) = ParsedCertificate::try_from(&leaf.der) else { return false };
        let chain: Vec<_> = chain.iter().map(|certificate| certificate.der.clone()).collect();
        // A time at which both are valid, if there is one.
        let moment = leaf.not_before.max(self.not_before).as_second();
        let moment = UnixTime::since_unix_epoch(std::time::Duration::from_secs(u64::try_from(moment).unwrap_or(0)));
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &chain, moment, algorithms).is_ok()
    }

    /// Whether it is a certificate for all of these DNS names.
    pub(crate) fn is_for(&self, names: &[String]) -> bool {
        let Ok(parsed) = ParsedCertificate::try_from(&self.der) else { return false };
        names.iter().all(|name| {
            ServerName::try_from(name.as_str()).is_ok_and(|name| verify_server_name(&parsed, &name).is_ok())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_certificate_says_so() {
        let parse = |text: &str| Certificate::parse_all(text.as_bytes());
        assert_eq!(parse(""), Err(CertificateError::Empty));
        assert_eq!(parse("noise"), Err(CertificateError::Empty));
        let of_noise = "-----BEGIN CERTIFICATE-----\nbm9pc2U=\n-----END CERTIFICATE-----\n";
        assert_eq!(parse(of_noise), Err(CertificateError::Undecodable));
        let cut = "-----BEGIN CERTIFICATE-----\nbm9pc2U=\n";
        assert!(matches!(parse(cut), Err(CertificateError::Pem(_))), "{:?}", parse(cut));
    }

    #[test]
    fn there_may_be_many_and_not_any_number() {
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).expect("a certificate");
        let parsed = Certificate::parse_all(made.cert.pem().repeat(MOST).as_bytes()).expect("all of them");
        assert_eq!(parsed.len(), MOST);
        assert_eq!(parsed[0].der(), made.cert.der());
        assert_eq!(Certificate::parse_all(made.cert.pem().repeat(MOST + 1).as_bytes()), Err(CertificateError::TooMany));
    }

    #[test]
    fn pem_is_what_was_read() {
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).expect("a certificate");
        let parsed = Certificate::parse_all(made.cert.pem().as_bytes()).expect("one").remove(0);
        assert_eq!(Certificate::parse_all(parsed.pem().as_bytes()), Ok(vec![parsed]));
    }
}
