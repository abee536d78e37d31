//! One loader for each volume: a lock on a file, which also remembers the newest manifest's number.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use portcullis_process::files::FileError;
use portcullis_util::lock;
use rustix::fs::{FlockOperation, flock};

use crate::volume_error::VolumeError;

/// The lock. The kernel releases it when the process ends, however that happens.
pub(crate) struct Lock {
    path: PathBuf,
    file: Mutex<File>,
    number: AtomicU64,
}

impl Lock {
    /// Takes the lock. `None` if another loader has it.
    pub(super) fn take(path: &Path) -> Result<Option<Self>, VolumeError> {
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = open.map_err(FileError::new("open", path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(FileError::new("lock", path)(error.into()).into()),
        }
        let mut text = String::new();
        // A number that cannot be read counts as 0; the manifest has its number too.
        let _ = (&mut file).take(32).read_to_string(&mut text);
        let number = AtomicU64::new(text.trim().parse().unwrap_or(0));
        Ok(Some(Self { path: path.to_owned(), file: Mutex::new(file), number }))
    }

    /// The newest number that was noted.
    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    /// Makes numbers continue above `floor`.
    pub(super) fn raise(&self, floor: u64) {
        self.number.fetch_max(floor, Ordering::Relaxed);
    }

    /// Writes a number into the lock file.
    pub(super) fn note(&self, number: u64) -> Result<(), VolumeError> {
        let mut file = lock(&self.file);
        // Numbers only grow, so a newer one always covers all digits of an older one.
        file.rewind().and_then(|()| writeln!(file, "{number}")).map_err(FileError::new("write", &self.path))?;
        self.number.store(number, Ordering::Relaxed);
        Ok(())
    }
}
