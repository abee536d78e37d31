//! Receivers of the bytes of a body, as they come.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use portcullis_contract::{Digest, Hasher, Reason};
use portcullis_process::format_bytes;

use crate::{FetchError, WriteTime};

/// Receives a body.
pub trait Receive: Send {
    /// Notes the size that the source announces.
    ///
    /// # Errors
    /// When that is too large already.
    fn expect(&mut self, total: u64) -> Result<(), FetchError>;

    /// Takes the next bytes.
    ///
    /// # Errors
    /// When there are too many, or they cannot be stored.
    fn write(&mut self, bytes: &[u8]) -> impl Future<Output = Result<(), FetchError>> + Send;

    /// The time that writes take; none unless the receiver counts it.
    fn write_time(&self) -> WriteTime {
        WriteTime::default()
    }
}

/// Counts the bytes of bodies that are kept in memory, and lets them wait while there is too little of it.
pub trait BodyMemory: Send + Sync {
    /// Waits until so many more bytes may be kept. Fails with the error of the fetch if that takes too long.
    fn take(&self, bytes: usize) -> Pin<Box<dyn Future<Output = Result<(), FetchError>> + Send + '_>>;
}

/// Keeps a body in memory, for small bodies and for commands that work on one module.
pub struct Whole {
    bytes: Vec<u8>,
    hasher: Hasher,
    limit: u64,
    /// What the body is, for the error.
    what: &'static str,
    /// The reason of the error for a body above the limit.
    reason: Reason,
    /// What counts the bytes; `None` where nothing does.
    memory: Option<Arc<dyn BodyMemory>>,
    write_time: WriteTime,
}

impl Whole {
    /// A receiver of at most `limit` bytes of `what`.
    pub fn new(what: &'static str, limit: u64) -> Self {
        Self {
            bytes: Vec::new(),
            hasher: Hasher::default(),
            limit,
            what,
            reason: Reason::ModuleTooLarge,
            memory: None,
            write_time: WriteTime::default(),
        }
    }

    /// The same for a body that is neither module nor manifest: one above the limit fails with this reason.
    #[must_use]
    pub fn refused_as(self, reason: Reason) -> Self {
        Self { reason, ..self }
    }

    /// The same with something that counts the bytes.
    #[must_use]
    pub fn within(self, memory: Option<Arc<dyn BodyMemory>>) -> Self {
        Self { memory, ..self }
    }

    /// The bytes and their digest.
    pub fn finish(mut self) -> (Vec<u8>, Digest) {
        // It may have grown to twice its size.
        self.bytes.shrink_to_fit();
        (self.bytes, self.hasher.finish())
    }

    fn too_large(&self) -> FetchError {
        let text = format!("{} is above the limit of {}", self.what, format_bytes(self.limit));
        FetchError::new(self.reason, text)
    }
}

impl Receive for Whole {
    fn expect(&mut self, total: u64) -> Result<(), FetchError> {
        if total > self.limit { Err(self.too_large()) } else { Ok(()) }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), FetchError> {
        if self.bytes.len() as u64 + bytes.len() as u64 > self.limit {
            return Err(self.too_large());
        }
        if let Some(memory) = &self.memory {
            // Waiting is no fault of the source, so it counts like a write.
            self.write_time.count(memory.take(bytes.len())).await?;
        }
        self.hasher.update(bytes);
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn write_time(&self) -> WriteTime {
        self.write_time.clone()
    }
}
