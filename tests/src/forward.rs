//! An outbound proxy: it opens tunnels on `CONNECT`, and resolves names that nothing else resolves.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use portcullis_testkit::lock;

use crate::address;

/// A running proxy. It accepts no more connections when this is dropped.
pub struct ForwardProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// The credentials that clients must send; `None` if it is open to all.
    login: Option<String>,
    tunnels: Mutex<Vec<String>>,
    stop: AtomicBool,
}

impl ForwardProxy {
    /// A proxy that is open to all.
    pub fn open() -> Self {
        Self::start(None)
    }

    /// A proxy that requires this user and password.
    pub fn with_login(user: &str, password: &str) -> Self {
        Self::start(Some(format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))))
    }

    fn start(login: Option<String>) -> Self {
        let address = address::ports();
        let listener = address::listen(address);
        let shared = Arc::new(Shared { login, tunnels: Mutex::default(), stop: AtomicBool::new(false) });
        let of_thread = Arc::clone(&shared);
        thread::spawn(move || {
            while !of_thread.stop.load(Ordering::SeqCst) {
                let Ok((stream, _)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                };
                let shared = Arc::clone(&of_thread);
                // An error means that one side has closed the connection.
                thread::spawn(move || drop(shared.serve(stream)));
            }
        });
        Self { address, shared }
    }

    /// Its host with the port.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// The targets of the tunnels, as their clients named them.
    pub fn tunnels(&self) -> Vec<String> {
        lock(&self.shared.tunnels).clone()
    }
}

impl Drop for ForwardProxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
    }
}

impl Shared {
    fn serve(&self, mut caller: TcpStream) -> io::Result<()> {
        caller.set_nonblocking(false)?;
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && head.len() < 16 << 10 {
            caller.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        let shown = lines.find(|(name, _)| name.eq_ignore_ascii_case("proxy-authorization")).map(|(_, value)| value);
        if self.login.is_some() && self.login.as_deref() != shown {
            let refusal =
                "HTTP/1.1 407 Login\r\nproxy-authenticate: Basic realm=\"tests\"\r\ncontent-length: 0\r\n\r\n";
            return caller.write_all(refusal.as_bytes());
        }
        let mut words = head.split_whitespace();
        let (Some("CONNECT"), Some(target)) = (words.next(), words.next()) else {
            return caller.write_all(b"HTTP/1.1 405 Only CONNECT\r\ncontent-length: 0\r\n\r\n");
        };
        lock(&self.tunnels).push(target.to_owned());
        // Every name stands for one of this test's servers, which differ by port.
        let port = target.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(443);
        let server = TcpStream::connect(SocketAddr::new(address::loopback(), port))?;
        caller.write_all(b"HTTP/1.1 200 Connected\r\n\r\n")?;
        let (mut up_from, mut up_to) = (caller.try_clone()?, server.try_clone()?);
        thread::spawn(move || {
            // The other direction reports the end too.
            let _ = io::copy(&mut up_from, &mut up_to);
            let _ = up_to.shutdown(Shutdown::Write);
        });
        let (mut down_from, mut down_to) = (server, caller);
        io::copy(&mut down_from, &mut down_to)?;
        down_to.shutdown(Shutdown::Write)
    }
}
