//! The certificate authority of the tests, and the good and bad certificates that it signs.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, as PEM.
    pub pem: String,
    /// Its certificate, as DER.
    pub der: Vec<u8>,
}

/// A certificate with its key.
#[derive(Clone)]
pub struct Identity {
    /// The certificate, as PEM.
    pub certificate: String,
    /// The key, as PEM.
    pub key: String,
    /// The certificate, as DER.
    pub certificate_der: Vec<u8>,
    /// The key, as DER (PKCS #8).
    pub key_der: Vec<u8>,
}

impl Authority {
    /// A new authority.
    ///
    /// # Panics
    /// Never, with the names that tests use.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        Self { pem: certificate.pem(), der: certificate.der().to_vec(), issuer: Issuer::new(params, key) }
    }

    /// The authority that tests trust by default.
    pub fn shared() -> &'static Self {
        static SHARED: LazyLock<Authority> = LazyLock::new(|| Authority::new("portcullis tests"));
        &SHARED
    }

    /// A certificate for these names and addresses.
    pub fn identity(&self, names: &[&str]) -> Identity {
        self.sign(names, |_| ())
    }

    /// A certificate that expired long ago.
    pub fn expired(&self, names: &[&str]) -> Identity {
        self.sign(names, |params| {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2020, 2, 1);
        })
    }

    /// A certificate that expires after this time.
    pub fn ending_after(&self, time: std::time::Duration, names: &[&str]) -> Identity {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("it is after 1970");
        self.sign(names, |params| {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(1970, 1, 1) + now + time;
        })
    }

    fn sign(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            certificate_der: certificate.der().to_vec(),
            key_der: key.serialize_der(),
        }
    }
}

impl Identity {
    /// Writes `tls.crt` and `tls.key`, as the evaluator reads them, each by rename.
    ///
    /// # Panics
    /// When the folder cannot be written.
    pub fn write_to(&self, folder: &Path) {
        for (name, text) in [("tls.crt", &self.certificate), ("tls.key", &self.key)] {
            let temporary = folder.join(format!(".{name}.tmp"));
            fs::write(&temporary, text).expect("the folder can be written");
            fs::rename(&temporary, folder.join(name)).expect("the folder can be written");
        }
    }
}
