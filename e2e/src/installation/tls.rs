//! A certificate for the evaluators, where no controller makes one.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use super::SERVICE;

/// `tls.crt`, `tls.key` and `ca.crt` for the service in this namespace.
pub(super) fn make(namespace: &str) -> [(&'static str, String); 3] {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "certificates of a test");
    let key = KeyPair::generate().expect("a key");
    let authority = params.self_signed(&key).expect("a certificate").pem();
    let issuer = Issuer::new(params, key);

    let name = format!("{SERVICE}.{namespace}.svc");
    let params = CertificateParams::new(vec![name]).expect("a name");
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, &issuer).expect("a certificate").pem();
    [("tls.crt", certificate), ("tls.key", key.serialize_pem()), ("ca.crt", authority)]
}
