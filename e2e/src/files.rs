//! Files of a cluster. Some are keys and tokens, so only their owner may read them.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use crate::Error;

/// Creates a folder, and its parents.
pub(crate) fn make_folder(path: &Path) -> Result<(), Error> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(Error::file("create", path))
}

/// Writes a file by rename, so that a reader never sees a part of it.
pub(crate) fn write(path: &Path, content: &str) -> Result<(), Error> {
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(content.as_bytes()));
    written.map_err(Error::file("write", &temporary))?;
    fs::rename(&temporary, path).map_err(Error::file("write", path))
}

/// Removes a file, if it exists.
pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Removes a folder with its content, if it exists.
pub(crate) fn remove_folder(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file("remove", path)(error)),
        _ => Ok(()),
    }
}

/// The names of the files in a folder.
pub(crate) fn names(folder: &Path) -> Result<Vec<OsString>, Error> {
    let names = fs::read_dir(folder).and_then(|files| files.map(|file| Ok(file?.file_name())).collect());
    names.map_err(Error::file("read", folder))
}

/// The last lines of a text file, as far as it can be read.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    let content = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&content);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn others_cannot_read_what_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        make_folder(&path).unwrap();
        write(&path.join("key.pem"), "secret").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join("key.pem"))), (0o700, 0o600));
    }

    #[test]
    fn removing_what_is_gone_is_fine() {
        let folder = tempfile::tempdir().unwrap();
        remove_folder(&folder.path().join("nothing")).unwrap();
        remove(&folder.path().join("nothing")).unwrap();
    }

    #[test]
    fn a_tail_is_the_last_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, "one\ntwo\nthree\n").unwrap();
        assert_eq!(tail(&path, 2), "two\nthree");
        assert_eq!(tail(&folder.path().join("none"), 2), "");
    }
}
