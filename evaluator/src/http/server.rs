//! The server of the admission port: accepts connections, speaks HTTP/1.1 on them, and closes them in good order.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use portcullis_process::{Readiness, Shutdown, failpoint};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::LazyConfigAcceptor;

use crate::fair::pool::PeerPool;
use crate::fair::turns::TurnClaim;
use crate::http::connection::{ConnectionState, Signal};
use crate::http::connections::{Connections, Listed};
use crate::http::eviction::Activity;
use crate::http::handler::Handler;
use crate::http::stream::Stream;
use crate::http::tls::Certificates;
use crate::metrics::Metrics;

/// The buffer for a request's head and for reading its body, in bytes. Each connection has one, so it is small.
const BUFFER: usize = 64 << 10;
/// The pause after a failed accept: descriptors come back when connections end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The most accepted connections whose task has not run yet. Where this program is short of CPU, further ones wait in the kernel, since an
/// accepted connection that nobody has read from would count as silent.
const UNSEEN: usize = 128;
/// The time without a failed accept after which the failure counts as over.
const ACCEPT_CALM: Duration = Duration::from_secs(5);

/// How long a silent connection stays open when the server ends: clients do not repeat a review that crosses the close of its connection,
/// and what is on its way arrives meanwhile.
const LINGER: Duration = Duration::from_secs(1);

/// The times of a graceful end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DrainTimes {
    /// How long new connections are still accepted: until all clients know that this replica is not ready.
    pub delay: Duration,
    /// How long running requests may take after that.
    pub grace: Duration,
}

/// The server of the admission port.
pub(crate) struct Server {
    /// Answers requests.
    pub handler: Arc<Handler>,
    /// The open connections.
    pub connections: Arc<Connections>,
    /// Certificate and key; none for plain HTTP.
    pub certificates: Option<Arc<Certificates>>,
    /// Counters.
    pub metrics: Metrics,
    /// Reports the replica as not ready when the end begins.
    pub readiness: Readiness,
    /// The times of a graceful end.
    pub drain: DrainTimes,
}

impl Server {
    /// Serves until `shutdown` begins and for the drain delay after that, then ends what still runs.
    ///
    /// # Errors
    /// When the listener cannot be used.
    pub(crate) async fn run(self, listener: std::net::TcpListener, shutdown: Shutdown) -> io::Result<()> {
        let listener = TcpListener::from_std(listener)?;
        let server = Arc::new(self);
        let sweeper = tokio::spawn({
            let connections = Arc::clone(&server.connections);
            async move { connections.sweep().await }
        });
        let drained = async {
            shutdown.begun().await;
            server.readiness.drain();
            sleep(server.drain.delay).await;
        };
        tokio::select! {
            () = server.accept(&listener) => {}
            () = drained => {}
        }
        drop(listener);
        server.finish().await;
        sweeper.abort();
        Ok(())
    }

