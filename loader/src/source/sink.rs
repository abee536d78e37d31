//! Where the bytes of a module or an artifact go while they arrive: into a temporary file. They are hashed and counted, and room is reserved.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use portcullis_contract::{Digest, Hasher, Reason};
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;

use portcullis_process::{failpoint, format_bytes};
use portcullis_registry::{Receive, WriteTime};

use super::SourceError;
use crate::volume::Reservation;
use crate::volume_error::VolumeError;

/// The longest that one write to the volume may take, or one sync.
const LONGEST_WRITE: Duration = Duration::from_secs(60);

/// Receives a module or an artifact.
pub(crate) struct Sink {
    /// The temporary file and the room for it; `None` where only the digest is wanted.
    file: Option<(File, Reservation)>,
    kind: Kind,
    hasher: Hasher,
    bytes: u64,
    limit: u64,
    progress: Arc<Progress>,
    write_time: WriteTime,
}

/// The progress of a download.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    bytes: AtomicU64,
    /// 0 if it is not known.
    total: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Module,
    Artifact,
}

/// A module or an artifact that arrived as a whole.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// The digest of its bytes.
    pub digest: Digest,
    /// Its size in bytes.
    pub bytes: u64,
    /// The room that is reserved for it on the volume; `None` if only the digest was wanted.
    pub reservation: Option<Reservation>,
}

impl Sink {
    /// For a module of at most `limit` bytes. Without a `file`, the bytes are only hashed.
    pub(crate) fn new(file: Option<(std::fs::File, Reservation)>, limit: u64, progress: Arc<Progress>) -> Self {
        let file = file.map(|(file, reservation)| (File::from_std(file), reservation));
        Self {
            file,
            kind: Kind::Module,
            hasher: Hasher::default(),
            bytes: 0,
            limit,
            progress,
            write_time: WriteTime::default(),
        }
    }

    /// For an artifact of at most `limit` bytes.
    pub(crate) fn of_artifact(
        file: std::fs::File,
        reservation: Reservation,
        limit: u64,
        progress: Arc<Progress>,
    ) -> Self {
        Self { kind: Kind::Artifact, ..Self::new(Some((file, reservation)), limit, progress) }
    }

    /// Call it when all bytes have arrived. A module is not synced to disk, as its digest is checked before it is compiled.
    ///
    /// # Errors
    /// When the volume cannot be written.
    pub(crate) async fn finish(self) -> Result<Fetched, SourceError> {
        let mut reservation = None;
        if let Some((mut file, room)) = self.file {
            let is_synced = self.kind == Kind::Artifact;
            let ended = self.write_time.count(async {
                bounded_write(file.flush()).await?;
                if is_synced { bounded_write(file.sync_all()).await } else { Ok(()) }
            });
            ended.await.map_err(|error| not_written(&error))?;
            reservation = Some(room);
        }
        Ok(Fetched { digest: self.hasher.finish(), bytes: self.bytes, reservation })
    }

    fn too_large(&self) -> SourceError {
        match self.kind {
            Kind::Module => SourceError::new(Reason::ModuleTooLarge, module_too_large(self.limit)),
            Kind::Artifact => {
                let limit = format_bytes(self.limit);
                let text = format!("the compiled module is above the limit of {limit} (--max-artifact-size)");
                SourceError::new(Reason::CompileLimit, text)
            }
        }
    }
}

impl Receive for Sink {
    /// Fails at the start if there will be too many bytes, or no room for them.
    fn expect(&mut self, total: u64) -> Result<(), SourceError> {
        self.progress.total.store(total, Ordering::Relaxed);
        if total > self.limit {
            return Err(self.too_large());
        }
        self.file.as_ref().map_or(Ok(()), |(_, reservation)| reservation.check(total).map_err(no_room))
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        self.bytes += bytes.len() as u64;
        self.progress.bytes.store(self.bytes, Ordering::Relaxed);
        if self.bytes > self.limit {
            return Err(self.too_large());
        }
        self.hasher.update(bytes);
        if let Some((file, reservation)) = &mut self.file {
            reservation.grow_to(self.bytes).map_err(no_room)?;
            let written = self.write_time.count(bounded_write(file.write_all(bytes))).await;
            written.map_err(|error| not_written(&error))?;
            // The first piece is in the file when the second one was taken.
            if self.kind == Kind::Artifact && self.bytes > bytes.len() as u64 {
                failpoint::hit("loader.second_artifact_piece");
            }
        }
        Ok(())
    }

    fn write_time(&self) -> WriteTime {
        self.write_time.clone()
    }
}

/// A write or sync of the volume, which may be slow but not hang: others wait for the slot of this job.
async fn bounded_write(write: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    let hangs =
        |_| io::Error::new(io::ErrorKind::TimedOut, format!("a write took longer than {} s", LONGEST_WRITE.as_secs()));
    tokio::time::timeout(LONGEST_WRITE, write).await.map_err(hangs)?
}

fn no_room(error: VolumeError) -> SourceError {
    SourceError::new(error.reason, error.message)
}

/// What is said of a module that is above the limit, in bytes.
pub(crate) fn module_too_large(limit: u64) -> String {
    format!("the module is above the limit of {} (--max-module-size)", format_bytes(limit))
}

/// The error for a file that cannot be written on the volume.
pub(crate) fn not_written(error: &std::io::Error) -> SourceError {
    SourceError::new(crate::volume_error::volume_reason(error), format!("failed to write to the volume: {error}"))
}

impl Progress {
    /// Bytes so far, and bytes in all if known.
    pub(crate) fn read(&self) -> (u64, Option<u64>) {
        let total = self.total.load(Ordering::Relaxed);
        (self.bytes.load(Ordering::Relaxed), Some(total).filter(|total| *total > 0))
    }
}
