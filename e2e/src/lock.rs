//! A lock between processes, which ends with the process that holds it.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use crate::Error;

/// A held lock. Its file stays, for the next owner.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock; `waiting` is called when another has it.
    pub(crate) fn take(path: &Path, waiting: impl FnOnce()) -> Result<Self, Error> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
        }
        let file = File::create(path).map_err(Error::file("create", path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                waiting();
                file.lock().map_err(Error::file("lock", path))?;
            }
            Err(TryLockError::Error(error)) => return Err(Error::file("lock", path)(error)),
        }
        Ok(Self { _file: file })
    }
}
