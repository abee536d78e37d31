//! Reading a request's body within limits of size, time and memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Longest time for a body.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bodies up to this size are bounded by the number of connections alone.
const SMALL: usize = 64 << 10;
/// What is reserved at a time for a larger body.
const STEP: usize = 64 << 10;
/// Longest time that a body which is refused is read and thrown away for.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// Limits on bodies.
pub struct BodyLimits {
    largest: usize,
    /// Steps of memory for all large bodies together. A body that finds none waits; the sender then waits as well, since
    /// nothing more is read from it.
    memory: Arc<Semaphore>,
}

/// A body, and the memory that is reserved for it.
pub struct Body {
    /// The content.
    pub bytes: Bytes,
    _memory: Option<OwnedSemaphorePermit>,
}

/// A body that is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyError {
    /// Above the limit.
    TooLarge,
    /// Not there in time.
    TooSlow,
    /// The connection broke; nobody is left to answer.
    Broken,
}

impl BodyLimits {
    /// Bodies of at most `largest` bytes, and 32 times that for all large ones together.
    pub fn new(largest: usize) -> Self {
        let steps = largest.saturating_mul(32).div_ceil(STEP).clamp(1, Semaphore::MAX_PERMITS);
        Self { largest, memory: Arc::new(Semaphore::new(steps)) }
    }

    /// Whether a body announces more than is taken.
    pub fn is_too_large(&self, body: &Incoming) -> bool {
        body.size_hint().lower() > u64::try_from(self.largest).unwrap_or(u64::MAX)
    }

    /// Reads a body.
    ///
    /// # Errors
    /// When it is too large, too slow, or broken off.
    pub async fn read(&self, body: Incoming) -> Result<Body, BodyError> {
        timeout(TIMEOUT, self.pieces(body)).await.unwrap_or(Err(BodyError::TooSlow))
    }

    async fn pieces(&self, mut body: Incoming) -> Result<Body, BodyError> {
        // Most bodies come in one piece, which is then not copied.
        let mut first: Option<Bytes> = None;
        let mut all = BytesMut::new();
        let mut memory = None;
        while let Some(frame) = body.frame().await {
            let Ok(piece) = frame.map_err(|_| BodyError::Broken)?.into_data() else { continue };
            let length = all.len() + first.as_ref().map_or(0, Bytes::len) + piece.len();
            if length > self.largest {
                return Err(BodyError::TooLarge);
            }
            self.reserve(&mut memory, length).await;
            if first.is_none() && all.is_empty() {
                first = Some(piece);
                continue;
            }
            if let Some(first) = first.take() {
                all.extend_from_slice(&first);
            }
            all.extend_from_slice(&piece);
        }
        Ok(Body { bytes: first.unwrap_or_else(|| all.freeze()), _memory: memory })
    }

    async fn reserve(&self, held: &mut Option<OwnedSemaphorePermit>, length: usize) {
        if length <= SMALL {
            return;
        }
        let have = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = u32::try_from(length.div_ceil(STEP).saturating_sub(have)).unwrap_or(u32::MAX);
        if more > 0 {
            let permit = Arc::clone(&self.memory).acquire_many_owned(more).await;
            let permit = permit.expect("the semaphore is never closed");
            match held {
                Some(held) => held.merge(permit),
                None => *held = Some(permit),
            }
        }
    }

    /// Reads on for a moment and throws away: who still sends when the connection is closed may never see the answer.
    pub async fn discard(&self, mut body: Incoming) {
        let mut left = self.largest.saturating_mul(4);
        let reading = async {
            while let Some(Ok(frame)) = body.frame().await {
                left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                if left == 0 {
                    break;
                }
            }
        };
        // Too late is as good as done.
        let _ = timeout(DISCARD_TIMEOUT, reading).await;
    }
}
