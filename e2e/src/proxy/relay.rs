//! One connection of a client: its requests, one after the other, each with a connection of its own to the API server.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection, StreamOwned};

use super::message::{Head, Length, chunk, is_last, take_chunk, take_head};
use super::rule::{Action, decide};
use super::shared::{Shared, Watch};
use crate::lock;

/// The interval at which a waiting connection checks what the test wants.
const PACE: Duration = Duration::from_millis(25);

/// The longest that an API server may take for a connection, and again for the handshake on it.
const CONNECT: Duration = Duration::from_secs(10);

/// The longest head or chunk, in bytes.
const MAX_PIECE: usize = 64 << 20;

/// A side of the connection, with the bytes that were read from it and not used yet.
struct Side<S> {
    stream: S,
    buffer: Vec<u8>,
}

/// The result of reading from a side.
#[derive(PartialEq)]
enum Look {
    Bytes,
    Nothing,
    End,
}

impl<S: Read> Side<S> {
    fn look(&mut self) -> io::Result<Look> {
        let mut bytes = [0; 16 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => Ok(Look::End),
            Ok(count) => {
                self.buffer.extend_from_slice(&bytes[..count]);
                if self.buffer.len() > MAX_PIECE { Err(ErrorKind::FileTooLarge.into()) } else { Ok(Look::Bytes) }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(Look::Nothing),
            // Go ends TLS connections without a close_notify.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(Look::End),
            Err(error) => Err(error),
        }
    }

    /// Reads until `take` finds something in the buffer. `None` when the side ends, or the proxy does.
    fn wait_for<T>(&mut self, shared: &Shared, take: impl Fn(&mut Vec<u8>) -> Option<T>) -> io::Result<Option<T>> {
        loop {
            if let Some(found) = take(&mut self.buffer) {
                return Ok(Some(found));
            }
            if shared.is_over() || self.look()? == Look::End {
                return Ok(None);
            }
        }
    }
}

fn take_body(length: u64) -> impl Fn(&mut Vec<u8>) -> Option<Vec<u8>> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    move |buffer| (buffer.len() >= length).then(|| buffer.drain(..length).collect())
}

type Client = Side<StreamOwned<ServerConnection, TcpStream>>;
type Upstream = Side<StreamOwned<ClientConnection, TcpStream>>;

/// Serves a client until one side ends, or the proxy does.
pub(super) fn serve(shared: &Shared, stream: TcpStream) -> io::Result<()> {
    if shared.is_over() {
        return Ok(());
    }
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PACE))?;
    stream.set_write_timeout(Some(Duration::from_secs(30)))?;
    let connection = ServerConnection::new(Arc::clone(&shared.server)).map_err(io::Error::other)?;
    let mut client = Side { stream: StreamOwned::new(connection, stream), buffer: Vec::new() };
    while let Some(head) = client.wait_for(shared, take_head)? {
        let head = Head::parse(&head).ok_or(ErrorKind::InvalidData)?;
        let body = match head.request_length() {
            Length::Known(length) => client.wait_for(shared, take_body(length))?,
            _ => chunks(shared, &mut client)?,
        };
        let Some(body) = body else { return Ok(()) };
        if !request(shared, &mut client, &head, &body)? {
            break;
        }
    }
    client.stream.conn.send_close_notify();
    client.stream.flush()
}

/// The chunks of a body, with their framing.
fn chunks(shared: &Shared, client: &mut Client) -> io::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    loop {
        let Some(chunk) = client.wait_for(shared, take_chunk)? else { return Ok(None) };
        body.extend_from_slice(&chunk);
        if is_last(&chunk) {
            return Ok(Some(body));
        }
    }
}

/// Handles one request, and returns whether the connection goes on.
fn request(shared: &Shared, client: &mut Client, head: &Head, body: &[u8]) -> io::Result<bool> {
    let (method, path) = (head.word(0), head.word(1));
    let number = shared.came(head, body);
    let (delay, action) = decide(&mut lock(&shared.rules), method, path);
    let start = Instant::now();
    while (start.elapsed() < delay || action == Action::Hang) && !shared.is_over() {
        thread::sleep(PACE);
    }
    match action {
        _ if shared.is_over() => Ok(false),
        Action::Cut | Action::Hang => Ok(false),
        Action::Answer(status, headers, text) => {
            let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let length = text.len();
            let head = format!("HTTP/1.1 {status} Scripted\r\nContent-Type: application/json\r\n{headers}");
            client.stream.write_all(format!("{head}Content-Length: {length}\r\n\r\n{text}").as_bytes())?;
            shared.answered(number, status);
            Ok(true)
        }
        Action::Pass | Action::CutAnswer => {
            let mut upstream = connect(shared)?;
            upstream.stream.write_all(&head.render(&[("connection", "close"), ("accept-encoding", "")]))?;
            upstream.stream.write_all(body)?;
            let Some(answer) = upstream.wait_for(shared, take_head)? else { return Ok(false) };
            let answer = Head::parse(&answer).ok_or(ErrorKind::InvalidData)?;
            if action == Action::CutAnswer {
                return Ok(false);
            }
            shared.answered(number, answer.status());
            client.stream.write_all(&answer.render(&[("connection", "")]))?;
            pass_on(shared, client, &mut upstream, path, answer.answer_length())
        }
    }
}

