//! Where a module's bytes go while they come: a temporary file, hashed and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use portcullis_contract::{Digest, Hasher, Reason};
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;

use portcullis_registry::Receive;

use super::SourceError;

/// Takes a module.
pub(crate) struct Sink {
    /// None where only the digest is wanted.
    file: Option<File>,
    hasher: Hasher,
    bytes: u64,
    limit: u64,
    progress: Arc<Progress>,
}

/// How far a download is.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    bytes: AtomicU64,
    /// 0 where it is not known.
    total: AtomicU64,
}

/// A module that came whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fetched {
    /// Of its bytes.
    pub digest: Digest,
    /// How many.
    pub bytes: u64,
}

impl Sink {
    /// A sink into `file`, or into nothing but a digest, for at most `limit` bytes.
    pub(crate) fn new(file: Option<std::fs::File>, limit: u64, progress: Arc<Progress>) -> Self {
        Self { file: file.map(File::from_std), hasher: Hasher::default(), bytes: 0, limit, progress }
    }

    /// All bytes are there. They are not synced: whoever compiles them compares them with their digest first.
    ///
    /// # Errors
    /// What the volume says.
    pub(crate) async fn finish(mut self) -> Result<Fetched, SourceError> {
        if let Some(file) = &mut self.file {
            file.flush().await.map_err(|error| volume(&error))?;
        }
        Ok(Fetched { digest: self.hasher.finish(), bytes: self.bytes })
    }

    fn too_large(&self) -> SourceError {
        let text = format!("the module is above the limit of {} bytes (--max-module-size)", self.limit);
        SourceError::new(Reason::ModuleTooLarge, text)
    }
}

impl Receive for Sink {
    /// One above the limit ends the attempt before it begins.
    fn expect(&mut self, total: u64) -> Result<(), SourceError> {
        self.progress.total.store(total, Ordering::Relaxed);
        if total > self.limit { Err(self.too_large()) } else { Ok(()) }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        self.bytes += bytes.len() as u64;
        if self.bytes > self.limit {
            return Err(self.too_large());
        }
        self.hasher.update(bytes);
        if let Some(file) = &mut self.file {
            file.write_all(bytes).await.map_err(|error| volume(&error))?;
        }
        self.progress.bytes.store(self.bytes, Ordering::Relaxed);
        Ok(())
    }
}

fn volume(error: &std::io::Error) -> SourceError {
    SourceError::new(crate::store::volume_reason(error), format!("failed to keep the module: {error}"))
}

impl Progress {
    /// Bytes done, and bytes in all where known.
    pub(crate) fn read(&self) -> (u64, Option<u64>) {
        let total = self.total.load(Ordering::Relaxed);
        (self.bytes.load(Ordering::Relaxed), Some(total).filter(|total| *total > 0))
    }
}
