//! Rig RAW: a client that sends exact bytes at an exact pace, over TCP or TLS.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned, SupportedProtocolVersion};

use crate::{LIMIT, tls};

/// One connection.
pub struct Raw {
    stream: Stream,
    /// The bytes that were read but not used yet.
    buffer: Vec<u8>,
}

enum Stream {
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// One HTTP answer, as it was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawResponse {
    /// The status.
    pub status: u16,
    /// The head without the blank line, in lower case.
    pub head: String,
    /// The body, with the length that the head announces.
    pub body: String,
}

impl RawResponse {
    /// Whether the head says that the connection closes.
    pub fn closes(&self) -> bool {
        self.head.lines().any(|line| line == "connection: close")
    }
}

impl Raw {
    /// A TCP connection.
    ///
    /// # Errors
    /// When it is refused.
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, LIMIT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok(Self { stream: Stream::Tcp(stream), buffer: Vec::new() })
    }

    /// A TLS connection with its handshake done: TLS 1.2 and 1.3, no ALPN.
    ///
    /// # Errors
    /// When it is refused.
    pub fn tls(address: SocketAddr) -> io::Result<Self> {
        Self::tls_with(address, rustls::ALL_VERSIONS, &[])
    }

    /// A TLS connection with its handshake done, with these versions and this ALPN offer.
    ///
    /// # Errors
    /// When it is refused.
    pub fn tls_with(
        address: SocketAddr,
        versions: &[&'static SupportedProtocolVersion],
        alpn: &[&str],
    ) -> io::Result<Self> {
        Handshake::with(address, versions, alpn)?.complete()
    }

    /// The protocol that the server chose by ALPN.
    pub fn alpn(&self) -> Option<String> {
        match &self.stream {
            Stream::Tcp(_) => None,
            Stream::Tls(tls) => tls.conn.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned()),
        }
    }

    /// The server's certificate, as DER; empty without TLS.
    pub fn certificate(&self) -> Vec<u8> {
        let Stream::Tls(tls) = &self.stream else { return Vec::new() };
        tls.conn.peer_certificates().and_then(|chain| chain.first()).map(|first| first.to_vec()).unwrap_or_default()
    }

    /// Sends all bytes.
    ///
    /// # Errors
    /// When the server has closed the connection.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.writer().write_all(bytes.as_ref())?;
        self.writer().flush()
    }

    /// Sends the bytes one by one with a pause after each, until all are sent or the server has closed the connection.
    ///
    /// # Errors
    /// When the server has closed the connection.
    pub fn send_slowly(&mut self, bytes: impl AsRef<[u8]>, pause: Duration) -> io::Result<()> {
        for byte in bytes.as_ref() {
            self.send([*byte])?;
            // The first byte into a closed connection is lost silently; only the next one fails with a reset.
            thread::sleep(pause);
        }
        Ok(())
    }

    /// Closes the sending side; it can still read.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn end_sending(&mut self) -> io::Result<()> {
        match &mut self.stream {
            Stream::Tcp(tcp) => tcp.shutdown(Shutdown::Write),
            Stream::Tls(tls) => {
                tls.conn.send_close_notify();
                tls.flush()?;
                tls.sock.shutdown(Shutdown::Write)
            }
        }
    }

    /// Reads one HTTP answer.
    ///
    /// # Errors
    /// When the connection ends before it is complete, or nothing comes for [`LIMIT`].
    pub fn response(&mut self) -> io::Result<RawResponse> {
        let (end, status, head) = self.head()?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.and_then(|text| text.parse().ok()).unwrap_or(0);
        while self.buffer.len() < end + length {
            self.fill()?;
        }
        let body = String::from_utf8_lossy(&self.buffer[end..end + length]).into_owned();
        self.buffer.drain(..end + length);
        Ok(RawResponse { status, head, body })
    }

    /// Reads the answer to a HEAD request, which has no body whatever its head says.
    ///
    /// # Errors
    /// The same as those of [`Raw::response`].
    pub fn response_to_head(&mut self) -> io::Result<RawResponse> {
        let (end, status, head) = self.head()?;
        self.buffer.drain(..end);
        Ok(RawResponse { status, head, body: String::new() })
    }

    /// Reads one HTTP answer if it arrives within `limit`; an incomplete one is kept for the next call.
    ///
    /// # Errors
    /// When the connection ends before it is complete.
    pub fn response_within(&mut self, limit: Duration) -> io::Result<Option<RawResponse>> {
        self.socket().set_read_timeout(Some(limit))?;
        let response = self.response();
        self.socket().set_read_timeout(Some(LIMIT))?;
        match response {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Ok(None),
            response => response.map(Some),
        }
    }

    /// Waits for a head; returns where it ends in the buffer, its status and its text.
    fn head(&mut self) -> io::Result<(usize, u16, String)> {
        let end = loop {
            if let Some(end) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break end;
            }
            self.fill()?;
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).to_lowercase();
        let status =
            head.split_whitespace().nth(1).and_then(|word| word.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        Ok((end + 4, status, head))
    }

    /// Waits for bytes and returns them, whatever they are.
    ///
    /// # Errors
    /// When the connection ends, or nothing comes for [`LIMIT`].
    pub fn bytes(&mut self) -> io::Result<Vec<u8>> {
        if self.buffer.is_empty() {
            self.fill()?;
        }
        Ok(std::mem::take(&mut self.buffer))
    }

    /// Waits until the server closes the connection, and returns how long that took; `None` if it does not within `limit`. What it sends
    /// in the meantime is dropped.
    pub fn closed_within(&mut self, limit: Duration) -> Option<Duration> {
        let start = Instant::now();
        let time = self.time_to_close(start, limit);
        // It fails if the connection is gone.
        let _ = self.socket().set_read_timeout(Some(LIMIT));
        time
    }

    fn time_to_close(&mut self, start: Instant, limit: Duration) -> Option<Duration> {
        while let Some(left) = limit.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
            // It fails if the connection is gone.
            if self.socket().set_read_timeout(Some(left)).is_err() {
                return Some(start.elapsed());
            }
            match self.fill() {
                Ok(()) => self.buffer.clear(),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                Err(_) => return Some(start.elapsed()),
            }
        }
        None
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut piece = [0; 16 << 10];
        let count = match &mut self.stream {
            Stream::Tcp(tcp) => tcp.read(&mut piece)?,
            Stream::Tls(tls) => tls.read(&mut piece)?,
        };
        self.buffer.extend_from_slice(&piece[..count]);
        if count == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    fn writer(&mut self) -> &mut dyn Write {
        match &mut self.stream {
            Stream::Tcp(tcp) => tcp,
            Stream::Tls(tls) => tls,
        }
    }

    fn socket(&self) -> &TcpStream {
        match &self.stream {
            Stream::Tcp(tcp) => tcp,
            Stream::Tls(tls) => &tls.sock,
        }
    }
}

