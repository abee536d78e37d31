//! Whether a certificate that a policy asks about can be trusted: `crypto/v1/is_certificate_trusted`
//! (docs/design/policy-abi.md, section 8). And how large the certificates of TLS clients may be ([`client`]).
//!
//! The evaluator answers this itself, since it needs no connection. Where calls are recorded, the broker answers it, because it records
//! all calls in their order.
#![forbid(unsafe_code)]

pub mod client;

use std::sync::LazyLock;
use std::time::Duration;

use jiff::Timestamp;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime, pem::PemObject as _};
use serde::{Deserialize, Serialize};
use webpki::{
    ALL_VERIFICATION_ALGS, EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeIdIter, anchor_from_trusted_cert,
};
use x509_parser::error::X509Error;
use x509_parser::{nom, parse_x509_certificate};

/// The most certificates in a chain, besides the one that it is for: a root, and as many below it as webpki follows. Where they all have one
/// name, each order of them is a path that is tried: some thousands with this limit, and millions with twice as many.
pub const MAX_CHAIN: usize = 7;

/// The largest certificate, in bytes of DER: each one of a chain is read again for each path.
pub const MAX_CERTIFICATE: usize = 8 << 10;

/// The authorities that Mozilla trusts, as they were when this release was made.
static MOZILLA: LazyLock<Vec<TrustAnchor<'static>>> = LazyLock::new(|| {
    let anchors =
        webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().filter_map(|root| anchor_from_trusted_cert(root).ok());
    anchors.collect()
});

/// What a guest asks.
#[derive(Deserialize)]
struct Request {
    cert: Certificate,
    #[serde(default)]
    cert_chain: Option<Vec<Certificate>>,
    /// The time of the check, RFC 3339; empty or absent means now.
    #[serde(default)]
    not_after: Option<String>,
}

#[derive(Deserialize)]
struct Certificate {
    encoding: Encoding,
    data: Vec<u8>,
}

