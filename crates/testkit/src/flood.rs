//! Rig FLOOD of the fault catalogue: clients that open connections, send little, and reconnect when they are disconnected.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_rustls::TlsConnector;

/// The time between two bytes of a slow client.
const PACE: Duration = Duration::from_secs(1);
/// The time before a disconnected client reconnects.
const PAUSE: Duration = Duration::from_secs(3);
/// The time between the first connections of two clients, so that they do not all connect at once.
const STAGGER: Duration = Duration::from_micros(200);

/// The actions of one client, which it repeats.
#[derive(Clone)]
pub struct Stranger {
    target: SocketAddr,
    from: Option<IpAddr>,
    tls: Option<TlsConnector>,
    first: Vec<u8>,
    then: Vec<u8>,
}

impl Stranger {
    /// Connects, and sends nothing.
    pub fn silent(target: SocketAddr) -> Self {
        Self { target, from: None, tls: None, first: Vec::new(), then: Vec::new() }
    }

    /// Connects from this address, which must be one of this machine.
    #[must_use]
    pub fn from(self, address: IpAddr) -> Self {
        Self { from: Some(address), ..self }
    }

    /// Makes a TLS handshake first.
    #[must_use]
    pub fn over_tls(self, connector: TlsConnector) -> Self {
        Self { tls: Some(connector), ..self }
    }

    /// Sends these bytes at once.
    #[must_use]
    pub fn saying(self, bytes: impl Into<Vec<u8>>) -> Self {
        Self { first: bytes.into(), ..self }
    }

    /// Sends these bytes again and again, one byte per second.
    #[must_use]
    pub fn trickling(self, bytes: impl Into<Vec<u8>>) -> Self {
        Self { then: bytes.into(), ..self }
    }

    async fn connect(&self) -> std::io::Result<TcpStream> {
        let socket = if self.target.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        if let Some(from) = self.from {
            socket.bind(SocketAddr::new(from, 0))?;
        }
        socket.connect(self.target).await
    }

    async fn visit(&self, counts: &Counts) -> std::io::Result<()> {
        let stream = self.connect().await?;
        let _open = counts.enter();
        match &self.tls {
            Some(connector) => {
                let name = ServerName::IpAddress(self.target.ip().into());
                self.talk(connector.connect(name, stream).await?).await
            }
            None => self.talk(stream).await,
        }
    }

    /// Reads and drops what the server sends, until the server closes the connection.
    async fn talk(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<()> {
        stream.write_all(&self.first).await?;
        stream.flush().await?;
        let (mut buffer, mut at, mut next) = ([0; 1024], 0, Instant::now() + PACE);
        loop {
            tokio::select! {
                read = stream.read(&mut buffer) => {
                    if read? == 0 {
                        return Ok(());
                    }
                }
                () = sleep_until(next), if !self.then.is_empty() => {
                    stream.write_all(&self.then[at..=at]).await?;
                    stream.flush().await?;
                    at = (at + 1) % self.then.len();
                    next += PACE;
                }
            }
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    open: AtomicU64,
    most_open: AtomicU64,
    visits: AtomicU64,
}

struct Open<'c>(&'c Counts);

impl Counts {
    fn enter(&self) -> Open<'_> {
        let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_open.fetch_max(open, Ordering::SeqCst);
        self.visits.fetch_add(1, Ordering::SeqCst);
        Open(self)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Many clients, which run until this is dropped.
pub struct Flood {
    runtime: Option<Runtime>,
    counts: Arc<Counts>,
}

impl Flood {
    /// Starts all clients, on a thread of their own. Each needs a descriptor.
    ///
    /// # Panics
    /// When the thread cannot be started.
    pub fn of(strangers: impl IntoIterator<Item = Stranger>) -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().thread_name("flood").build().expect("a runtime");
        let counts = Arc::<Counts>::default();
        for (number, stranger) in (0..).zip(strangers) {
            let counts = Arc::clone(&counts);
            runtime.spawn(async move {
                sleep(STAGGER * number).await;
                loop {
                    // Disconnected or not accepted: the client tries again in any case.
                    let _ = stranger.visit(&counts).await;
                    sleep(PAUSE).await;
                }
            });
        }
        Self { runtime: Some(runtime), counts }
    }

    /// The number of connections that are open now, as the clients see it.
    pub fn open(&self) -> u64 {
        self.counts.open.load(Ordering::SeqCst)
    }

    /// The most connections that were open at the same time.
    pub fn most_open(&self) -> u64 {
        self.counts.most_open.load(Ordering::SeqCst)
    }

    /// The number of connections so far.
    pub fn visits(&self) -> u64 {
        self.counts.visits.load(Ordering::SeqCst)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
