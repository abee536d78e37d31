//! Scripted answers over HTTP/1.1: what a test's own server reads and writes on one connection, valid or broken.

use std::io::{self, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use crate::{guest, wat};

/// A request that was received.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The method: `GET`, `POST`.
    pub method: String,
    /// The path, with the query.
    pub path: String,
    /// The whole head.
    pub head: String,
    /// The body, of at most a mebibyte.
    pub body: String,
    /// When it was received.
    pub at: Instant,
}

impl Asked {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    }
}

/// One scripted answer.
#[derive(Debug, Clone)]
pub struct Reply {
    head: Head,
    body: Body,
    /// The wait before the head.
    delay: Duration,
    /// The body's rate, in bytes per second.
    rate: Option<u64>,
}

#[derive(Debug, Clone)]
enum Head {
    /// Status and headers.
    Whole(u16, Vec<(String, String)>),
    /// No answer at all.
    Silence,
}

#[derive(Debug, Clone)]
enum Body {
    /// The bytes, and how many of them are sent before the connection is closed.
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
        Self::ok(guest("always_accept"))
    }

    /// 200 with a module that no other source has.
    pub fn module_named(name: &str) -> Self {
        Self::ok(Self::module_bytes(name))
    }

    /// A module that accepts everything and that no other test has, because it has a data segment with this text.
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

    /// This status with these bytes.
    pub fn with(status: u16, body: impl Into<Vec<u8>>) -> Self {
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

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        if let Head::Whole(_, headers) = &mut self.head {
            headers.push((name.to_owned(), value.to_owned()));
        }
        self
    }

    /// Closes the connection after this many bytes of the body, whatever length the head announces.
    #[must_use]
    pub fn cut_after(mut self, bytes: usize) -> Self {
        if let Body::Whole(_, end) = &mut self.body {
            *end = bytes;
        }
        self
    }

    /// Waits this long before the head.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sends the body at this rate, in bytes per second.
    #[must_use]
    pub fn rate(mut self, bytes: u64) -> Self {
        self.rate = Some(bytes);
        self
    }
}

/// Reads one request from a connection and sends the reply to it.
///
/// # Errors
/// When the client closes the connection.
pub fn exchange(stream: &mut (impl Read + Write), reply: impl FnOnce(&Asked) -> Reply) -> io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && head.len() < 16 << 10 {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let reply = reply(&asked(&head, stream)?);
    thread::sleep(reply.delay);
    let Head::Whole(status, headers) = reply.head else {
        // Waits until the client closes the connection.
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
