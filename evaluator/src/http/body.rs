//! Reading the body of a request within limits of size, rate and memory.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::time::{Sleep, sleep, timeout};

use crate::fair::pool::{PeerPermit, PeerPool};
use crate::fair::turns::TurnClaim;
use crate::http::connection::ConnectionState;
use crate::http::pace::{LONGEST, Progress};
use crate::metrics::Metrics;

/// Bodies up to this size are bounded by the number of connections alone, and never wait.
const SMALL: usize = 64 << 10;
/// The unit that memory is counted in, in bytes.
const STEP: usize = 64 << 10;
/// How much of the memory one peer may have, in quarters, so that one that sends slowly leaves room for others.
const QUARTERS_OF_ONE: usize = 3;
/// How many copies of a body are kept: one as it came, and one as guests see it. All members of a group see the same bytes.
const COPIES: usize = 2;
/// How long before its sender gives up a body stops waiting for memory, so that the answer says what it waited for.
const LAST_MOMENT: Duration = Duration::from_millis(100);
/// How often the rate is checked while nothing arrives.
const LOOK: Duration = Duration::from_millis(250);
/// How long a refused body is read and thrown away.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// Limits on bodies.
pub(crate) struct BodyLimits {
    largest: usize,
    /// The memory for all large bodies together, in steps. A body takes what it announces before any of it is read; one that finds too
    /// little waits, and so does its sender.
    memory: Arc<PeerPool>,
    metrics: Metrics,
}

/// A body and the memory that is reserved for it.
pub(crate) struct Body {
    /// The content.
    pub bytes: Bytes,
    _memory: Option<PeerPermit>,
}

/// Why a body is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// It is above the limit.
    TooLarge,
    /// It did not arrive in time.
    TooSlow,
    /// There was no memory for it in time.
    NoRoom,
    /// The connection broke; there is no client left to answer.
    Broken,
}

/// A body that is being read.
struct Reading<'a> {
    body: Incoming,
    state: &'a ConnectionState,
    announced: usize,
    received: usize,
    begun: Instant,
    /// Where its memory comes from; none if it is small.
    memory: Option<&'a PeerPool>,
}

impl BodyLimits {
    /// Limits of `largest` bytes for each body, and of `memory` bytes for all large ones together.
    pub(crate) fn new(largest: usize, memory: u64, metrics: &Metrics) -> Self {
        let steps = |bytes: usize| u64::try_from(bytes.div_ceil(STEP)).unwrap_or(u64::MAX).max(1);
        let one = largest.saturating_mul(COPIES);
        let memory = usize::try_from(memory).unwrap_or(usize::MAX).max(one);
        let memory = PeerPool::new(steps(memory), steps((memory / 4 * QUARTERS_OF_ONE).max(one)));
        Self { largest, memory, metrics: metrics.clone() }
    }

    /// Whether a body announces more bytes than are taken.
    pub(crate) fn is_too_large(&self, body: &Incoming) -> bool {
        body.size_hint().lower() > u64::try_from(self.largest).unwrap_or(u64::MAX)
    }

    /// Reads the body of a request whose sender waits for `patience` at most; none if it does not say.
    ///
    /// # Errors
    /// When it is too large, too slow, or broken off, or there is no memory for it.
    pub(crate) async fn read(
        &self,
        body: Incoming,
        state: &ConnectionState,
        patience: Option<Duration>,
    ) -> Result<Body, BodyError> {
        if self.is_too_large(&body) {
            return Err(BodyError::TooLarge);
        }
        // Chunked bodies have been refused already, so this is the exact size.
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        let permit = if announced > SMALL { Some(self.room(announced, state, patience).await?) } else { None };
        state.sending(u64::try_from(announced).unwrap_or(u64::MAX));
        let memory = permit.as_ref().map(|_| &*self.memory);
        let reading = Reading { body, state, announced, received: 0, begun: Instant::now(), memory };
        let read = reading.whole().await;
        if read == Err(BodyError::TooSlow) {
            self.metrics.bodies_too_slow.inc();
        }
        Ok(Body { bytes: read?, _memory: permit })
    }

    /// Waits until there is memory for a body.
    async fn room(
        &self,
        announced: usize,
        state: &ConnectionState,
        patience: Option<Duration>,
    ) -> Result<PeerPermit, BodyError> {
        state.waiting();
        let amount = u64::try_from(announced.saturating_mul(COPIES).div_ceil(STEP)).unwrap_or(u64::MAX);
        let is_known = state.is_known() || state.is_proven();
        let claim = TurnClaim { owner: state.peer(), is_preferred: is_known, amount };
        let longest = patience.map_or(LONGEST, |patience| patience.saturating_sub(LAST_MOMENT).min(LONGEST));
        self.memory.take(&claim, Some(Instant::now() + longest)).await.map_err(|_| {
            self.metrics.bodies_without_room.inc();
            BodyError::NoRoom
        })
    }

    /// Throws a refused body away, as [`discard`] does.
    pub(crate) async fn discard(&self, mut body: Incoming) {
        discard(&mut body, self.largest).await;
    }
}

/// Reads a refused body for a moment and throws it away: a client that still sends when the connection closes may never see the answer.
/// `largest` is the size of the largest body that is taken, in bytes.
pub(crate) async fn discard(body: &mut (impl hyper::body::Body<Data = Bytes> + Unpin), largest: usize) {
    let mut left = largest.saturating_mul(4);
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                break;
            }
        }
    };
    // A timeout is fine: these bytes are thrown away in any case.
    let _ = timeout(DISCARD_TIMEOUT, reading).await;
}

impl Reading<'_> {
    async fn whole(mut self) -> Result<Bytes, BodyError> {
        let mut look = pin!(sleep(LOOK));
        // Most bodies come in one piece, which is then not copied.
        let mut first: Option<Bytes> = None;
        let mut all = BytesMut::new();
        while let Some(piece) = poll_fn(|cx| self.poll_piece(cx, look.as_mut())).await? {
            if first.is_none() && all.is_empty() {
                first = Some(piece);
                continue;
            }
            if let Some(first) = first.take() {
                all.reserve(self.announced);
                all.extend_from_slice(&first);
            }
            all.extend_from_slice(&piece);
        }
        Ok(first.unwrap_or_else(|| all.freeze()))
    }

    /// The next piece; none at the end. Bytes that have arrived are taken before the rate is judged: a sender is not slow just because this
    /// program reads late.
    fn poll_piece(
        &mut self,
        cx: &mut Context<'_>,
        mut look: Pin<&mut Sleep>,
    ) -> Poll<Result<Option<Bytes>, BodyError>> {
        while let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            let Some(frame) = frame else { return Poll::Ready(Ok(None)) };
            let Ok(piece) = frame.map_err(|_| BodyError::Broken)?.into_data() else { continue };
            self.received += piece.len();
            self.state.received(u64::try_from(self.received).unwrap_or(u64::MAX));
            return Poll::Ready(Ok(Some(piece)));
        }
        loop {
            let progress = self.progress();
            let is_in_the_way = || self.memory.is_some_and(PeerPool::is_waited_for);
            if progress.is_too_slow() || (progress.lags() && is_in_the_way()) {
                return Poll::Ready(Err(BodyError::TooSlow));
            }
            if look.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            look.as_mut().reset(tokio::time::Instant::now() + LOOK);
        }
    }

    fn progress(&self) -> Progress {
        let bytes = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
        Progress { announced: bytes(self.announced), received: bytes(self.received), elapsed: self.begun.elapsed() }
    }
}
