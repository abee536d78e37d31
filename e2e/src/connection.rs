//! A persistent connection to an API server, and requests on it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;

/// The largest answer, in bytes.
const MAX_ANSWER: u64 = 256 << 20;

/// The longest line of an answer's head, in bytes.
const MAX_LINE: u64 = 16 << 10;

/// An open connection, for one request after the other. After an error it cannot be used any longer.
pub(crate) struct Connection {
    stream: BufReader<Box<dyn Stream>>,
    /// Whether the server has announced that it closes the connection.
    is_over: bool,
}

/// Bytes in both directions.
pub(crate) trait Stream: Read + Write + Send {}

impl<S: Read + Write + Send> Stream for S {}

/// An answer.
#[derive(Debug, PartialEq)]
pub(crate) struct Answer {
    /// The HTTP status.
    pub(crate) code: u16,
    /// The values of its `Warning` headers, which kubectl shows to users.
    pub(crate) warnings: Vec<String>,
    pub(crate) body: Vec<u8>,
}

/// A request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    /// The content type of the body; empty without a body.
    pub(crate) content_type: &'a str,
    pub(crate) body: &'a [u8],
}

impl<'a> Question<'a> {
    /// A request for the object or list at a path.
    pub(crate) fn get(path: &'a str) -> Self {
        Self { method: "GET", path, content_type: "", body: b"" }
    }

    /// The bytes of the request, with this bearer token if there is one.
    pub(crate) fn request(&self, server: SocketAddr, token: Option<&str>) -> Vec<u8> {
        let Question { method, path, content_type, body } = self;
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {server}\r\nAccept: application/json\r\n");
        if let Some(token) = token {
            head += &format!("Authorization: Bearer {token}\r\n");
        }
        if !content_type.is_empty() {
            head += &format!("Content-Type: {content_type}\r\nContent-Length: {}\r\n", body.len());
        }
        [head.as_bytes(), b"\r\n", body].concat()
    }
}

impl Connection {
    /// A connection on which nothing has been sent yet.
    pub(crate) fn on(stream: Box<dyn Stream>) -> Self {
        Self { stream: BufReader::new(stream), is_over: false }
    }

    /// Whether no other request may follow.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Sends a request and reads the answer.
    pub(crate) fn call(&mut self, request: &[u8]) -> io::Result<Answer> {
        self.send(request)?;
        self.read()
    }

    /// [`Connection::call`]; `None` if the connection turns out to be closed before the answer begins.
    pub(crate) fn call_if_open(&mut self, request: &[u8]) -> Option<io::Result<Answer>> {
        let begun = self.send(request).and_then(|()| Ok(!self.stream.fill_buf()?.is_empty()));
        match begun {
            Ok(true) => Some(self.read()),
            Ok(false) => None,
            Err(error) if is_closed(error.kind()) => None,
            Err(error) => Some(Err(error)),
        }
    }

    fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(request)?;
        self.stream.get_mut().flush()
    }

    fn read(&mut self) -> io::Result<Answer> {
        let (answer, is_last) = read_answer(&mut self.stream)?;
        self.is_over = is_last;
        Ok(answer)
    }
}

/// Whether an error says that the other side has closed the connection.
fn is_closed(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof)
}

/// The next answer, and whether it is the last.
fn read_answer(stream: &mut impl BufRead) -> io::Result<(Answer, bool)> {
    let first = read_line(stream)?;
    let code = first.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
    let code = code.ok_or_else(|| malformed(&first))?;
    let (mut length, mut is_chunked, mut is_last, mut warnings) = (0, false, false, Vec::new());
    loop {
        let line = read_line(stream)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| malformed(&line))?;
        let (text, value) = (value.trim(), value.trim().to_ascii_lowercase());
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().map_err(|_| malformed(&line))?,
            "transfer-encoding" => is_chunked = value == "chunked",
            "connection" => is_last = value == "close",
            "warning" => warnings.push(text.to_owned()),
            _ => {}
        }
    }
    let mut body = Vec::new();
    if is_chunked {
        while let size @ 1.. = read_size(stream)? {
            read_bytes(stream, size, &mut body)?;
            read_line(stream)?;
        }
        read_line(stream)?;
    } else {
        read_bytes(stream, length, &mut body)?;
    }
    Ok((Answer { code, warnings, body }, is_last))
}

