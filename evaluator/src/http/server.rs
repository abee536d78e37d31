//! The admission port: accepts connections, speaks HTTP/1.1 on them, and ends them in good order.

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
use portcullis_process::{Readiness, Shutdown};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::LazyConfigAcceptor;

use crate::http::connection::{Asked, Place};
use crate::http::connections::{Connections, Listed};
use crate::http::handler::Handler;
use crate::http::stream::Stream;
use crate::http::tls::Certificates;
use crate::http::turns::Turns;
use crate::metrics::Metrics;

/// Room for a request's head, and for reading a body; more would be memory for whoever opens connections.
const BUFFER: usize = 64 << 10;
/// Wait after a failed accept: descriptors come back when connections end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections that are accepted and were not looked at yet: where this program is short of CPU the rest waits in the kernel, or those would be
/// taken for silent of which nobody has read.
const UNSEEN: usize = 128;
/// Time without a failed accept after which all is well again.
const ACCEPT_CALM: Duration = Duration::from_secs(5);

/// How the end goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DrainTimes {
    /// How long new connections are still accepted: until everybody has heard that this replica is not ready.
    pub delay: Duration,
    /// How long running requests may take after that.
    pub grace: Duration,
}

/// The admission port's parts.
pub(crate) struct Server {
    /// Answers requests.
    pub handler: Arc<Handler>,
    /// The open connections.
    pub connections: Arc<Connections>,
    /// Certificate and key; nothing for plain HTTP.
    pub certificates: Option<Arc<Certificates>>,
    /// Counters.
    pub metrics: Metrics,
    /// Told when the end begins.
    pub readiness: Readiness,
    /// How the end goes.
    pub drain: DrainTimes,
}

impl Server {
    /// Serves until the end: after `shutdown` begins it answers for the drain delay, then ends what runs.
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
        // Half of the threads may be busy with the arithmetic of handshakes; the rest is for who got through already.
        let workers = tokio::runtime::Handle::current().metrics().num_workers();
        let turns = u32::try_from(workers / 2).unwrap_or(u32::MAX).max(1);
        let handshakes = Turns::new(turns, turns);
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
                // The client's doing.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) => {}
                Err(error) => {
                    // Out of descriptors or memory, most likely.
                    if failed.replace(Instant::now()).is_none() {
                        tracing::warn!(%error, "failed to accept a connection; trying again until it works");
                    }
                    self.connections.make_room();
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// What still runs gets its answer: its own in time, or that there is no more time.
    async fn finish(&self) {
        let last_words = (self.drain.grace / 4).min(Duration::from_secs(1));
        self.connections.finish();
        if timeout(self.drain.grace - last_words, self.connections.gone()).await.is_ok() {
            return;
        }
        self.handler.asker.last_call.announce();
        self.connections.wake();
        if timeout(last_words, self.connections.gone()).await.is_err() {
            tracing::warn!("some connections were still open at the end");
        }
    }

    async fn connection(&self, stream: TcpStream, listed: Listed, handshakes: &Arc<Turns>) {
        // Answers are single writes; waiting for more to send only delays them.
        let _ = stream.set_nodelay(true);
        let place = &listed.place;
        let stream = match &self.certificates {
            None => Stream::plain(stream, Arc::clone(place)),
            Some(certificates) => {
                match until_asked(place, self.handshake(certificates, stream, place, handshakes)).await {
                    Some(Some(stream)) => Stream::tls(stream, Arc::clone(place)),
                    Some(None) | None => return,
                }
            }
        };
        let service = service_fn(|request: Request<Incoming>| {
            place.sending(0);
            async {
                let response = self.handler.handle(request, place).await;
                listed.answered(response.status() == StatusCode::OK);
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        let connection = http1::Builder::new()
            // Times are the list's affair: hyper's own limit would also close connections that are idle.
            .header_read_timeout(None)
            .max_buf_size(BUFFER)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let mut is_finishing = false;
        poll_fn(|cx| {
            let asked = place.asked(cx);
            if asked != Asked::Nothing && !std::mem::replace(&mut is_finishing, true) {
                connection.as_mut().graceful_shutdown();
            }
            // Errors are the client's: it hung up or sent noise.
            match connection.as_mut().poll(cx) {
                Poll::Ready(_) => Poll::Ready(()),
                Poll::Pending if asked == Asked::Close => Poll::Ready(()),
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
    }

    async fn handshake(
        &self,
        certificates: &Certificates,
        stream: TcpStream,
        place: &Place,
        handshakes: &Arc<Turns>,
    ) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
        let config = certificates.current()?;
        let acceptor = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream);
        let shaken = async {
            let mut rest = pin!(acceptor.await?.into_stream(config));
            // The hello is answered in a turn. Nobody has a turn who waits for the client, or those who say hello and no
            // more would keep out everybody else.
            place.waiting();
            let turn = handshakes.acquire(place.source(), place.is_known(), 1).await;
            let answered = poll_fn(|cx| Poll::Ready(Pin::as_mut(&mut rest).poll(cx))).await;
            drop(turn);
            place.opening();
            match answered {
                Poll::Ready(stream) => stream,
                Poll::Pending => rest.await,
            }
        };
        match shaken.await {
            Ok(stream) => {
                place.idle();
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

/// Runs `future`, and drops the permit when it has run for the first time, as far as it went.
async fn seen_once(permit: OwnedSemaphorePermit, future: impl Future<Output = ()>) {
    let (mut permit, mut future) = (Some(permit), pin!(future));
    poll_fn(|cx| {
        let poll = Pin::as_mut(&mut future).poll(cx);
        permit.take();
        poll
    })
    .await;
}

/// Runs `future` until the connection is asked to end; there is no request yet that could be cut off.
async fn until_asked<F: Future>(place: &Place, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| match (place.asked(cx), Pin::as_mut(&mut future).poll(cx)) {
        (_, Poll::Ready(output)) => Poll::Ready(Some(output)),
        (Asked::Nothing, Poll::Pending) => Poll::Pending,
        (Asked::Finish | Asked::Close, Poll::Pending) => Poll::Ready(None),
    })
    .await
}
