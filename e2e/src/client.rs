//! Requests to an API server as an administrator, without a process for each.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ConfigBuilder, RootCertStore, StreamOwned};
use serde_json::Value;

use crate::connection::{Answer, Connection, Question, Stream};
use crate::layout::Layout;
use crate::pki::TOKEN;
use crate::{Error, lock};

/// How long one request may take. An API server may wait half a minute for a webhook, and the machine may be busy.
const LIMIT: Duration = Duration::from_secs(60);

/// The most connections to a server that stay open without a request.
const MOST_IDLE: usize = 8;

/// A client with the rights of an administrator.
pub(crate) struct Client {
    /// The TLS configuration; `None` for a proxy on this machine, which does not authenticate clients.
    config: Option<Arc<ClientConfig>>,
    /// The token of the administrator; `None` where another server than an API server is asked.
    token: Option<String>,
    /// Open connections without a request. A handshake costs both sides more than most requests.
    idle: Mutex<HashMap<SocketAddr, Vec<Connection>>>,
}

impl Client {
    /// A client of the API servers of this cluster.
    pub(crate) fn new(layout: &Layout) -> Result<Self, Error> {
        let token = String::from_utf8(read(layout, TOKEN)?).expect("a token is text");
        let config = trusting(layout)?.with_no_client_auth();
        Ok(Self { config: Some(Arc::new(config)), token: Some(token), idle: Mutex::default() })
    }

    /// A client of etcd, which knows clients by their certificates only.
    pub(crate) fn of_etcd(layout: &Layout) -> Result<Self, Error> {
        let key = PrivateKeyDer::from_pem_slice(&read(layout, "etcd-client.key")?).expect("rcgen wrote a key");
        let config = trusting(layout)?.with_client_auth_cert(vec![certificate(layout, "etcd-client.crt")?], key)?;
        Ok(Self { config: Some(Arc::new(config)), token: None, idle: Mutex::default() })
    }

    /// A client of `kubectl proxy`.
    pub(crate) fn through_proxy() -> Self {
        Self { config: None, token: None, idle: Mutex::default() }
    }

    /// Whether a request to this path is answered with status 200.
    pub(crate) fn is_ok(&self, server: SocketAddr, path: &str) -> bool {
        self.send(server, &Question::get(path)).is_ok_and(|answer| answer.code == 200)
    }

    /// The object of this path, if there is one.
    pub(crate) fn object(&self, server: SocketAddr, path: &str) -> Option<Value> {
        let answer = self.send(server, &Question::get(path)).ok()?;
        serde_json::from_slice(&answer.body).ok().filter(|_| answer.code == 200)
    }

    /// Asks, and returns the answer.
    pub(crate) fn send(&self, server: SocketAddr, question: &Question<'_>) -> io::Result<Answer> {
        let request = self.request(server, question);
        // The server may have closed a connection that had no request. What it did not begin to answer is asked again.
        while let Some(mut connection) = self.idle(server) {
            if let Some(answer) = connection.call_if_open(&request) {
                return self.answered(server, connection, answer);
            }
        }
        let mut connection = self.open(server)?;
        let answer = connection.call(&request);
        self.answered(server, connection, answer)
    }

    /// The bytes of a request.
    pub(crate) fn request(&self, server: SocketAddr, question: &Question<'_>) -> Vec<u8> {
        question.request(server, self.token.as_deref())
    }

    fn idle(&self, server: SocketAddr) -> Option<Connection> {
        lock(&self.idle).get_mut(&server)?.pop()
    }

    /// Gives the answer back, and keeps the connection if it can be used again.
    fn answered(&self, server: SocketAddr, connection: Connection, answer: io::Result<Answer>) -> io::Result<Answer> {
        if answer.is_ok() && !connection.is_over() {
            let mut idle = lock(&self.idle);
            let idle = idle.entry(server).or_default();
            if idle.len() < MOST_IDLE {
                idle.push(connection);
            }
        }
        answer
    }

    /// Opens a connection, for one request after the other.
    pub(crate) fn open(&self, server: SocketAddr) -> io::Result<Connection> {
        Ok(Connection::on(self.connect(server)?))
    }

    /// Connects, with [`LIMIT`] for each read and write.
    fn connect(&self, server: SocketAddr) -> io::Result<Box<dyn Stream>> {
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

/// The configuration of a client that trusts the authority of this cluster, but for how it authenticates itself.
fn trusting(layout: &Layout) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, Error> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate(layout, "ca.crt")?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots))
}

fn certificate(layout: &Layout, name: &str) -> Result<CertificateDer<'static>, Error> {
    Ok(CertificateDer::from_pem_slice(&read(layout, name)?).expect("rcgen wrote a certificate"))
}

fn read(layout: &Layout, name: &str) -> Result<Vec<u8>, Error> {
    fs::read(layout.pki(name)).map_err(Error::file("read", &layout.pki(name)))
}
