//! A server of modules over TLS, with its own certificate authority, which remembers requests.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_testkit::{Asked, Reply, exchange, lock};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::Cluster;

/// The port at which it listens.
pub(crate) const PORT: u16 = 8446;

/// A server of modules. It ends when this is dropped.
pub struct Source {
    listens: SocketAddr,
    /// Its address for loaders.
    address: SocketAddr,
    authority: String,
    shared: Arc<Shared>,
}

struct Shared {
    config: Arc<ServerConfig>,
    answers: Mutex<HashMap<String, Reply>>,
    requests: Mutex<Vec<(String, Instant)>>,
    /// The paths of the answers that a client did not take to their end.
    cut: Mutex<Vec<String>>,
    /// The part of the paths that need a login, and the value of the header that has it.
    login: Mutex<Option<(String, String)>>,
    /// When each client connected, also those whose connections it closed.
    connections: Mutex<Vec<Instant>>,
    /// The clients whose connections it closes.
    refused: Mutex<Vec<IpAddr>>,
    is_closed: AtomicBool,
    /// How much longer every answer takes.
    delay: Mutex<Duration>,
    has_ended: AtomicBool,
}

impl Source {
    /// A server on the loopback, at an address that belongs to the cluster.
    ///
    /// # Panics
    /// When it cannot listen.
    pub(crate) fn start(cluster: &Cluster) -> Self {
        let address = SocketAddr::from((cluster.source_address(), PORT));
        Self::listen(address, address)
    }

    /// A server that listens at one address, while loaders use another one, as in a network that translates addresses.
    ///
    /// # Panics
    /// When it cannot listen.
    pub(crate) fn listen(at: SocketAddr, address: SocketAddr) -> Self {
        let (authority, config) = certificate(address.ip());
        let listener = TcpListener::bind(at).unwrap_or_else(|error| panic!("failed to listen at {at}: {error}"));
        let shared = Arc::new(Shared {
            config,
            answers: Mutex::default(),
            requests: Mutex::default(),
            cut: Mutex::default(),
            login: Mutex::default(),
            connections: Mutex::default(),
            refused: Mutex::default(),
            is_closed: false.into(),
            delay: Mutex::default(),
            has_ended: false.into(),
        });
        let server = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if server.has_ended.load(Ordering::SeqCst) {
                    break;
                }
                lock(&server.connections).push(Instant::now());
                let is_refused = stream.peer_addr().is_ok_and(|peer| lock(&server.refused).contains(&peer.ip()));
                if is_refused || server.is_closed.load(Ordering::SeqCst) {
                    continue;
                }
                let server = Arc::clone(&server);
                // An error means that the loader closed the connection.
                thread::spawn(move || drop(server.serve(stream)));
            }
        });
        Self { listens: at, address, authority, shared }
    }

    /// The certificate of its authority, as PEM.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Its host with the port.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// Its IP address for loaders.
    pub fn ip(&self) -> IpAddr {
        self.address.ip()
    }

    /// The address of a path.
    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    /// From now on, answers requests to this path with 200 and these bytes.
    pub fn put(&self, path: &str, body: impl Into<Vec<u8>>) {
        self.answer(path, 200, body, Duration::ZERO);
    }

    /// From now on, answers requests to this path with this status and these bytes, after `delay`.
    pub fn answer(&self, path: &str, status: u16, body: impl Into<Vec<u8>>, delay: Duration) {
        lock(&self.shared.answers).insert(path.to_owned(), Reply::with(status, body).after(delay));
    }

    /// From now on, answers requests to this path with 200 and these bytes, at this rate in bytes per second.
    pub fn trickle(&self, path: &str, body: impl Into<Vec<u8>>, rate: u64) {
        lock(&self.shared.answers).insert(path.to_owned(), Reply::ok(body).rate(rate));
    }

    /// From now on, answers requests to paths that begin like this with 401, unless they have this `Authorization`.
    pub fn demand(&self, path: &str, authorization: &str) {
        *lock(&self.shared.login) = Some((path.to_owned(), authorization.to_owned()));
    }

    /// From now on, answers requests to this path with 302 to this address.
    pub fn redirect(&self, path: &str, to: &str) {
        lock(&self.shared.answers).insert(path.to_owned(), Reply::redirect(to));
    }

    /// From now on, closes the connection of every client.
    pub fn close(&self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
    }

    /// From now on, every answer takes `delay` longer.
    pub fn slow(&self, delay: Duration) {
        *lock(&self.shared.delay) = delay;
    }

    /// From now on, closes the connections of clients from this address.
    pub fn refuse(&self, peer: IpAddr) {
        lock(&self.shared.refused).push(peer);
    }

    /// From now on, answers every client again, without delay.
    pub fn open(&self) {
        lock(&self.shared.refused).clear();
        self.slow(Duration::ZERO);
        self.shared.is_closed.store(false, Ordering::SeqCst);
    }

    /// The times of all requests to this path.
    pub fn requests(&self, path: &str) -> Vec<Instant> {
        lock(&self.shared.requests).iter().filter(|(asked, _)| asked == path).map(|(_, at)| *at).collect()
    }

    /// How many answers to this path were under way when the client closed the connection.
    pub fn cut(&self, path: &str) -> usize {
        lock(&self.shared.cut).iter().filter(|cut| *cut == path).count()
    }

    /// The paths and times of all requests.
    pub fn all_requests(&self) -> Vec<(String, Instant)> {
        lock(&self.shared.requests).clone()
    }

    /// The times of all connections, also of those that it closed. A connection is for one request.
    pub fn connections(&self) -> Vec<Instant> {
        lock(&self.shared.connections).clone()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::SeqCst);
        // It checks whether it should end whenever a client connects.
        let _ = TcpStream::connect_timeout(&self.listens, Duration::from_secs(1));
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let connection = ServerConnection::new(Arc::clone(&self.config)).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, stream);
        let mut path = None;
        let answered = exchange(&mut stream, |asked| {
            lock(&self.requests).push((asked.path.clone(), asked.at));
            path = Some(asked.path.clone());
            // Not while the lock is held: answers would wait for each other.
            let delay = *lock(&self.delay);
            thread::sleep(delay);
            self.refusal(asked)
                .or_else(|| lock(&self.answers).get(&asked.path).cloned())
                .unwrap_or_else(|| Reply::with(404, ""))
        });
        if answered.is_err() {
            lock(&self.cut).extend(path);
        }
        answered?;
        stream.conn.send_close_notify();
        stream.flush()
    }

    /// The answer to a request without the login that its path needs.
    fn refusal(&self, asked: &Asked) -> Option<Reply> {
        let login = lock(&self.login);
        let (_, authorization) = login.as_ref().filter(|(path, _)| asked.path.starts_with(path))?;
        let is_right = asked.header("authorization") == Some(authorization);
        (!is_right).then(|| Reply::with(401, "").header("www-authenticate", "Basic realm=\"modules of a test\""))
    }
}

/// An authority's certificate, and a server's with its key.
fn certificate(address: IpAddr) -> (String, Arc<ServerConfig>) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "modules of a test");
    let key = KeyPair::generate().expect("a key");
    let authority = params.self_signed(&key).expect("a certificate").pem();
    let issuer = Issuer::new(params, key);

    let params = CertificateParams::new(vec![address.to_string()]).expect("an address");
    let key = KeyPair::generate().expect("a key");
    let certificate = CertificateDer::from(params.signed_by(&key, &issuer).expect("a certificate").der().to_vec());
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().expect("ring has them").with_no_client_auth();
    (authority, Arc::new(builder.with_single_cert(vec![certificate], key).expect("the key is that of the certificate")))
}
