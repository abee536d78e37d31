//! A persistent connection to an API server, for so many calls that handshakes would cost more than the calls.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;

use crate::client::{Client, MAX_ANSWER, Question, Stream};

/// The longest line of an answer's head, in bytes.
const MAX_LINE: u64 = 16 << 10;

/// An open connection, for one request after the other. After an error it cannot be used any longer.
pub(crate) struct Connection {
    stream: BufReader<Box<dyn Stream>>,
    /// Whether the server has announced that it closes the connection.
    is_over: bool,
}

impl Connection {
    /// Connects, as this client.
    pub(crate) fn open(client: &Client, server: SocketAddr) -> io::Result<Self> {
        Ok(Self { stream: BufReader::new(client.connect(server)?), is_over: false })
    }

    /// The bytes of a request, to be made once for many identical calls.
    pub(crate) fn request(server: SocketAddr, question: &Question<'_>) -> Vec<u8> {
        question.bytes("HTTP/1.1", server).into_bytes()
    }

    /// Whether another request may follow.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Sends [`Connection::request`] and reads the answer: its status and its body.
    pub(crate) fn call(&mut self, request: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        self.stream.get_mut().write_all(request)?;
        self.stream.get_mut().flush()?;
        let (code, body, is_last) = read_answer(&mut self.stream)?;
        self.is_over = is_last;
        Ok((code, body))
    }
}

/// Status and body of the next answer, and whether it is the last.
fn read_answer(stream: &mut impl BufRead) -> io::Result<(u16, Vec<u8>, bool)> {
    let first = read_line(stream)?;
    let code = first.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
    let code = code.ok_or_else(|| malformed(&first))?;
    let (mut length, mut is_chunked, mut is_last) = (0, false, false);
    loop {
        let line = read_line(stream)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| malformed(&line))?;
        let value = value.trim().to_ascii_lowercase();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().map_err(|_| malformed(&line))?,
            "transfer-encoding" => is_chunked = value == "chunked",
            "connection" => is_last = value == "close",
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
    Ok((code, body, is_last))
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
        let mut bytes: &[u8] = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 403 Forbidden\r\n\
            transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n1;x\r\nd\r\n0\r\n\r\nHTTP/1.1 503 \r\nConnection: close\r\n\r\n";
        assert_eq!(read_answer(&mut bytes).unwrap(), (201, b"{}".to_vec(), false));
        assert_eq!(read_answer(&mut bytes).unwrap(), (403, b"abcd".to_vec(), false));
        assert_eq!(read_answer(&mut bytes).unwrap(), (503, Vec::new(), true));
        assert_eq!(read_answer(&mut bytes).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
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
