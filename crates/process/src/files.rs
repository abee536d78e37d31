//! Reads files of other programs with limits, and writes files by rename.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::format_bytes;

/// A file operation that failed, with its path.
#[derive(Debug, thiserror::Error)]
#[error("failed to {action} {}: {source}", path.display())]
pub struct FileError {
    /// The operation, for instance `read`.
    pub action: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The error of the operating system.
    #[source]
    pub source: io::Error,
}

impl FileError {
    /// Makes the error for `map_err`.
    pub fn new<'p>(action: &'static str, path: &'p Path) -> impl FnOnce(io::Error) -> Self + 'p {
        move |source| Self { action, path: path.to_owned(), source }
    }
}

/// Opens a regular file for reading. A FIFO, device, directory or symbolic link is refused, and opening never blocks.
///
/// # Errors
/// When the file does not exist, is not regular, or may not be read.
pub fn open_regular(path: &Path) -> Result<File, FileError> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY).bits();
    let flags = i32::try_from(flags).unwrap_or_default();
    let file =
        fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(FileError::new("open", path))?;
    let metadata = file.metadata().map_err(FileError::new("examine", path))?;
    if metadata.is_file() {
        Ok(file)
    } else {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
        Err(FileError { action: "open", path: path.to_owned(), source })
    }
}

/// The content of a regular file of at most `limit` bytes.
///
/// # Errors
/// Those of [`open_regular`], and an error of kind `FileTooLarge` when the file is longer.
pub fn read_regular(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    let file = open_regular(path)?;
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(FileError::new("read", path))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > limit {
        let source = io::Error::new(io::ErrorKind::FileTooLarge, format!("it is longer than {}", format_bytes(limit)));
        return Err(FileError { action: "read", path: path.to_owned(), source });
    }
    Ok(bytes)
}

/// Writes a file so that a reader sees either the old content or the new one, complete: a temporary file in the same
/// folder is written, synced, and renamed. A failure leaves no temporary file.
///
/// # Errors
/// When the folder cannot be written.
pub fn publish(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let temporary = temporary_beside(path);
    let written = File::create(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .map_err(FileError::new("write", &temporary));
    let published = written.and_then(|()| fs::rename(&temporary, path).map_err(FileError::new("rename to", path)));
    if published.is_err() {
        // A failure is ignored: the name of a file that stays behind shows that it is temporary.
        let _ = fs::remove_file(&temporary);
    }
    published
}

/// The name under which `path` is written before it is renamed. It begins with a dot, so that watchers ignore it.
pub fn temporary_beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.tmp", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_is_whole_and_leaves_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("manifest.json");
        publish(&path, b"one").expect("writes");
        publish(&path, b"two").expect("writes");
        assert_eq!(read_regular(&path, 3).expect("reads"), b"two");
        assert_eq!(fs::read_dir(folder.path()).expect("lists").count(), 1);
    }

    #[test]
    fn a_file_above_the_limit_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("large");
        fs::write(&path, b"1234").expect("writes");
        assert_eq!(read_regular(&path, 3).expect_err("refused").source.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn links_folders_and_devices_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/dev/zero", &link).expect("links");
        for path in [&link, folder.path(), Path::new("/dev/zero")] {
            assert!(open_regular(path).is_err(), "{}", path.display());
        }
    }
}
