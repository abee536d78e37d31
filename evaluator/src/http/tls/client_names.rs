//! Which clients may send requests: those whose certificate is signed by a trusted authority and has one of the listed names.
//!
//! What is too large is not verified, as anybody can send it ([`portcullis_certificate::client`]).
//!
//! The authority of a cluster signs certificates for many: kubelets, users, other components. Such a certificate alone says only that the
//! client is known to the cluster.

use std::sync::Arc;

use portcullis_certificate::client::check_client_certificates;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// Accepts the clients that `inner` accepts, if they have one of these names; all of them if there are no names. `inner` is not asked about
/// certificates that would take long.
pub(crate) fn only_named(inner: Arc<dyn ClientCertVerifier>, names: Vec<String>) -> Arc<dyn ClientCertVerifier> {
    Arc::new(NamedClients { inner, names })
}

#[derive(Debug)]
struct NamedClients {
    inner: Arc<dyn ClientCertVerifier>,
    /// Empty for all.
    names: Vec<String>,
}

/// Whether a certificate (DER) has one of these names: as the common name of its subject, or as a DNS name. There are no wildcards.
fn has_name(certificate: &[u8], names: &[String]) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return false };
    let is_listed = |found: &str| names.iter().any(|name| name == found);
    let mut common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    if common.any(is_listed) {
        return true;
    }
    let Ok(Some(others)) = certificate.subject_alternative_name() else { return false };
    others.value.general_names.iter().any(|name| matches!(name, GeneralName::DNSName(found) if is_listed(found)))
}

impl ClientCertVerifier for NamedClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        check_client_certificates(certificate, intermediates)?;
        let verified = self.inner.verify_client_cert(certificate, intermediates, now)?;
        if self.names.is_empty() || has_name(certificate, &self.names) {
            Ok(verified)
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use portcullis_certificate::client::MAX_INTERMEDIATES;
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    /// Accepts certificates that can be read, and panics if there are more than a client may show.
    #[derive(Debug)]
    struct Inner;

    impl ClientCertVerifier for Inner {
        fn root_hint_subjects(&self) -> &[DistinguishedName] {
            &[]
        }

        fn verify_client_cert(
            &self,
            _: &CertificateDer<'_>,
            intermediates: &[CertificateDer<'_>],
            _: UnixTime,
        ) -> Result<ClientCertVerified, Error> {
            assert!(intermediates.len() <= MAX_INTERMEDIATES, "it is not asked");
            Ok(ClientCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            Vec::new()
        }
    }

    fn certificate(common: &str, others: &[&str]) -> Vec<u8> {
        let others: Vec<String> = others.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(others).expect("names");
        params.distinguished_name.push(DnType::CommonName, common);
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().to_vec()
    }

    #[test]
    fn a_name_is_the_whole_name_of_the_subject_or_a_dns_name() {
        let listed = |certificate: &[u8]| has_name(certificate, &["kube-apiserver".into(), "webhooks.example".into()]);
        assert!(listed(&certificate("kube-apiserver", &[])));
        assert!(listed(&certificate("somebody", &["other.example", "webhooks.example"])));
        assert!(!listed(&certificate("kube-apiserver-2", &["a.webhooks.example", "*.example", "10.0.0.1"])));
        assert!(!listed(b"no certificate"));
    }

    #[test]
    fn h18_a_chain_that_takes_long_is_refused_before_it_is_verified() {
        let own = CertificateDer::from(certificate("kube-apiserver", &[]));
        let authority = CertificateDer::from(certificate("authority", &[]));
        let short = vec![authority.clone(); MAX_INTERMEDIATES];
        let mut long = vec![authority; 9];
        long.extend(vec![CertificateDer::from(vec![0]); 1000]);
        for names in [Vec::new(), vec!["kube-apiserver".to_owned()]] {
            let verifier = only_named(Arc::new(Inner), names);
            let verify =
                |intermediates: &[_]| verifier.verify_client_cert(&own, intermediates, UnixTime::now()).map(drop);
            assert_eq!(verify(&short), Ok(()));
            let Err(Error::InvalidCertificate(CertificateError::Other(_))) = verify(&long) else {
                panic!("it is refused")
            };
        }
    }
}
