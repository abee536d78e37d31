//! The authorities that a webhook trusts.

use super::certificate::{Certificate, CertificateError};

/// Certificates of authorities, each once, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CaBundle {
    certificates: Vec<Certificate>,
}

impl CaBundle {
    /// A bundle of these, in this order, without repetitions.
    pub(crate) fn of(certificates: impl IntoIterator<Item = Certificate>) -> Self {
        let mut bundle = Self::default();
        certificates.into_iter().for_each(|certificate| bundle.add(certificate));
        bundle
    }

    /// Reads a PEM text.
    pub(crate) fn parse(pem: &[u8]) -> Result<Self, CertificateError> {
        Ok(Self::of(Certificate::parse_all(pem)?))
    }

    fn add(&mut self, certificate: Certificate) {
        if !self.certificates.contains(&certificate) {
            self.certificates.push(certificate);
        }
    }

    /// This bundle, followed by the certificates of another one.
    pub(crate) fn and(mut self, other: &Self) -> Self {
        other.certificates.iter().cloned().for_each(|certificate| self.add(certificate));
        self
    }

    /// The certificates of this bundle that `other` does not have.
    pub(crate) fn without(&self, other: &Self) -> Self {
        Self::of(self.certificates.iter().filter(|one| !other.certificates.contains(one)).cloned())
    }

    /// The certificates that have not expired.
    pub(crate) fn unexpired(&self, now: jiff::Timestamp) -> Self {
        Self::of(self.certificates.iter().filter(|one| !one.is_over(now)).cloned())
    }

    /// Whether every certificate of `other` is in this bundle.
    pub(crate) fn holds(&self, other: &Self) -> bool {
        other.certificates.iter().all(|one| self.certificates.contains(one))
    }

    /// Whether it has no certificates.
    pub fn is_empty(&self) -> bool {
        self.certificates.is_empty()
    }

    /// The certificates.
    pub(crate) fn certificates(&self) -> &[Certificate] {
        &self.certificates
    }

    /// The bundle as PEM, for a webhook's `caBundle`. (In JSON the field is encoded in base64.)
    pub fn pem(&self) -> String {
        self.certificates.iter().map(Certificate::pem).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str) -> Certificate {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate");
        Certificate::parse(made.cert.der().clone()).expect("rcgen wrote a certificate")
    }

    #[test]
    fn each_certificate_is_there_once() {
        let (a, b) = (one("a.example"), one("b.example"));
        let bundle = CaBundle::of([a.clone(), b.clone(), a.clone()]);
        assert_eq!(bundle.certificates(), [a.clone(), b.clone()]);
        assert_eq!(CaBundle::of([b.clone()]).and(&bundle).certificates(), [b, a]);
    }
}
