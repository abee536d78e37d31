//! TLS configurations of the tests' own servers and raw clients, valid and invalid.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use tokio_rustls::TlsConnector;

use crate::{Authority, Identity, address};

/// The TLS of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls {
    /// No TLS: plain HTTP.
    Off,
    /// A certificate of [`Authority::shared`].
    Trusted,
    /// An expired certificate of [`Authority::shared`].
    Expired,
    /// A certificate of [`Authority::shared`] for another host.
    OtherHost,
    /// A certificate of an unknown authority.
    UnknownAuthority,
    /// TLS 1.1 only.
    OldVersion,
}

impl Tls {
    /// The configuration of the server; `None` without TLS, or with a version that rustls does not have.
    pub(crate) fn server(self) -> Option<Arc<ServerConfig>> {
        let own = address::loopback().to_string();
        let names = [own.as_str(), "localhost"];
        let shared = Authority::shared();
        let identity = match self {
            Self::Off | Self::OldVersion => return None,
            Self::Trusted => shared.identity(&names),
            Self::Expired => shared.expired(&names),
            Self::OtherHost => shared.identity(&["other.example"]),
            Self::UnknownAuthority => Authority::new("nobody knows").identity(&names),
        };
        Some(server(&identity))
    }
}

fn server(identity: &Identity) -> Arc<ServerConfig> {
    let certificate = CertificateDer::from(identity.certificate_der.clone());
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(identity.key_der.clone()));
    let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().expect("ring has them").with_no_client_auth();
    Arc::new(builder.with_single_cert(vec![certificate], key).expect("the key is that of the certificate"))
}

/// The configuration of a client that trusts [`Authority::shared`].
pub(crate) fn client(versions: &[&'static SupportedProtocolVersion], alpn: &[&str]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(Authority::shared().der.clone())).expect("an authority");
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_protocol_versions(versions).expect("ring has them");
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// What makes connections for a client that trusts [`Authority::shared`], for asynchronous code. Each costs the server a whole handshake.
pub fn connector() -> TlsConnector {
    let mut config = ClientConfig::clone(&client(rustls::ALL_VERSIONS, &[]));
    config.resumption = Resumption::disabled();
    TlsConnector::from(Arc::new(config))
}

/// The ServerHello of TLS 1.1, which no current client accepts.
pub(crate) fn old_server_hello() -> Vec<u8> {
    let mut hello = vec![0x03, 0x02];
    hello.extend([0x5a; 32]);
    // No session id, TLS_RSA_WITH_AES_128_CBC_SHA, no compression.
    hello.extend([0x00, 0x00, 0x2f, 0x00]);
    let length = u8::try_from(hello.len()).expect("it is short");
    let mut record = vec![0x16, 0x03, 0x02, 0x00, length + 4, 0x02, 0x00, 0x00, length];
    record.extend(hello);
    record
}