/// A request as bytes: JSON with its length, unless `headers` say otherwise; headers with an empty value are left out.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let length = body.len().to_string();
    let own = [("Host", "portcullis.example"), ("Content-Type", "application/json"), ("Content-Length", &length)];
    let is_said = |name: &str| headers.iter().any(|(said, _)| said.eq_ignore_ascii_case(name));
    let own = own.into_iter().filter(|(name, _)| !is_said(name));
    let mut bytes = format!("{method} {path} HTTP/1.1\r\n").into_bytes();
    for (name, value) in own.chain(headers.iter().copied().filter(|(_, value)| !value.is_empty())) {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    bytes
}

/// A TLS handshake.
pub struct Handshake {
    tcp: TcpStream,
    connection: ClientConnection,
}

impl Handshake {
    /// Connects and sends the ClientHello, and reads nothing.
    ///
    /// # Errors
    /// When the connection is refused.
    pub fn begin(address: SocketAddr) -> io::Result<Self> {
        let mut begun = Self::with(address, rustls::ALL_VERSIONS, &[])?;
        begun.connection.write_tls(&mut begun.tcp)?;
        Ok(begun)
    }

    /// Connects, and sends nothing.
    fn with(address: SocketAddr, versions: &[&'static SupportedProtocolVersion], alpn: &[&str]) -> io::Result<Self> {
        let Raw { stream: Stream::Tcp(tcp), .. } = Raw::tcp(address)? else { unreachable!("it is TCP") };
        Ok(Self { tcp, connection: client_of(address, versions, alpn)? })
    }

    /// Does the rest.
    ///
    /// # Errors
    /// When the server has closed the connection.
    pub fn complete(mut self) -> io::Result<Raw> {
        while self.connection.is_handshaking() {
            self.connection.complete_io(&mut self.tcp)?;
        }
        let stream = StreamOwned::new(self.connection, self.tcp);
        Ok(Raw { stream: Stream::Tls(Box::new(stream)), buffer: Vec::new() })
    }
}

/// The client side of a TLS handshake as bytes: a ClientHello that the evaluator answers.
///
/// # Errors
/// Never with a loopback address.
pub fn client_hello(address: SocketAddr) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    client_of(address, rustls::ALL_VERSIONS, &[])?.write_tls(&mut bytes)?;
    Ok(bytes)
}

/// The client side of TLS with a server, before the first byte.
fn client_of(
    address: SocketAddr,
    versions: &[&'static SupportedProtocolVersion],
    alpn: &[&str],
) -> io::Result<ClientConnection> {
    ClientConnection::new(tls::client(versions, alpn), ServerName::IpAddress(address.ip().into()))
        .map_err(io::Error::other)
}