#[derive(Deserialize)]
enum Encoding {
    Pem,
    Der,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Response {
    trusted: bool,
    reason: String,
}

/// Why a question has no answer. The texts are for guests.
#[derive(Debug, thiserror::Error)]
pub enum QuestionError {
    /// It does not have the form of a question.
    #[error("{0}")]
    Form(serde_json::Error),
    /// Its time cannot be read.
    #[error("Timestamp not_after is not in RFC3339 format: {0}")]
    Time(jiff::Error),
    /// A certificate is said to be in PEM and is not.
    #[error("a certificate is not in PEM: {0}")]
    Pem(rustls::pki_types::pem::Error),
    /// The certificate that the question is about cannot be read.
    #[error("cert: {0}")]
    Certificate(nom::Err<X509Error>),
    /// The root of its chain cannot be used.
    #[error("the last certificate of cert_chain: {0}")]
    Root(webpki::Error),
}

/// Why a certificate is not trusted. The texts are for guests.
#[derive(Debug, thiserror::Error)]
enum Distrust {
    /// The time of the check is after its validity.
    #[error("Certificate is being used after its expiration date")]
    Expired,
    /// The time of the check is before its validity.
    #[error("Certificate is being used before its validity date")]
    NotYetValid,
    /// It does not lead to an authority that Mozilla trusts.
    #[error("Certificate not trusted: {0}")]
    Mozilla(webpki::Error),
    /// It does not lead to the root of the chain in the question.
    #[error("Certificate is not trusted by the provided cert chain")]
    Chain,
    /// Its chain is too long. So it is upstream, without a word of the length.
    #[error("Certificate is not trusted by the provided cert chain: it has {0} certificates, the limit is {MAX_CHAIN}")]
    LongChain(usize),
    /// It is too large, or one of its chain is.
    #[error("Certificate not trusted: {which} has {bytes} bytes of DER, the limit is {MAX_CERTIFICATE}")]
    Large {
        /// What is too large.
        which: &'static str,
        /// How large it is.
        bytes: usize,
    },
}

/// Any key usage will do.
struct AnyUsage;

impl ExtendedKeyUsageValidator for AnyUsage {
    fn validate(&self, _: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        Ok(())
    }
}

/// Answers a guest's question, in JSON.
///
/// # Errors
/// When the question, or a certificate in it, cannot be read.
pub fn is_trusted(payload: &[u8]) -> Result<Vec<u8>, QuestionError> {
    let request: Request = serde_json::from_slice(payload).map_err(QuestionError::Form)?;
    let distrust = judge(&request)?;
    let reason = distrust.as_ref().map(Distrust::to_string).unwrap_or_default();
    serde_json::to_vec(&Response { trusted: distrust.is_none(), reason }).map_err(QuestionError::Form)
}

/// Why the certificate is not trusted; `None` if it is.
fn judge(request: &Request) -> Result<Option<Distrust>, QuestionError> {
    let chain = request.cert_chain.as_deref();
    if let Some(chain) = chain.filter(|chain| chain.len() > MAX_CHAIN) {
        return Ok(Some(Distrust::LongChain(chain.len())));
    }
    let time = match request.not_after.as_deref() {
        None | Some("") => Timestamp::now(),
        Some(text) => text.parse::<Timestamp>().map_err(QuestionError::Time)?,
    };
    let certificate = request.cert.der()?;
    if let Some(distrust) = too_large("it", &certificate) {
        return Ok(Some(distrust));
    }
    if let Some(distrust) = outside_validity(&certificate, time)? {
        return Ok(Some(distrust));
    }
    let Some(chain) = chain else {
        return Ok(verify(&certificate, &MOZILLA, &[], time).err().map(Distrust::Mozilla));
    };
    let chain = chain.iter().map(Certificate::der).collect::<Result<Vec<_>, _>>()?;
    if let Some(distrust) = chain.iter().find_map(|one| too_large("a certificate of cert_chain", one)) {
        return Ok(Some(distrust));
    }
    // The root comes last.
    let Some((root, intermediates)) = chain.split_last() else { return Ok(Some(Distrust::Chain)) };
    let anchor = anchor_from_trusted_cert(root).map_err(QuestionError::Root)?;
    Ok(verify(&certificate, &[anchor], intermediates, time).err().map(|_| Distrust::Chain))
}

/// Checks that a certificate leads to one of the anchors at this time. The key usage of the certificates in between
/// does not matter.
///
/// # Errors
/// When it does not lead to an anchor, or cannot be read.
pub fn verify(
    certificate: &CertificateDer<'_>,
    anchors: &[TrustAnchor<'_>],
    intermediates: &[CertificateDer<'_>],
    time: Timestamp,
) -> Result<(), webpki::Error> {
    let seconds = u64::try_from(time.as_second()).unwrap_or_default();
    let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    let certificate = EndEntityCert::try_from(certificate)?;
    let path = certificate.verify_for_usage(ALL_VERIFICATION_ALGS, anchors, intermediates, time, AnyUsage, None, None);
    path.map(drop)
}

fn too_large(which: &'static str, certificate: &CertificateDer<'_>) -> Option<Distrust> {
    let bytes = certificate.len();
    (bytes > MAX_CERTIFICATE).then_some(Distrust::Large { which, bytes })
}

fn outside_validity(certificate: &CertificateDer<'_>, time: Timestamp) -> Result<Option<Distrust>, QuestionError> {
    let (_, parsed) = parse_x509_certificate(certificate).map_err(QuestionError::Certificate)?;
    let (validity, time) = (parsed.validity(), time.as_second());
    Ok(if time > validity.not_after.timestamp() {
        Some(Distrust::Expired)
    } else if time < validity.not_before.timestamp() {
        Some(Distrust::NotYetValid)
    } else {
        None
    })
}

impl Certificate {
    fn der(&self) -> Result<CertificateDer<'_>, QuestionError> {
        match self.encoding {
            Encoding::Der => Ok(CertificateDer::from(self.data.as_slice())),
            Encoding::Pem => CertificateDer::from_pem_slice(&self.data).map_err(QuestionError::Pem),
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CustomExtension, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
    use serde_json::{Value, json};

    use super::*;

    struct Chain {
        leaf: rcgen::Certificate,
        middle: rcgen::Certificate,
        root: rcgen::Certificate,
    }

    fn authority(name: &str) -> CertificateParams {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params
    }

    fn chain() -> Chain {
        let keys = [0; 3].map(|_| KeyPair::generate().expect("a key"));
        let root = authority("root").self_signed(&keys[0]).expect("a root");
        let of_root = Issuer::new(authority("root"), &keys[0]);
        let middle = authority("middle").signed_by(&keys[1], &of_root).expect("an intermediate");
        let mut params = CertificateParams::new(["leaf.example".to_owned()]).expect("a name");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
        let leaf = params.signed_by(&keys[2], &Issuer::new(authority("middle"), &keys[1])).expect("a leaf");
        Chain { leaf, middle, root }
    }

    fn pem(certificate: &rcgen::Certificate) -> Value {
        json!({"encoding": "Pem", "data": certificate.pem().as_bytes()})
    }

    fn ask(request: &Value) -> Value {
        let reply = is_trusted(request.to_string().as_bytes()).expect("a reply");
        serde_json::from_slice(&reply).expect("JSON")
    }

    #[test]
    fn a_chain_leads_to_its_root() {
        let Chain { leaf, middle, root } = chain();
        let der = json!({"encoding": "Der", "data": leaf.der().as_ref()});
        for cert in [pem(&leaf), der] {
            let request = json!({"cert": cert, "cert_chain": [pem(&middle), pem(&root)], "not_after": ""});
            assert_eq!(ask(&request), json!({"trusted": true, "reason": ""}));
        }
    }

    #[test]
    fn what_does_not_lead_there_is_not_trusted() {
        let (Chain { leaf, middle, root }, other) = (chain(), chain());
        for cert_chain in [vec![], vec![pem(&root)], vec![pem(&middle), pem(&other.root)]] {
            let reply = ask(&json!({"cert": pem(&leaf), "cert_chain": cert_chain}));
            let reason = "Certificate is not trusted by the provided cert chain";
            assert_eq!(reply, json!({"trusted": false, "reason": reason}));
        }
        let reply = ask(&json!({"cert": pem(&leaf)}));
        assert!(reply["reason"].as_str().expect("text").starts_with("Certificate not trusted: "), "{reply}");
    }

    #[test]
    fn the_time_of_the_check_may_be_given() {
        let Chain { leaf, middle, root } = chain();
        for (time, reason) in [
            ("1970-01-02T00:00:00Z", "Certificate is being used before its validity date"),
            ("9000-01-01T00:00:00Z", "Certificate is being used after its expiration date"),
        ] {
            let request = json!({"cert": pem(&leaf), "cert_chain": [pem(&middle), pem(&root)], "not_after": time});
            assert_eq!(ask(&request), json!({"trusted": false, "reason": reason}));
        }
    }

    #[test]
    fn long_chains_and_large_certificates_are_not_trusted_and_the_reason_names_the_limit() {
        let Chain { leaf, middle, root } = chain();
        let mut long = vec![pem(&middle); MAX_CHAIN - 1];
        long.push(pem(&root));
        assert_eq!(ask(&json!({"cert": pem(&leaf), "cert_chain": long}))["trusted"], json!(true));
        long.insert(0, pem(&middle));
        let reason = "Certificate is not trusted by the provided cert chain: it has 8 certificates, the limit is 7";
        let reply = ask(&json!({"cert": pem(&leaf), "cert_chain": long}));
        assert_eq!(reply, json!({"trusted": false, "reason": reason}));

        // Its signatures have one length.
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
        let padded = |bytes: usize| {
            let mut params = authority("large");
            params.serial_number = Some(1_u64.into());
            let padding = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 99_999], vec![0; bytes]);
            params.custom_extensions.push(padding);
            params.self_signed(&key).expect("a certificate")
        };
        let rest = padded(4096).der().len() - 4096;
        let (most, large) = (padded(MAX_CERTIFICATE - rest), padded(MAX_CERTIFICATE - rest + 1));
        assert_eq!((most.der().len(), large.der().len()), (MAX_CERTIFICATE, MAX_CERTIFICATE + 1));
        let ask = |cert: &rcgen::Certificate, of_chain: &rcgen::Certificate| {
            ask(&json!({"cert": pem(cert), "cert_chain": [pem(&middle), pem(of_chain)]}))["reason"].clone()
        };
        let untrusted = "Certificate is not trusted by the provided cert chain";
        assert_eq!([ask(&most, &root), ask(&leaf, &most)], [untrusted, untrusted]);
        let reason = |which| format!("Certificate not trusted: {which} has 8193 bytes of DER, the limit is 8192");
        assert_eq!(ask(&large, &root), reason("it"));
        assert_eq!(ask(&leaf, &large), reason("a certificate of cert_chain"));
    }

    /// All below the root have one name, so each order of them is a path.
    #[test]
    fn a_hostile_chain_is_searched_through_within_the_limits_and_not_beyond_them() {
        let search = |intermediates: usize| {
            let keys: Vec<_> = (0..=intermediates).map(|_| KeyPair::generate().expect("a key")).collect();
            let der = |params: CertificateParams, key: &KeyPair| {
                let issuer = Issuer::new(authority("same"), &keys[0]);
                CertificateDer::from(params.signed_by(key, &issuer).expect("a certificate"))
            };
            let leaf = der(CertificateParams::new(["leaf.example".to_owned()]).expect("a name"), &keys[0]);
            let intermediates: Vec<_> = keys[1..].iter().map(|key| der(authority("same"), key)).collect();
            let other = authority("other").self_signed(&keys[0]).expect("a root");
            let anchor = anchor_from_trusted_cert(other.der()).expect("an authority").to_owned();
            verify(&leaf, &[anchor], &intermediates, Timestamp::now()).expect_err("leads to no root")
        };
        // webpki gives up after 200,000 paths.
        let budget = webpki::Error::MaximumPathBuildCallsExceeded;
        assert_ne!(search(MAX_CHAIN - 1), budget);
        assert_eq!(search(15), budget);
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let Chain { leaf, .. } = chain();
        for request in [
            json!({}),
            json!({"cert": {"encoding": "Pem", "data": [1, 2, 3]}}),
            json!({"cert": {"encoding": "Der", "data": [1, 2, 3]}}),
            json!({"cert": pem(&leaf), "not_after": "yesterday"}),
        ] {
            assert!(is_trusted(request.to_string().as_bytes()).is_err(), "{request}");
        }
    }
}
