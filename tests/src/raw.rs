//! Rig RAW: a caller that sends exact bytes at an exact pace, over TCP or TLS.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned, SupportedProtocolVersion};

use crate::{LIMIT, tls};

/// One connection.
pub struct Raw {
    stream: Stream,
    /// Read and not taken yet.
    buffer: Vec<u8>,
}

enum Stream {
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// One HTTP answer, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawResponse {
    /// The status.
    pub status: u16,
    /// Head without the blank line, in lower case.
    pub head: String,
    /// As long as the head says.
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
        let Self { stream: Stream::Tcp(mut tcp), buffer } = Self::tcp(address)? else { unreachable!("it is TCP") };
        let name = ServerName::IpAddress(address.ip().into());
        let mut connection = ClientConnection::new(tls::client(versions, alpn), name).map_err(io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut tcp)?;
        }
        Ok(Self { stream: Stream::Tls(Box::new(StreamOwned::new(connection, tcp))), buffer })
    }

    /// The protocol that the server chose by ALPN.
    pub fn alpn(&self) -> Option<String> {
        match &self.stream {
            Stream::Tcp(_) => None,
            Stream::Tls(tls) => tls.conn.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned()),
        }
    }

    /// Sends all bytes.
    ///
    /// # Errors
    /// When the server has hung up.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.writer().write_all(bytes.as_ref())?;
        self.writer().flush()
    }

    /// Sends one byte after the other with a pause behind each, until all are sent or the server has hung up.
    ///
    /// # Errors
    /// When the server has hung up.
    pub fn send_slowly(&mut self, bytes: impl AsRef<[u8]>, pause: Duration) -> io::Result<()> {
        for byte in bytes.as_ref() {
            self.send([*byte])?;
            // What is sent into a closed connection is lost without a word; a reset comes with the next byte only.
            thread::sleep(pause);
        }
        Ok(())
    }

    /// Sends no more; still reads.
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
    /// When the connection ends before it is whole, or nothing comes for [`LIMIT`].
    pub fn response(&mut self) -> io::Result<RawResponse> {
        let end = loop {
            if let Some(end) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break end;
            }
            self.fill()?;
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).to_lowercase();
        self.buffer.drain(..end + 4);
        let status =
            head.split_whitespace().nth(1).and_then(|word| word.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = length.and_then(|text| text.parse().ok()).unwrap_or(0);
        while self.buffer.len() < length {
            self.fill()?;
        }
        let body = String::from_utf8_lossy(&self.buffer[..length]).into_owned();
        self.buffer.drain(..length);
        Ok(RawResponse { status, head, body })
    }

    /// Waits until the server ends the connection, and gives the time that this took; nothing when it does not within
    /// `limit`. What it sends meanwhile is dropped.
    pub fn closed_within(&mut self, limit: Duration) -> Option<Duration> {
        let start = Instant::now();
        while let Some(left) = limit.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
            // A time-out that cannot be set is on a connection that is gone.
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

/// The client side of a TLS handshake as bytes: a ClientHello that the evaluator answers.
///
/// # Errors
/// Never with a loopback address.
pub fn client_hello(address: SocketAddr) -> io::Result<Vec<u8>> {
    let name = ServerName::IpAddress(address.ip().into());
    let config = Arc::clone(&tls::client(rustls::ALL_VERSIONS, &[]));
    let mut connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes)?;
    Ok(bytes)
}
