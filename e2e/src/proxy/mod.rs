//! Rig APX: a scripted proxy between one program and an API server. It speaks TLS on both sides, passes requests on unchanged, and
//! applies rules to those that match.
//!
//! A program uses it through its kubeconfig ([`crate::PodSetup::through`]); the program's own token is passed on to the
//! API server.

mod message;
mod relay;
mod rule;
mod shared;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::Value;

pub use rule::Rule;
pub use shared::Request;

use crate::Cluster;
use crate::lock;
use shared::{Shared, Watch};

/// A proxy. It ends when this is dropped, with all connections through it.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    /// A proxy in front of the first API server, at an address of its own.
    ///
    /// # Panics
    /// When it cannot listen.
    pub fn start(cluster: &Cluster) -> Self {
        let read = |name: &str| std::fs::read(cluster.layout.pki(name)).expect("the cluster has certificates");
        let certificate = |name: &str| CertificateDer::from_pem_slice(&read(name)).expect("a certificate").into_owned();
        let key = PrivateKeyDer::from_pem_slice(&read("proxy.key")).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().expect("ring has them").with_no_client_auth();
        let server = builder.with_single_cert(vec![certificate("proxy.crt")], key).expect("a pair");
        let mut roots = RootCertStore::empty();
        roots.add(certificate("ca.crt")).expect("an authority");
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let client = builder.expect("ring has them").with_root_certificates(roots).with_no_client_auth();

        let address = cluster.proxy_address();
        let listener = TcpListener::bind(address).expect("an address of its own");
        let shared = Arc::new(Shared {
            upstream: cluster.api_servers()[0],
            server: Arc::new(server),
            client: Arc::new(client),
            rules: Mutex::default(),
            requests: Mutex::default(),
            watches: Mutex::default(),
            held: Mutex::default(),
            is_closed: false.into(),
            has_ended: false.into(),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if accepting.has_ended.load(Ordering::SeqCst) {
                    break;
                }
                let shared = Arc::clone(&accepting);
                // An error means that one side has closed the connection.
                thread::spawn(move || drop(relay::serve(&shared, stream)));
            }
        });
        Self { address, shared }
    }

    /// Its address, for [`crate::PodSetup::through`].
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds a rule. The first rule that matches a request applies.
    pub fn rule(&self, rule: Rule) {
        lock(&self.shared.rules).push(rule);
    }

    /// Removes all rules, and resumes held watches.
    pub fn clear(&self) {
        lock(&self.shared.rules).clear();
        lock(&self.shared.held).clear();
    }

    /// All requests so far, in the order in which they came.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.shared.requests).clone()
    }

    /// The requests of a method whose path has this part.
    pub fn requests_of(&self, method: &str, part: &str) -> Vec<Request> {
        self.requests().into_iter().filter(|one| one.method == method && one.path.contains(part)).collect()
    }

    /// Inserts an event into all open watches whose path has this part, and returns how many these are. The event is a
    /// complete one, like `{"type": "ERROR", "object": {…, "code": 410}}`.
    pub fn inject(&self, part: &str, event: &Value) -> usize {
        self.each(part, |watch| lock(&watch.injected).push(event.clone()))
    }

    /// Cuts all open watches whose path has this part, and returns how many these were.
    pub fn cut(&self, part: &str) -> usize {
        self.each(part, |watch| watch.is_cut.store(true, Ordering::SeqCst))
    }

    /// The number of open watches whose path has this part.
    pub fn watches(&self, part: &str) -> usize {
        self.each(part, |_| ())
    }

    fn each(&self, part: &str, act: impl Fn(&Watch)) -> usize {
        let mut watches = lock(&self.shared.watches);
        watches.retain(|watch| !watch.has_ended.load(Ordering::SeqCst));
        let matching = watches.iter().filter(|watch| watch.path.contains(part));
        matching.map(|watch| act(watch)).count()
    }

    /// Makes watches whose path has this part stay open but silent, until [`Proxy::clear`]. What the API server sends in the
    /// meantime is not lost.
    pub fn hold(&self, part: &str) {
        lock(&self.shared.held).push(part.to_owned());
    }

    /// Cuts every connection, and closes new ones at once.
    pub fn close(&self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
    }

    /// Serves again, after [`Proxy::close`].
    pub fn open(&self) {
        self.shared.is_closed.store(false, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::SeqCst);
        self.close();
        // The listener checks whether it should end whenever a client connects.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
    }
}
