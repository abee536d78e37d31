//! Rig SRC: a scripted source of modules over HTTP, which remembers requests.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use portcullis_testkit::{Asked, Reply, exchange, lock};

use crate::tls::{Tls, old_server_hello};
use crate::{Authority, Folder, address};

/// A scripted server. It listens from the start; [`Source::close`] and [`Source::open`] change that.
pub struct Source {
    address: SocketAddr,
    shared: Arc<Shared>,
    listening: Mutex<Option<Listening>>,
}

struct Listening {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

struct Shared {
    tls: Tls,
    config: Option<Arc<rustls::ServerConfig>>,
    scripts: Mutex<HashMap<String, Vec<Reply>>>,
    /// The answer to paths without a script.
    otherwise: Mutex<Option<Box<Otherwise>>>,
    requests: Mutex<Vec<Asked>>,
    connections: AtomicUsize,
}

type Otherwise = dyn Fn(&Asked) -> Reply + Send;

impl Source {
    /// A server that answers 404 to paths without a script.
    ///
    /// # Panics
    /// When it cannot listen.
    pub fn new(tls: Tls) -> Self {
        let shared = Shared {
            tls,
            config: tls.server(),
            scripts: Mutex::default(),
            otherwise: Mutex::default(),
            requests: Mutex::default(),
            connections: AtomicUsize::new(0),
        };
        let source = Self { address: address::ports(), shared: Arc::new(shared), listening: Mutex::default() };
        source.open();
        source
    }

    /// A server over TLS with a valid certificate.
    pub fn https() -> Self {
        Self::new(Tls::Trusted)
    }

    /// Its host with the port.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// The address of a path.
    pub fn url(&self, path: &str) -> String {
        let scheme = if self.shared.tls == Tls::Off { "http" } else { "https" };
        format!("{scheme}://{}{path}", self.address)
    }

    /// Writes the certificate of its authority beside the policies, for `--source-ca`, and returns the path.
    pub fn ca_file(&self, folder: &Folder) -> String {
        folder.write("source-ca.pem", &Authority::shared().pem);
        folder.path("source-ca.pem").to_string_lossy().into_owned()
    }

    /// Sets the answers to a path: one reply after the other, the last one for ever. Replaces earlier replies.
    pub fn answer(&self, path: &str, replies: impl IntoIterator<Item = Reply>) {
        lock(&self.shared.scripts).insert(path.to_owned(), replies.into_iter().collect());
    }

    /// Sets the answer to paths without a script.
    pub fn otherwise(&self, answer: impl Fn(&Asked) -> Reply + Send + 'static) {
        *lock(&self.shared.otherwise) = Some(Box::new(answer));
    }

    /// The times of all requests to this path.
    pub fn requests(&self, path: &str) -> Vec<Instant> {
        lock(&self.shared.requests).iter().filter(|asked| asked.path == path).map(|asked| asked.at).collect()
    }

    /// All requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.shared.requests).clone()
    }

    /// How many connections were accepted, including those whose handshake failed.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Refuses connections from now on.
    ///
    /// # Panics
    /// When its own thread failed.
    pub fn close(&self) {
        if let Some(Listening { stop, thread }) = lock(&self.listening).take() {
            stop.store(true, Ordering::SeqCst);
            thread.join().expect("the source's thread ends");
        }
    }

    /// Accepts connections from now on.
    ///
    /// # Panics
    /// When it cannot listen.
    pub fn open(&self) {
        let listener = address::listen(self.address);
        let (shared, stop) = (Arc::clone(&self.shared), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                let Ok((stream, _)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                };
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let shared = Arc::clone(&shared);
                // An error means that the loader closed the connection, or that a handshake failed as it should.
                thread::spawn(move || drop(shared.serve(stream)));
            }
        });
        *lock(&self.listening) = Some(Listening { stop, thread });
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Some(Listening { stop, .. }) = lock(&self.listening).take() {
            stop.store(true, Ordering::SeqCst);
        }
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        match (&self.config, self.tls) {
            (Some(config), _) => {
                let connection = rustls::ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
                exchange(&mut rustls::StreamOwned::new(connection, stream), |asked| self.reply(asked))
            }
            (None, Tls::OldVersion) => {
                let mut hello = [0; 1024];
                let _ = stream.read(&mut hello)?;
                stream.write_all(&old_server_hello())?;
                // Waits until the client closes the connection.
                let _ = stream.read(&mut hello)?;
                Ok(())
            }
            (None, _) => exchange(&mut stream, |asked| self.reply(asked)),
        }
    }

    fn reply(&self, asked: &Asked) -> Reply {
        lock(&self.requests).push(asked.clone());
        match lock(&self.scripts).get_mut(&asked.path) {
            Some(replies) if replies.len() > 1 => return replies.remove(0),
            Some(replies) => return replies.first().cloned().unwrap_or_else(|| Reply::status(404)),
            None => {}
        }
        lock(&self.otherwise).as_ref().map_or_else(|| Reply::status(404), |answer| answer(asked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;

    #[test]
    fn a_script_is_followed_and_its_last_line_stays() {
        let source = Source::https();
        source.answer("/m", [Reply::status(500), Reply::ok("module")]);
        let client = Client::tls(source.address);
        let answers = [(); 3].map(|()| client.get("/m").expect("answers").status);
        assert_eq!(answers, [500, 200, 200]);
        assert_eq!(source.requests("/m").len(), 3);
        assert_eq!(client.get("/other").expect("answers").status, 404);
    }

    #[test]
    fn a_cut_body_and_a_closed_port_are_errors_of_transport() {
        let source = Source::https();
        source.answer("/m", [Reply::ok("0123456789").cut_after(6)]);
        let client = Client::tls(source.address);
        client.get("/m").expect_err("the body is cut");
        source.close();
        client.get("/m").expect_err("the port is closed");
        source.open();
        source.answer("/m", [Reply::ok("0123456789")]);
        assert_eq!(client.get("/m").expect("answers").body, "0123456789");
    }

    #[test]
    fn bad_certificates_are_bad() {
        for tls in [Tls::Expired, Tls::OtherHost, Tls::UnknownAuthority, Tls::OldVersion] {
            let source = Source::new(tls);
            Client::tls(source.address).get("/").expect_err(&format!("{tls:?}"));
        }
    }
}
