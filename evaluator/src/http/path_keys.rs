//! The keys of webhook paths, read again when their file changes.
//!
//! They are in one file, so that a change is seen as a whole: two files that are read one after the other could belong to two changes, and a
//! key that is accepted before and after them could be missing in between.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use portcullis_contract::{PathKeyError, PathKeys};
use portcullis_process::Latch;
use portcullis_process::files::{FileError, read_regular};

/// The name of the file.
const FILE: &str = "keys";
/// Reported in place of ids while this program waits for keys. A program of an earlier release, which knows no keys, reports an empty list.
const NONE: &str = "none";
/// How often the file is checked.
const POLL: Duration = Duration::from_secs(1);
/// The largest size of the file, in bytes; three keys take a quarter of that.
const LARGEST: u64 = 1024;

/// The keys that are accepted.
pub struct AcceptedKeys {
    folder: PathBuf,
    /// The keys as last read; none until they have been read once, and until then no path is accepted.
    current: ArcSwapOption<PathKeys>,
}

/// Why the keys could not be read.
#[derive(Debug, thiserror::Error)]
enum KeysError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("failed to take the keys of webhook paths in {}: {source}", path.display())]
    Content { path: PathBuf, source: PathKeyError },
}

impl AcceptedKeys {
    /// The keys in `folder`, which is not read yet.
    pub fn new(folder: PathBuf) -> Arc<Self> {
        Arc::new(Self { folder, current: ArcSwapOption::empty() })
    }

    /// The first segment and the match group of a path that one of the keys made; none for other paths.
    pub fn opened<'p>(&self, path: &'p str) -> Option<(&'p str, &'p str)> {
        self.current.load().as_ref()?.opened(path)
    }

    /// Whether one of the keys made this path of checks.
    pub fn opens_check(&self, path: &str) -> bool {
        self.current.load().as_ref().is_some_and(|keys| keys.opens_check(path))
    }

    /// The ids of the keys in a fixed order, which reveal nothing about the keys; [`NONE`] before there are keys.
    pub fn ids(&self) -> Vec<String> {
        let Some(keys) = self.current.load_full() else { return vec![NONE.to_owned()] };
        let mut ids: Vec<_> = keys.all().map(|key| key.id()).collect();
        ids.sort_unstable();
        ids
    }

    /// Keeps the keys up to date, on a thread of its own since reading files may block. `latch` is released with the first keys; if the file
    /// cannot be read later, the old ones stay in use.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn follow(self: &Arc<Self>, latch: Latch) -> io::Result<()> {
        let keys = Arc::clone(self);
        std::thread::Builder::new().name("path-keys".into()).spawn(move || {
            let mut told = None;
            loop {
                if keys.turn(&mut told) {
                    latch.release();
                }
                std::thread::sleep(POLL);
            }
        })?;
        Ok(())
    }

    /// Checks the file once. True if there are keys now; `told` is the failure that was logged last.
    fn turn(&self, told: &mut Option<String>) -> bool {
        let before = self.current.load_full();
        match self.read() {
            Ok(keys) => {
                *told = None;
                if before.as_deref() != Some(&keys) {
                    self.current.store(Some(Arc::new(keys)));
                    tracing::info!(accepted = ?self.ids(), "keys of webhook paths taken");
                }
                true
            }
            Err(error) => {
                let text = error.to_string();
                if told.as_ref() != Some(&text) {
                    let accepted = if before.is_some() { "the old ones stay in use" } else { "nobody is answered yet" };
                    tracing::error!(error = text, accepted, "failed to take keys of webhook paths");
                    *told = Some(text);
                }
                before.is_some()
            }
        }
    }

    fn read(&self) -> Result<PathKeys, KeysError> {
        let path = self.folder.join(FILE);
        let real = fs::canonicalize(&path).map_err(FileError::new("find", &path))?;
        let bytes = read_regular(&real, LARGEST)?;
        let keys = str::from_utf8(&bytes).map_err(|_| PathKeyError::Key).and_then(PathKeys::from_str);
        keys.map_err(|source| KeysError::Content { path, source })
    }
}

/// Keys for tests of other modules.
#[cfg(test)]
pub(crate) fn with(key: portcullis_contract::PathKey) -> Arc<AcceptedKeys> {
    let keys = AcceptedKeys::new(PathBuf::new());
    keys.current.store(Some(Arc::new(PathKeys::only(key))));
    keys
}

#[cfg(test)]
mod tests {
    use portcullis_contract::{ADMIT_PATH, GroupId, PathKey};

    use super::*;

    #[test]
    fn keys_come_change_and_stay_when_their_file_is_broken() {
        let folder = tempfile::tempdir().expect("a folder");
        let keys = AcceptedKeys::new(folder.path().to_owned());
        let group: GroupId = "0123456789abcdef".parse().expect("a group");
        let [first, second] = [1, 2].map(|byte| PathKey::Secret([byte; 32]));
        let paths = [first, second, PathKey::Plain].map(|key| key.path(ADMIT_PATH, &group));
        let checks = [first, second, PathKey::Plain].map(|key| key.check_path());
        let opened = || {
            let opened = paths.clone().map(|path| keys.opened(&path).is_some());
            assert_eq!(checks.clone().map(|path| keys.opens_check(&path)), opened, "those of checks likewise");
            opened
        };
        let put = |text: &str| fs::write(folder.path().join(FILE), text).expect("writes");
        let mut told = None;
        assert!(!keys.turn(&mut told), "no file");
        assert!(told.is_some());
        assert_eq!(opened(), [false; 3], "nobody is answered before there are keys");
        assert_eq!(keys.ids(), ["none"]);
        put(&PathKeys::only(first).text());
        assert!(keys.turn(&mut told));
        assert_eq!((opened(), &told), ([true, false, false], &None));
        put(&PathKeys { current: second, next: None, previous: Some(first) }.text());
        assert!(keys.turn(&mut told));
        assert_eq!(opened(), [true, true, false]);
        for broken in [String::new(), "current plain\n".repeat(80), "current 12\n".to_owned()] {
            put(&broken);
            assert!(keys.turn(&mut told));
            assert_eq!(opened(), [true, true, false], "{broken:?}");
            assert!(told.is_some());
        }
        put(&PathKeys::only(second).text());
        assert!(keys.turn(&mut told));
        assert_eq!((opened(), keys.ids()), ([false, true, false], vec![second.id()]));
    }
}
