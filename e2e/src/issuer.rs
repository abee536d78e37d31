//! Makes certificates for the policy server instead of the controller, as cert-manager does.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, date_time_ymd};

use crate::chart_names::SERVICE;

/// How long the renewal of an issued certificate has been due already, so that differences between clocks do not
/// matter.
const MARGIN: Duration = Duration::from_secs(60);

/// A certificate authority.
pub struct Issuer {
    certificate: String,
    issuer: rcgen::Issuer<'static, KeyPair>,
}

impl Issuer {
    /// A new authority with this name.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        Self { certificate, issuer: rcgen::Issuer::new(params, key) }
    }

    /// `tls.crt`, `tls.key` and `ca.crt` for the service in this namespace. The certificate has this much time left, and two thirds of its
    /// lifetime have passed, so that its renewal is due.
    ///
    /// # Panics
    /// When they cannot be made.
    pub fn issue(&self, namespace: &str, left: Duration) -> [(&'static str, String); 3] {
        self.issue_for(&format!("{SERVICE}.{namespace}.svc"), left)
    }

    /// [`Issuer::issue`] for another DNS name.
    ///
    /// # Panics
    /// When they cannot be made.
    pub fn issue_for(&self, name: &str, left: Duration) -> [(&'static str, String); 3] {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970");
        let start = date_time_ymd(1970, 1, 1);
        params.not_before = start + now.saturating_sub(2 * left + MARGIN);
        params.not_after = start + now + left;
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        [("tls.crt", certificate), ("tls.key", key.serialize_pem()), ("ca.crt", self.certificate.clone())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_certificates_of_one_issuer_have_one_authority_and_two_keys() {
        let issuer = Issuer::new("one");
        let [first, second] = [1, 2].map(|hours| issuer.issue("shop", Duration::from_secs(3600 * hours)));
        assert_eq!(first[2], second[2]);
        assert!(first[0] != second[0] && first[1] != second[1]);
        assert_ne!(Issuer::new("one").issue("shop", Duration::from_secs(1))[2], first[2]);
    }
}
