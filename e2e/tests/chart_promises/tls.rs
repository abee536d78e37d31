//! TLS connections to pods.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use crate::stage::address;

/// The longest wait for the other side, on a busy machine.
const LIMIT: Duration = Duration::from_secs(10);

/// A certificate and its key, as PEM.
pub(crate) type Identity = (String, String);

/// Connects to a port of a pod and completes the handshake. Trusts only the authorities of `bundle` (PEM), for a certificate with `name`.
pub(crate) fn connect(
    pod: &Value,
    port: u16,
    name: &str,
    bundle: &str,
    identity: Option<&Identity>,
) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap()
        }
    };
    let mut connection =
        ClientConnection::new(Arc::new(config), ServerName::try_from(name.to_owned()).unwrap()).unwrap();
    let address = SocketAddr::new(address(pod), port);
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream)?;
    }
    Ok(StreamOwned::new(connection, stream))
}
