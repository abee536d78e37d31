//! Where a pod without a cluster keeps its files: `DIR/.portcullis`.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use portcullis_contract::Digest;
use portcullis_process::files::FileError;

/// The name of the folder, below the folder of policies.
pub const STATE_FOLDER: &str = ".portcullis";

/// The folders and files of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The folder of policies, as the user wrote it.
    pub dir: PathBuf,
    /// The folder that holds all of the following.
    pub state: PathBuf,
    /// Manifest and artifacts.
    pub volume: PathBuf,
    /// The evaluator's copies of artifacts.
    pub private: PathBuf,
    /// One file for each policy.
    pub status: PathBuf,
    /// The evaluator's certificate and key, and the certificate of their authority.
    pub tls: PathBuf,
    /// The authority's key, which the evaluator need not read.
    pub authority: PathBuf,
    /// One log for each program.
    pub logs: PathBuf,
    /// The socket between evaluator and loader.
    pub broker: PathBuf,
    /// Locked while a pod runs.
    pub lock: PathBuf,
}

/// The longest path of a socket, in bytes (unix(7)).
const LONGEST_SOCKET: usize = 107;

/// The folder for temporary files of every Unix, for where `TMPDIR` is too long.
pub(crate) const TEMPORARY: &str = "/tmp";

/// Whether a path is short enough for a socket.
pub(crate) fn fits_socket(path: &Path) -> bool {
    std::path::absolute(path).is_ok_and(|path| path.as_os_str().len() <= LONGEST_SOCKET)
}

/// The path of a socket: the given one, or one in a folder for temporary files if that is too long for a socket.
fn socket(path: PathBuf, temporary: &Path) -> PathBuf {
    if fits_socket(&path) {
        return path;
    }
    let real = std::path::absolute(&path).unwrap_or(path);
    let name = Digest::of(real.as_os_str().as_encoded_bytes()).to_string();
    let name = format!("portcullis-{}.sock", &name["sha256:".len()..][..32]);
    let short = temporary.join(&name);
    if fits_socket(&short) { short } else { Path::new(TEMPORARY).join(name) }
}

/// Held while a pod runs on a folder.
#[derive(Debug)]
pub struct Lock(File);

impl Layout {
    /// The folders and files for the pod on `dir`.
    pub fn of(dir: &Path) -> Self {
        // Without `./` before each path, as the user would write it.
        let state = dir.strip_prefix(".").unwrap_or(dir).join(STATE_FOLDER);
        let below = |name: &str| state.join(name);
        Self {
            dir: dir.to_owned(),
            volume: below("volume"),
            private: below("private"),
            status: below("status"),
            tls: below("tls"),
            authority: below("authority"),
            logs: below("logs"),
            broker: socket(below("broker.sock"), &std::env::temp_dir()),
            lock: below("lock"),
            state,
        }
    }

    /// Makes the folders, for this user only, and keeps them out of git.
    ///
    /// # Errors
    /// When a folder cannot be made.
    pub fn make(&self) -> Result<(), FileError> {
        for folder in [&self.state, &self.volume, &self.private, &self.status, &self.tls, &self.authority, &self.logs] {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o700).create(folder).map_err(FileError::new("make the folder", folder))?;
        }
        let ignore = self.state.join(".gitignore");
        if !ignore.exists() {
            fs::write(&ignore, "*\n").map_err(FileError::new("write", &ignore))?;
        }
        Ok(())
    }

    /// Locks the folder for a pod.
    ///
    /// # Errors
    /// When another pod runs on it, or the lock cannot be made.
    pub fn lock(&self) -> anyhow::Result<Lock> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(0o600);
        let file = options.open(&self.lock).map_err(FileError::new("open", &self.lock))?;
        match file.try_lock() {
            Ok(()) => {
                let lock = Lock(file);
                lock.note().with_context(|| format!("failed to write {}", self.lock.display()))?;
                Ok(lock)
            }
            Err(TryLockError::WouldBlock) => {
                let holder = fs::read_to_string(&self.lock).unwrap_or_default();
                let holder = holder.trim().parse::<u32>().map(|id| format!(" (process {id})")).unwrap_or_default();
                anyhow::bail!(
                    "another `portcullis run` is running on {}{holder}; stop it with Ctrl-C in its terminal, or run on \
                     another folder",
                    self.dir.display()
                )
            }
            Err(TryLockError::Error(error)) => Err(FileError::new("lock", &self.lock)(error).into()),
        }
    }
}

impl Lock {
    /// Writes the id of the process that holds the lock. The file's time tells when the pod last ran.
    fn note(&self) -> io::Result<()> {
        self.0.set_len(0)?;
        (&self.0).write_all(format!("{}\n", std::process::id()).as_bytes())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // If this fails, only the time of the end is lost.
        let _ = self.0.set_modified(std::time::SystemTime::now());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn folders_are_for_this_user_only_and_made_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let layout = Layout::of(dir.path());
        layout.make().expect("makes");
        layout.make().expect("again");
        for folder in [&layout.state, &layout.private, &layout.authority] {
            let mode = fs::metadata(folder).expect("is there").permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{}", folder.display());
        }
    }

    #[test]
    fn a_socket_is_where_its_path_is_short_enough() {
        let long = |start: &str| PathBuf::from(format!("{start}/{}", "x".repeat(120)));
        assert_eq!(socket("/a/broker.sock".into(), Path::new("/t")), Path::new("/a/broker.sock"));
        let names = ["/t".into(), long("/t")].map(|temporary| socket(long("/a"), &temporary));
        assert!(names[0].starts_with("/t") && fits_socket(&names[0]), "{names:?}");
        assert!(names[1].starts_with(TEMPORARY) && fits_socket(&names[1]), "{names:?}");
    }

    #[test]
    fn a_second_pod_on_a_folder_is_told_so() {
        let dir = tempfile::tempdir().expect("a folder");
        let layout = Layout::of(dir.path());
        layout.make().expect("makes");
        let first = layout.lock().expect("locks");
        let error = layout.lock().expect_err("refused").to_string();
        assert!(error.starts_with("another `portcullis run` is running on "), "{error}");
        assert!(error.contains(&format!("(process {})", std::process::id())), "{error}");
        drop(first);
        layout.lock().expect("is free again");
    }
}