/// The length of the next chunk.
fn read_size(stream: &mut impl BufRead) -> io::Result<u64> {
    let line = read_line(stream)?;
    let digits = line.split(';').next().unwrap_or_default().trim();
    u64::from_str_radix(digits, 16).map_err(|_| malformed(&line))
}

fn read_bytes(stream: &mut impl BufRead, length: u64, body: &mut Vec<u8>) -> io::Result<()> {
    if length > MAX_ANSWER {
        return Err(io::Error::other(format!("an answer of {length} bytes")));
    }
    let read = stream.take(length).read_to_end(body)?;
    if read as u64 == length { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn read_line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    stream.take(MAX_LINE).read_line(&mut line)?;
    match line.strip_suffix("\r\n") {
        Some(line) => Ok(line.to_owned()),
        None if line.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
        None => Err(malformed(&line)),
    }
}

fn malformed(line: &str) -> io::Error {
    io::Error::other(format!("not an answer in HTTP: {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_follow_each_other() {
        let mut bytes: &[u8] = b"HTTP/1.1 201 Created\r\nWarning: 299 - \"Look\"\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 403 Forbidden\r\n\
            transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n1;x\r\nd\r\n0\r\n\r\nHTTP/1.1 503 \r\nConnection: close\r\n\r\n";
        let answer = |code, warnings: &[&str], body: &[u8]| Answer {
            code,
            warnings: warnings.iter().map(|text| (*text).to_owned()).collect(),
            body: body.to_vec(),
        };
        assert_eq!(read_answer(&mut bytes).unwrap(), (answer(201, &["299 - \"Look\""], b"{}"), false));
        assert_eq!(read_answer(&mut bytes).unwrap(), (answer(403, &[], b"abcd"), false));
        assert_eq!(read_answer(&mut bytes).unwrap(), (answer(503, &[], b""), true));
        assert_eq!(read_answer(&mut bytes).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_connection_that_the_server_has_closed_has_no_answer() {
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut connection = Connection::on(Box::new(near));
        (&far).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
        assert_eq!(connection.call_if_open(b"a").unwrap().unwrap().body, b"ok");
        drop(far);
        assert!(connection.call_if_open(b"b").is_none());
    }

    #[test]
    fn an_answer_that_is_cut_after_its_beginning_is_an_error_of_an_open_connection() {
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        (&far).write_all(b"HTTP/1.1 201 Cre").unwrap();
        far.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(Connection::on(Box::new(near)).call_if_open(b"a").unwrap().is_err());
    }

    #[test]
    fn a_request_has_its_token_and_the_length_of_its_body() {
        let server = "127.0.0.1:6443".parse().unwrap();
        let with = |question: Question<'_>, token| String::from_utf8(question.request(server, token)).unwrap();
        let request = |question| with(question, None);
        let head = "HTTP/1.1\r\nHost: 127.0.0.1:6443\r\nAccept: application/json\r\n";
        assert_eq!(request(Question::get("/a")), format!("GET /a {head}\r\n"));
        let put = Question { method: "PUT", path: "/a", content_type: "application/json", body: b"{}" };
        let body = "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(request(put), format!("PUT /a {head}{body}"));
        assert_eq!(with(put, Some("secret")), format!("PUT /a {head}Authorization: Bearer secret\r\n{body}"));
    }

    #[test]
    fn what_is_cut_or_no_answer_is_an_error() {
        for bytes in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"[..],
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n",
            b"\x15\x03\x01",
            b"garbage\r\n\r\n",
        ] {
            let mut stream = bytes;
            assert!(read_answer(&mut stream).is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
