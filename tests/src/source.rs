//! Rig SRC: a source of modules over HTTP that does what a script says, and remembers who asked for what.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::tls::{Tls, old_server_hello};
use crate::{Authority, Folder, address, wat};

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
    /// For paths without a script.
    otherwise: Mutex<Option<Box<Otherwise>>>,
    requests: Mutex<Vec<Asked>>,
    connections: AtomicUsize,
}

type Otherwise = dyn Fn(&Asked) -> Reply + Send;

/// A request that came.
#[derive(Debug, Clone)]
pub struct Asked {
    /// `GET`, `POST`.
    pub method: String,
    /// With the query.
    pub path: String,
    /// All lines of the head.
    pub head: String,
    /// The body, of at most a mebibyte.
    pub body: String,
    /// When.
    pub at: Instant,
}

impl Asked {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    }
}

/// One answer.
#[derive(Debug, Clone)]
pub struct Reply {
    head: Head,
    body: Body,
    /// Waited before the head.
    delay: Duration,
    /// The body's pace, in bytes a second.
    rate: Option<u64>,
}

#[derive(Debug, Clone)]
enum Head {
    /// Status and headers.
    Whole(u16, Vec<(String, String)>),
    /// None ever comes.
    Silence,
}

#[derive(Debug, Clone)]
enum Body {
    /// The bytes, and how many of them are sent before the connection ends.
    Whole(Vec<u8>, usize),
    /// Zeros without end and without a length.
    Endless,
}

impl Reply {
    /// 200 with these bytes.
    pub fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self::with(200, body)
    }

    /// 200 with a module that accepts everything.
    pub fn module() -> Self {
        Self::ok(crate::guest("always_accept"))
    }

    /// 200 with a module that no other source has.
    pub fn module_named(name: &str) -> Self {
        Self::ok(Self::module_bytes(name))
    }

    /// A module that accepts everything and that no other test has: WebAssembly text is given a data segment of this text.
    pub fn module_bytes(name: &str) -> Vec<u8> {
        wat(&format!(
            r#"(module (import "wapc" "__guest_response" (func $respond (param i32 i32)))
                 (memory (export "memory") 1)
                 (data (i32.const 0) "{{\"valid\":true,\"accepted\":true}}") (data (i32.const 64) "\"v1\"")
                 (data (i32.const 128) "{name}")
                 (func (export "__guest_call") (param $op_len i32) (param i32) (result i32)
                   (if (i32.eq (local.get $op_len) (i32.const 16))
                     (then (call $respond (i32.const 64) (i32.const 4)))
                     (else (call $respond (i32.const 0) (i32.const 30))))
                   (i32.const 1)))"#
        ))
    }

    /// This status with a short body.
    pub fn status(status: u16) -> Self {
        Self::with(status, format!("status {status} of the test\n"))
    }

    fn with(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        let length = body.len();
        Self {
            head: Head::Whole(status, Vec::new()),
            body: Body::Whole(body, length),
            delay: Duration::ZERO,
            rate: None,
        }
    }

    /// 302 to this address.
    pub fn redirect(to: &str) -> Self {
        Self::with(302, "").header("location", to)
    }

    /// Takes the request and never answers.
    pub fn silence() -> Self {
        Self { head: Head::Silence, ..Self::status(200) }
    }

    /// 200 and zeros without end.
    pub fn endless() -> Self {
        Self { body: Body::Endless, ..Self::status(200) }
    }

    /// With a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        if let Head::Whole(_, headers) = &mut self.head {
            headers.push((name.to_owned(), value.to_owned()));
        }
        self
    }

    /// The connection ends after this many bytes of the body, whatever its length was said to be.
    #[must_use]
    pub fn cut_after(mut self, bytes: usize) -> Self {
        if let Body::Whole(_, end) = &mut self.body {
            *end = bytes;
        }
        self
    }

    /// Waits before the head.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// The body comes at this pace, in bytes a second.
    #[must_use]
    pub fn rate(mut self, bytes: u64) -> Self {
        self.rate = Some(bytes);
        self
    }
}

