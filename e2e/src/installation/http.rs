//! Plain HTTP, for probes.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long one probe of a kubelet may take. On a busy machine, containers are slow without hanging.
pub(super) const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// How long an answer to a test may take.
pub(super) const TEST_LIMIT: Duration = Duration::from_secs(30);

/// Sends `GET path` over plain HTTP; returns status and body. Connecting, and each read, may take `limit`.
pub(super) fn get(address: SocketAddr, path: &str, limit: Duration) -> io::Result<(u16, String)> {
    let mut socket = TcpStream::connect_timeout(&address, limit)?;
    socket.set_read_timeout(Some(limit))?;
    socket.set_write_timeout(Some(limit))?;
    write!(socket, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    socket.take(16 << 20).read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    let parsed = text
        .split_once("\r\n\r\n")
        .and_then(|(head, body)| Some((head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?, body.to_owned())));
    parsed.ok_or_else(|| io::Error::other("not an answer in HTTP"))
}