    async fn accept(self: &Arc<Self>, listener: &TcpListener) {
        // Half of the threads may be busy with the arithmetic of handshakes; the others are for established connections.
        let workers = tokio::runtime::Handle::current().metrics().num_workers();
        let permits = u64::try_from(workers / 2).unwrap_or(u64::MAX).max(1);
        let handshakes = PeerPool::new(permits, permits);
        let unseen = Arc::new(Semaphore::new(UNSEEN));
        let mut failed: Option<Instant> = None;
        loop {
            let permit = Arc::clone(&unseen).acquire_owned().await.expect("the semaphore is never closed");
            match listener.accept().await {
                Ok((stream, from)) => {
                    if failed.is_some_and(|failed| failed.elapsed() > ACCEPT_CALM) {
                        failed = None;
                        tracing::info!("connections are accepted again");
                    }
                    let Some(listed) = self.connections.enter(from.ip()) else { continue };
                    let (server, handshakes) = (Arc::clone(self), Arc::clone(&handshakes));
                    tokio::spawn(seen_once(
                        permit,
                        async move { server.connection(stream, listed, &handshakes).await },
                    ));
                }
                // The client ended the connection before it was accepted.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) => {}
                Err(error) => {
                    // Most likely this program is out of descriptors or memory.
                    if failed.replace(Instant::now()).is_none() {
                        tracing::warn!(%error, "failed to accept a connection; trying again until it works");
                    }
                    self.connections.make_room();
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Waits for requests under way, for most of the grace time. Requests that have not ended then get the answer that their time is over.
    async fn finish(&self) {
        let last_words = (self.drain.grace / 4).min(Duration::from_secs(1));
        self.connections.finish();
        if timeout(self.drain.grace - last_words, self.connections.gone()).await.is_ok() {
            return;
        }
        self.handler.admission.last_call.announce();
        self.connections.wake();
        if timeout(last_words, self.connections.gone()).await.is_err() {
            tracing::warn!("some connections were still open at the end");
        }
    }

    async fn connection(&self, stream: TcpStream, listed: Listed, handshakes: &Arc<PeerPool>) {
        // Answers are single writes; waiting for more to send only delays them.
        let _ = stream.set_nodelay(true);
        let state = &listed.state;
        let stream = match &self.certificates {
            None => Stream::plain(stream, Arc::clone(state)),
            Some(certificates) => {
                match until_closed(state, self.handshake(certificates, stream, state, handshakes)).await {
                    Some(Some(stream)) => Stream::tls(stream, Arc::clone(state)),
                    Some(None) | None => return,
                }
            }
        };
        let service = service_fn(|request: Request<Incoming>| {
            state.sending(0);
            async {
                let response = self.handler.handle(request, state).await;
                listed.answered(response.status() == StatusCode::OK);
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        let connection = http1::Builder::new()
            // The list of connections has its own time limits: hyper's would also close connections that are idle.
            .header_read_timeout(None)
            .max_buf_size(BUFFER)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let (mut linger, mut is_finishing) = (None, false);
        poll_fn(|cx| {
            // What has arrived is read before it is decided to end. An error is the client's fault: it hung up, or what it sent is not HTTP.
            if connection.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            match state.signal(cx) {
                Signal::GoOn => return Poll::Pending,
                Signal::Close => return Poll::Ready(()),
                Signal::Finish if is_finishing => return Poll::Pending,
                Signal::Finish => {}
            }
            let linger = linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
            if state.activity().0 != Activity::Asking && linger.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            is_finishing = true;
            connection.as_mut().graceful_shutdown();
            connection.as_mut().poll(cx).map(drop)
        })
        .await;
    }

    async fn handshake(
        &self,
        certificates: &Certificates,
        stream: TcpStream,
        state: &ConnectionState,
        handshakes: &Arc<PeerPool>,
    ) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
        let config = certificates.current()?;
        let acceptor = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream);
        let shaken = async {
            let mut rest = pin!(acceptor.await?.into_stream(config));
            // The permit is held only while the client's hello is answered, and not while the client goes on: otherwise clients that send
            // a hello and no more would keep out all others.
            state.waiting();
            let claim = TurnClaim { owner: state.peer(), is_preferred: state.is_known(), amount: 1 };
            let permit = handshakes.take(&claim, None).await.expect("every claim is met in its turn");
            failpoint::hit("evaluator.handshake");
            let answered = poll_fn(|cx| Poll::Ready(Pin::as_mut(&mut rest).poll(cx))).await;
            drop(permit);
            state.opening();
            match answered {
                Poll::Ready(stream) => stream,
                Poll::Pending => rest.await,
            }
        };
        match shaken.await {
            Ok(stream) => {
                state.idle();
                Some(stream)
            }
            Err(error) => {
                self.metrics.handshakes_failed.inc();
                tracing::debug!(%error, "a TLS handshake failed");
                None
            }
        }
    }
}

/// Runs `future`, and drops the permit once it has been polled for the first time.
async fn seen_once(permit: OwnedSemaphorePermit, future: impl Future<Output = ()>) {
    let (mut permit, mut future) = (Some(permit), pin!(future));
    poll_fn(|cx| {
        let poll = Pin::as_mut(&mut future).poll(cx);
        permit.take();
        poll
    })
    .await;
}

/// Runs `future` until the connection should end at once; then gives none. A handshake goes on while the server finishes: a request
/// waits for it, and clients do not repeat a review whose connection was cut.
async fn until_closed<F: Future>(state: &ConnectionState, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| match (state.signal(cx), Pin::as_mut(&mut future).poll(cx)) {
        (_, Poll::Ready(output)) => Poll::Ready(Some(output)),
        (Signal::GoOn | Signal::Finish, Poll::Pending) => Poll::Pending,
        (Signal::Close, Poll::Pending) => Poll::Ready(None),
    })
    .await
}