fn connect(shared: &Shared) -> io::Result<Upstream> {
    let address = shared.upstream;
    let mut stream = TcpStream::connect_timeout(&address, CONNECT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(CONNECT))?;
    stream.set_write_timeout(Some(Duration::from_secs(30)))?;
    let name = ServerName::from(address.ip());
    let mut connection = ClientConnection::new(Arc::clone(&shared.client), name).map_err(io::Error::other)?;
    // A busy API server takes longer for its part of the handshake than a waiting connection reads at a time.
    while connection.is_handshaking() {
        connection.complete_io(&mut stream)?;
    }
    stream.set_read_timeout(Some(PACE))?;
    Ok(Side { stream: StreamOwned::new(connection, stream), buffer: Vec::new() })
}

/// Passes on the body of an answer, and returns whether the client's connection goes on.
fn pass_on(
    shared: &Shared,
    client: &mut Client,
    upstream: &mut Upstream,
    path: &str,
    length: Length,
) -> io::Result<bool> {
    match length {
        Length::Known(length) => {
            let Some(body) = upstream.wait_for(shared, take_body(length))? else { return Ok(false) };
            client.stream.write_all(&body)?;
            Ok(true)
        }
        Length::Chunked if is_watch(path) => {
            let watch = Watch {
                path: path.to_owned(),
                injected: Default::default(),
                is_cut: false.into(),
                has_ended: false.into(),
            };
            let watch = Arc::new(watch);
            lock(&shared.watches).push(Arc::clone(&watch));
            let passed = pass_watch(shared, client, upstream, &watch);
            watch.has_ended.store(true, Ordering::SeqCst);
            passed
        }
        Length::Chunked => {
            while let Some(chunk) = upstream.wait_for(shared, take_chunk)? {
                client.stream.write_all(&chunk)?;
                if is_last(&chunk) {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Length::Open => {
            while !shared.is_over() && upstream.look()? != Look::End {
                client.stream.write_all(&upstream.buffer)?;
                upstream.buffer.clear();
            }
            Ok(false)
        }
    }
}

fn is_watch(path: &str) -> bool {
    path.split_once('?')
        .is_some_and(|(_, query)| query.split('&').any(|pair| matches!(pair, "watch" | "watch=1" | "watch=true")))
}

/// Passes on events, and inserts those of the test.
fn pass_watch(shared: &Shared, client: &mut Client, upstream: &mut Upstream, watch: &Watch) -> io::Result<bool> {
    let mut has_ended = false;
    loop {
        if shared.is_over() || watch.is_cut.load(Ordering::SeqCst) || has_hung_up(client) {
            return Ok(false);
        }
        let injected = std::mem::take(&mut *lock(&watch.injected));
        for event in injected {
            client.stream.write_all(&chunk(&format!("{event}\n")))?;
        }
        let is_held = shared.is_held(&watch.path);
        while !is_held && let Some(chunk) = take_chunk(&mut upstream.buffer) {
            client.stream.write_all(&chunk)?;
            if is_last(&chunk) {
                return Ok(true);
            }
        }
        if has_ended && !is_held {
            return Ok(false);
        }
        if has_ended {
            thread::sleep(PACE);
        } else {
            has_ended = upstream.look()? == Look::End;
        }
    }
}

/// Whether the client has closed the connection. During a watch it does not send anything.
fn has_hung_up(client: &Client) -> bool {
    let socket = &client.stream.sock;
    let looked = socket.set_nonblocking(true).and_then(|()| socket.peek(&mut [0]));
    let is_back = socket.set_nonblocking(false).is_ok();
    !is_back || !matches!(looked, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_is_known_by_its_query() {
        assert!(is_watch("/api/v1/pods?limit=1&watch=true"));
        assert!(is_watch("/api/v1/pods?watch=1"));
        assert!(!is_watch("/api/v1/pods?labelSelector=watch"));
        assert!(!is_watch("/api/v1/watch"));
    }
}