impl Source {
    /// A server that answers 404 until it is told otherwise.
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

    /// Over TLS with a good certificate.
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

    /// Writes the certificate of its authority beside the policies, for `--source-ca`, and gives the path.
    pub fn ca_file(&self, folder: &Folder) -> String {
        folder.write("source-ca.pem", &Authority::shared().pem);
        folder.path("source-ca.pem").to_string_lossy().into_owned()
    }

    /// What a path answers: one reply after the other, the last one for ever. Replaces what it was told before.
    pub fn answer(&self, path: &str, replies: impl IntoIterator<Item = Reply>) {
        lock(&self.shared.scripts).insert(path.to_owned(), replies.into_iter().collect());
    }

    /// What paths without a script answer.
    pub fn otherwise(&self, answer: impl Fn(&Asked) -> Reply + Send + 'static) {
        *lock(&self.shared.otherwise) = Some(Box::new(answer));
    }

    /// When a path was asked for.
    pub fn requests(&self, path: &str) -> Vec<Instant> {
        lock(&self.shared.requests).iter().filter(|asked| asked.path == path).map(|asked| asked.at).collect()
    }

    /// All requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.shared.requests).clone()
    }

    /// How many connections were accepted, also those whose handshake failed.
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
        let listener = TcpListener::bind(self.address).expect("the port is free");
        listener.set_nonblocking(true).expect("a listener can be asked without waiting");
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
                // An error is the loader's hanging up, or a handshake that was meant to fail.
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
                self.answer(&mut rustls::StreamOwned::new(connection, stream))
            }
            (None, Tls::OldVersion) => {
                let mut hello = [0; 1024];
                let _ = stream.read(&mut hello)?;
                stream.write_all(&old_server_hello())?;
                // Until the client hangs up.
                let _ = stream.read(&mut hello)?;
                Ok(())
            }
            (None, _) => self.answer(&mut stream),
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

    fn answer(&self, stream: &mut (impl Read + Write)) -> io::Result<()> {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && head.len() < 16 << 10 {
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let reply = self.reply(&asked(&head, stream)?);
        thread::sleep(reply.delay);
        let Head::Whole(status, headers) = reply.head else {
            // Until the client hangs up.
            let _ = stream.read(&mut byte)?;
            return Ok(());
        };
        let mut head = format!("HTTP/1.1 {status} Scripted\r\nconnection: close\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        match reply.body {
            Body::Endless => {
                stream.write_all(format!("{head}\r\n").as_bytes())?;
                let zeros = vec![0; 64 << 10];
                loop {
                    stream.write_all(&zeros)?;
                }
            }
            Body::Whole(bytes, end) => {
                stream.write_all(format!("{head}content-length: {}\r\n\r\n", bytes.len()).as_bytes())?;
                let bytes = &bytes[..end];
                let Some(rate) = reply.rate else { return stream.write_all(bytes).and_then(|()| stream.flush()) };
                for piece in bytes.chunks(usize::try_from(rate.div_ceil(10)).unwrap_or(1)) {
                    stream.write_all(piece)?;
                    stream.flush()?;
                    thread::sleep(Duration::from_millis(1_000 * u64::try_from(piece.len()).unwrap_or(1) / rate));
                }
                Ok(())
            }
        }
    }
}

/// A request whose head has been read.
fn asked(head: &[u8], stream: &mut impl Read) -> io::Result<Asked> {
    let head = String::from_utf8_lossy(head).into_owned();
    let mut words = head.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut asked = Asked { method, path, head, body: String::new(), at: Instant::now() };
    let length = asked.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; usize::min(length, 1 << 20)];
    stream.read_exact(&mut body)?;
    asked.body = String::from_utf8_lossy(&body).into_owned();
    Ok(asked)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
