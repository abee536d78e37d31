//! The bytes of one connection, with or without TLS.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::http::connection::ConnectionState;

/// A stream that notes in the connection's state when bytes come.
pub(crate) struct Stream {
    bytes: Bytes,
    state: Arc<ConnectionState>,
}

enum Bytes {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Calls the same method of the plain or the TLS stream.
macro_rules! inner {
    ($self:ident, $stream:ident => $call:expr) => {
        match &mut $self.bytes {
            Bytes::Plain(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            Bytes::Tls(stream) => {
                let $stream = Pin::new(stream.as_mut());
                $call
            }
        }
    };
}

impl Stream {
    pub(crate) fn plain(stream: TcpStream, state: Arc<ConnectionState>) -> Self {
        Self { bytes: Bytes::Plain(stream), state }
    }

    pub(crate) fn tls(stream: TlsStream<TcpStream>, state: Arc<ConnectionState>) -> Self {
        Self { bytes: Bytes::Tls(Box::new(stream)), state }
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let poll = inner!(self, stream => stream.poll_read(cx, buf));
        if buf.filled().len() > before {
            self.state.heard();
        }
        poll
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        inner!(self, stream => stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        inner!(self, stream => stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.bytes {
            Bytes::Plain(stream) => stream.is_write_vectored(),
            Bytes::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        inner!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        inner!(self, stream => stream.poll_shutdown(cx))
    }
}
