//! Requests to an API server as an administrator, without a process for each.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use crate::Error;
use crate::layout::Layout;

/// How long one request may take. An API server may wait half a minute for a webhook, and the machine may be busy.
const LIMIT: Duration = Duration::from_secs(60);

/// The largest answer, in bytes.
pub(crate) const MAX_ANSWER: u64 = 256 << 20;

/// A client with the rights of an administrator.
pub(crate) struct Client {
    /// The TLS configuration; `None` for a proxy on this machine, which does not authenticate clients.
    config: Option<Arc<ClientConfig>>,
}

impl Client {
    /// A client with the certificates of this cluster.
    pub(crate) fn new(layout: &Layout) -> Result<Self, Error> {
        let read = |name: &str| fs::read(layout.pki(name)).map_err(Error::file("read", &layout.pki(name)));
        let certificate = |name: &str| {
            let pem = read(name)?;
            Ok::<_, Error>(CertificateDer::from_pem_slice(&pem).expect("rcgen wrote a certificate").into_owned())
        };
        let mut roots = RootCertStore::empty();
        roots.add(certificate("ca.crt")?)?;
        let key = PrivateKeyDer::from_pem_slice(&read("admin.key")?).expect("rcgen wrote a key");
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate("admin.crt")?], key)?;
        Ok(Self { config: Some(Arc::new(config)) })
    }

    /// A client of `kubectl proxy`.
    pub(crate) fn through_proxy() -> Self {
        Self { config: None }
    }

    /// Whether a request to this path is answered with status 200.
    pub(crate) fn is_ok(&self, server: SocketAddr, path: &str) -> bool {
        self.send(server, &Question::get(path)).is_ok_and(|(status, _)| status == 200)
    }

    /// The object of this path, if there is one.
    pub(crate) fn object(&self, server: SocketAddr, path: &str) -> Option<Value> {
        let (status, body) = self.send(server, &Question::get(path)).ok()?;
        serde_json::from_slice(&body).ok().filter(|_| status == 200)
    }

    /// Asks, and returns status and body.
    pub(crate) fn send(&self, server: SocketAddr, question: &Question<'_>) -> io::Result<(u16, Vec<u8>)> {
        // An answer of version 1.0 comes in one piece, which ends with the connection.
        self.exchange(server, question.bytes("HTTP/1.0", server).as_bytes())
    }

    /// Posts any bytes with the content type of JSON, and returns status and body.
    pub(crate) fn post_bytes(&self, server: SocketAddr, path: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        let length = body.len();
        let fields = format!("Accept: application/json\r\nContent-Type: application/json\r\nContent-Length: {length}");
        let head = format!("POST {path} HTTP/1.0\r\nHost: {server}\r\n{fields}\r\n\r\n");
        self.exchange(server, &[head.as_bytes(), body].concat())
    }

    fn exchange(&self, server: SocketAddr, request: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        let answer = exchange(self.connect(server)?, request)?;
        parse(&answer).ok_or_else(|| io::Error::other("not an answer in HTTP"))
    }

    /// Connects, with [`LIMIT`] for each read and write.
    pub(crate) fn connect(&self, server: SocketAddr) -> io::Result<Box<dyn Stream>> {
        let socket = TcpStream::connect_timeout(&server, LIMIT)?;
        socket.set_read_timeout(Some(LIMIT))?;
        socket.set_write_timeout(Some(LIMIT))?;
        socket.set_nodelay(true)?;
        let Some(config) = &self.config else { return Ok(Box::new(socket)) };
        let name = ServerName::from(server.ip());
        let connection = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        Ok(Box::new(StreamOwned::new(connection, socket)))
    }
}

/// Bytes in both directions.
pub(crate) trait Stream: Read + Write + Send {}

impl<S: Read + Write + Send> Stream for S {}

/// Sends a request, and reads until the server closes the connection.
fn exchange(mut stream: impl Read + Write, request: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    Ok(answer)
}

/// A request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) content_type: &'a str,
    /// The content type of the body; empty without a body.
    pub(crate) body: &'a str,
}

impl<'a> Question<'a> {
    fn get(path: &'a str) -> Self {
        Self { method: "GET", path, content_type: "", body: "" }
    }

    /// The whole request, in this version of HTTP.
    pub(crate) fn bytes(&self, version: &str, server: SocketAddr) -> String {
        let Question { method, path, content_type, body } = self;
        let mut head = format!("{method} {path} {version}\r\nHost: {server}\r\nAccept: application/json\r\n");
        if !body.is_empty() {
            head += &format!("Content-Type: {content_type}\r\nContent-Length: {}\r\n", body.len());
        }
        format!("{head}\r\n{body}")
    }
}

/// Status and body of an answer.
fn parse(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer[end + 4..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_status_and_a_body() {
        assert_eq!(parse(b"HTTP/1.0 200 OK\r\nA: b\r\n\r\nok"), Some((200, b"ok".to_vec())));
        assert_eq!(parse(b"HTTP/1.0 503 \r\n\r\n"), Some((503, Vec::new())));
        assert_eq!(parse(b"HTTP/1.0 200 OK\r\n"), None);
        assert_eq!(parse(b"garbage\r\n\r\n"), None);
    }
}
