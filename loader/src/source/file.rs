//! Modules in files, below the installation's roots only.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use portcullis_contract::Reason;
use portcullis_process::files;
use portcullis_registry::Receive as _;
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::{Sink, SourceError};

/// How many bytes are read at a time.
const PIECE: usize = 256 << 10;

/// Reads module files.
pub(crate) struct FileSource {
    /// Canonical folders; a file is read only below one of them.
    roots: Vec<PathBuf>,
}

impl FileSource {
    /// A source below `roots`, which are canonical.
    pub(crate) fn new(roots: Vec<PathBuf>) -> Self {
        Self { roots }
    }

    fn open(&self, path: &Path) -> Result<File, SourceError> {
        let outside = || {
            let is_below = self.roots.iter().any(|root| path.starts_with(root));
            let what = if is_below {
                "leads out of the folder of the policies by a link: put the module itself there, or name the folder that the link leads to"
            } else {
                "is not below the folder of the policies: move it there, or name its folder"
            };
            let text = format!("{} {what} with --module-root", path.display());
            SourceError::new(Reason::SourceNotAllowed, text)
        };
        let real = match path.canonicalize() {
            Ok(real) => real,
            // The answer must not reveal whether a file exists elsewhere.
            Err(_) if !self.roots.iter().any(|root| path.starts_with(root)) => return Err(outside()),
            Err(error) => return Err(unreadable(path, &error)),
        };
        let Some((root, rest)) = self.roots.iter().find_map(|root| Some((root, real.strip_prefix(root).ok()?))) else {
            return Err(outside());
        };
        // The path is resolved: a link in it now was put there since, so none is followed.
        open_beneath(root, rest).map_err(|error| match rustix::io::Errno::from_io_error(&error) {
            Some(rustix::io::Errno::LOOP | rustix::io::Errno::XDEV) => outside(),
            _ => unreadable(path, &error),
        })
    }

    /// Writes the module's bytes into `sink` while they are read.
    ///
    /// # Errors
    /// When the file is outside the roots, or cannot be read.
    pub(crate) async fn fetch(&self, path: &Path, sink: &mut Sink) -> Result<(), SourceError> {
        let mut file = self.open(path)?;
        let bytes = file.metadata().map_err(|error| unreadable(path, &error))?.len();
        if bytes == 0 {
            // Builds and copies empty a file before they fill it.
            let text = format!("{} is empty: the policy loads as soon as its module is in it", path.display());
            return Err(SourceError::new(Reason::NotFound, text));
        }
        sink.expect(bytes)?;
        loop {
            // A slow disk must not block the other tasks of this thread.
            let piece;
            (file, piece) = read_piece(file).await.map_err(|error| unreadable(path, &error))?;
            if piece.is_empty() {
                return Ok(());
            }
            sink.write(&piece).await?;
        }
    }
}

async fn read_piece(mut file: File) -> io::Result<(File, Vec<u8>)> {
    let read = tokio::task::spawn_blocking(move || {
        let mut piece = vec![0; PIECE];
        let length = file.read(&mut piece)?;
        piece.truncate(length);
        Ok((file, piece))
    });
    read.await.map_err(io::Error::other)?
}

fn open_beneath(root: &Path, rest: &Path) -> io::Result<File> {
    let folder = File::open(root)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = match rustix::fs::openat2(folder, rest, flags, Mode::empty(), resolve) {
        Ok(file) => File::from(file),
        // `openat2` is missing in kernels before 5.6 and in some sandboxes.
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
            files::open_regular(&root.join(rest)).map_err(|error| error.source)?
        }
        Err(error) => return Err(error.into()),
    };
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
    }
}

fn unreadable(path: &Path, error: &io::Error) -> SourceError {
    let (reason, text) = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            (Reason::NotFound, format!("there is no file {}; the policy loads once the file exists", path.display()))
        }
        io::ErrorKind::PermissionDenied => {
            (Reason::Unauthorized, format!("the loader may not read {}: change its owner or mode", path.display()))
        }
        _ => (Reason::NotFound, format!("failed to read {}: {error}", path.display())),
    };
    SourceError::new(reason, text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    struct Rig {
        root: tempfile::TempDir,
        outside: tempfile::TempDir,
        source: FileSource,
    }

    fn rig() -> Rig {
        let (root, outside) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        fs::write(root.path().join("a.wasm"), "module").expect("writes");
        fs::write(outside.path().join("canary"), "secret").expect("writes");
        let source = FileSource::new(vec![root.path().canonicalize().expect("a path")]);
        Rig { root, outside, source }
    }

    fn reason(rig: &Rig, path: &Path) -> Reason {
        rig.source.open(path).expect_err("refused").reason
    }

    #[test]
    fn a_file_below_a_root_is_read_also_through_a_link_that_stays() {
        let rig = rig();
        let path = rig.root.path().join("a.wasm");
        assert!(rig.source.open(&path).is_ok());
        symlink(&path, rig.root.path().join("link.wasm")).expect("links");
        assert!(rig.source.open(&rig.root.path().join("link.wasm")).is_ok());
    }

    #[test]
    fn l23_links_and_paths_that_leave_are_refused() {
        let rig = rig();
        let canary = rig.outside.path().join("canary");
        symlink(&canary, rig.root.path().join("b.wasm")).expect("links");
        symlink(rig.outside.path(), rig.root.path().join("folder")).expect("links");
        for path in [
            rig.root.path().join("b.wasm"),
            rig.root.path().join("folder/canary"),
            canary.clone(),
            rig.outside.path().join("absent"),
            "/etc/passwd".into(),
            "/dev/zero".into(),
        ] {
            assert_eq!(reason(&rig, &path), Reason::SourceNotAllowed, "{}", path.display());
        }
        let told = |path: &Path| rig.source.open(path).expect_err("refused").message;
        // The roots are real paths, and so are those of policies.
        let link = rig.source.roots[0].join("b.wasm");
        let why = "leads out of the folder of the policies by a link: put the module itself there, or name the folder that the link leads \
                   to with --module-root";
        assert_eq!(told(&link), format!("{} {why}", link.display()));
        let why = "is not below the folder of the policies: move it there, or name its folder with --module-root";
        assert_eq!(told(&canary), format!("{} {why}", canary.display()));
    }

    #[test]
    fn what_is_not_there_or_no_file_is_named() {
        let rig = rig();
        assert_eq!(reason(&rig, &rig.root.path().join("absent.wasm")), Reason::NotFound);
        fs::create_dir(rig.root.path().join("folder.wasm")).expect("makes");
        assert_eq!(reason(&rig, &rig.root.path().join("folder.wasm")), Reason::NotFound);
    }

    #[tokio::test]
    async fn an_emptied_file_is_as_good_as_none() {
        let rig = rig();
        let path = rig.root.path().join("a.wasm");
        let fetch = async || rig.source.fetch(&path, &mut Sink::new(None, 100, std::sync::Arc::default())).await;
        assert_eq!(fetch().await.map_err(|error| error.reason), Ok(()));
        fs::write(&path, "").expect("empties");
        assert_eq!(fetch().await.map_err(|error| error.reason), Err(Reason::NotFound));
    }
}
