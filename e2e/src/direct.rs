//! Calls of one replica as an API server makes them, without an API server.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};

use crate::{Installation, Pod};

/// Calls one replica as an API server does: by a webhook's path, and with its certificate authorities.
pub struct Caller {
    config: Arc<ClientConfig>,
    address: SocketAddr,
    host: String,
    path: String,
}

impl Caller {
    /// Calls what this webhook configuration calls.
    ///
    /// # Panics
    /// When the configuration is not one of the product.
    pub fn new(installation: &Installation<'_>, webhook: &Value, replica: &Pod) -> Self {
        let config = &webhook["webhooks"][0]["clientConfig"];
        let bundle = STANDARD.decode(text(&config["caBundle"])).expect("a bundle in base64");
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(&bundle) {
            roots.add(authority.expect("a certificate")).expect("an authority");
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let builder =
            builder.with_safe_default_protocol_versions().expect("ring has them").with_root_certificates(roots);
        Self {
            config: Arc::new(builder.with_no_client_auth()),
            address: SocketAddr::from((replica.address(), 8443)),
            host: format!("{}.{}.svc", text(&config["service"]["name"]), installation.namespace()),
            path: text(&config["service"]["path"]).to_owned(),
        }
    }

    /// The verdict on the creation of a pod.
    ///
    /// # Errors
    /// When the replica does not answer, or not with a verdict.
    pub fn ask(&self, namespace: &str) -> io::Result<Value> {
        let kind = json!({ "group": "", "version": "v1", "kind": "Pod" });
        let resource = json!({ "group": "", "version": "v1", "resource": "pods" });
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "00000000-0000-4000-8000-000000000001", "kind": kind, "resource": resource,
                "name": "web", "namespace": namespace, "operation": "CREATE", "userInfo": { "username": "alice" },
                "object": {
                    "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web", "namespace": namespace },
                    "spec": { "containers": [{ "name": "main", "image": "example.invalid/none" }] },
                },
            },
        });
        match self.send(review.to_string().as_bytes())? {
            (200, answer) => Ok(answer["response"].clone()),
            (code, answer) => Err(io::Error::other(format!("{code} {answer}"))),
        }
    }

    /// Status and body of the answer to any bytes.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn send(&self, body: &[u8]) -> io::Result<(u16, Value)> {
        let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::clone(&self.config), name).map_err(io::Error::other)?;
        let socket = TcpStream::connect(self.address)?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut stream = StreamOwned::new(connection, socket);
        let (path, host, length) = (&self.path, &self.host, body.len());
        let fields = format!("Host: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}");
        let head = format!("POST {path} HTTP/1.1\r\n{fields}\r\nConnection: close\r\n\r\n");
        stream.write_all(&[head.as_bytes(), body].concat())?;
        stream.flush()?;
        let (mut answer, mut bytes) = (Vec::new(), [0; 4096]);
        loop {
            match stream.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => answer.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            }
        }
        let text = String::from_utf8_lossy(&answer);
        let parsed = text.split_once("\r\n\r\n").and_then(|(head, body)| {
            let code = head.split(' ').nth(1)?.parse().ok()?;
            Some((code, serde_json::from_str(body).unwrap_or_default()))
        });
        parsed.ok_or_else(|| io::Error::other(text.clone().into_owned()))
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("a text is wanted, not {value}"))
}
