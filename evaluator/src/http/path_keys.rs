//! The keys of webhook paths, read again when their file changes.
//!
//! They are in one file, so that a change is seen as a whole: two files that are read one after the other could belong to two changes, and a
//! key that is accepted before and after them could be missing in between.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use portcullis_contract::{PathKey, PathKeyError, PathKeys};
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
/// How long a key is accepted that webhooks had and that vanished from the file. The controller removes none that webhooks have, so somebody
/// else has replaced them, and it puts the key back; until a pod sees that, which takes the kubelet up to two minutes, webhooks have it.
const GRACE: Duration = Duration::from_secs(300);

/// The keys that are accepted.
pub struct AcceptedKeys {
    folder: PathBuf,
    /// None until keys have been read once, and until then no path is accepted.
    accepted: ArcSwapOption<Accepted>,
}

/// What is accepted at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Accepted {
    /// The keys as last read.
    keys: PathKeys,
    /// The key that vanished last, and until when it is accepted.
    vanished: Option<(PathKey, Instant)>,
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
        Arc::new(Self { folder, accepted: ArcSwapOption::empty() })
    }

    /// The first segment and the match group of a path that one of the keys made; none for other paths.
    pub fn opened<'p>(&self, path: &'p str) -> Option<(&'p str, &'p str)> {
        self.accepted.load().as_ref()?.sets().find_map(|keys| keys.opened(path))
    }

    /// Whether one of the keys made this path of checks.
    pub fn opens_check(&self, path: &str) -> bool {
        self.accepted.load().as_ref().is_some_and(|accepted| accepted.sets().any(|keys| keys.opens_check(path)))
    }

    /// The ids of the keys of the file in a fixed order, which reveal nothing about the keys; [`NONE`] before there are keys.
    pub fn ids(&self) -> Vec<String> {
        let Some(accepted) = self.accepted.load_full() else { return vec![NONE.to_owned()] };
        let mut ids: Vec<_> = accepted.keys.all().map(|key| key.id()).collect();
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
                if keys.turn(Instant::now(), &mut told) {
                    latch.release();
                }
                std::thread::sleep(POLL);
            }
        })?;
        Ok(())
    }

    /// Checks the file once. True if there are keys now; `told` is the failure that was logged last.
    fn turn(&self, now: Instant, told: &mut Option<String>) -> bool {
        let before = self.accepted.load_full();
        match self.read() {
            Ok(keys) => {
                *told = None;
                let accepted = Accepted::after(before.as_deref(), keys, now);
                if before.as_deref() != Some(&accepted) {
                    self.accepted.store(Some(Arc::new(accepted)));
                }
                if before.is_none_or(|before| before.keys != keys) {
                    let vanished = accepted.vanished.map(|(key, _)| key.id());
                    tracing::info!(accepted = ?self.ids(), vanished, "keys of webhook paths taken");
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

impl Accepted {
    /// What is accepted when these keys have been read.
    fn after(before: Option<&Self>, keys: PathKeys, now: Instant) -> Self {
        let is_missing = |key: &PathKey| keys.all().all(|other| other != *key);
        let gone = before.map(|before| before.keys.current).filter(is_missing).map(|key| (key, now + GRACE));
        let earlier = || before?.vanished.filter(|(key, until)| now < *until && is_missing(key));
        Self { keys, vanished: gone.or_else(earlier) }
    }

    /// The keys of the file, and then the one that vanished.
    fn sets(&self) -> impl Iterator<Item = PathKeys> {
        let vanished = self.vanished.map(|(key, _)| PathKeys::only(key));
        [Some(self.keys), vanished].into_iter().flatten()
    }
}

/// Keys for tests of other modules.
#[cfg(test)]
pub(crate) fn with(key: portcullis_contract::PathKey) -> Arc<AcceptedKeys> {
    let keys = AcceptedKeys::new(PathBuf::new());
    keys.accepted.store(Some(Arc::new(Accepted { keys: PathKeys::only(key), vanished: None })));
    keys
}

#[cfg(test)]
mod tests {
    use portcullis_contract::{ADMIT_PATH, GroupId};

    use super::*;

    #[test]
    fn a_key_of_webhooks_that_somebody_else_removes_is_accepted_for_a_while() {
        let [ours, strange, next] = [1, 2, 3].map(|byte| PathKey::Secret([byte; 32]));
        let now = Instant::now();
        let later = now + Duration::from_secs(60);
        let own = Accepted::after(None, PathKeys::only(ours), now);
        assert_eq!(own.vanished, None);
        let replaced = Accepted::after(Some(&own), PathKeys::only(strange), now);
        assert_eq!(replaced.vanished, Some((ours, now + GRACE)));
        assert_eq!(Accepted::after(Some(&replaced), replaced.keys, later), replaced, "not from the start again");
        assert_eq!(Accepted::after(Some(&replaced), replaced.keys, now + GRACE).vanished, None);
        let back = PathKeys { current: ours, next: Some(strange), previous: None };
        assert_eq!(Accepted::after(Some(&replaced), back, later).vanished, None, "the controller has put it back");
        let again = Accepted::after(Some(&replaced), PathKeys::only(next), later);
        assert_eq!(again.vanished, Some((strange, later + GRACE)), "one at most");
        // As the controller changes keys.
        let moved = Accepted { keys: PathKeys { current: next, next: None, previous: Some(ours) }, vanished: None };
        assert_eq!(Accepted::after(Some(&moved), PathKeys::only(next), now).vanished, None);
    }

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
        assert!(!keys.turn(Instant::now(), &mut told), "no file");
        assert!(told.is_some());
        assert_eq!(opened(), [false; 3], "nobody is answered before there are keys");
        assert_eq!(keys.ids(), ["none"]);
        put(&PathKeys::only(first).text());
        assert!(keys.turn(Instant::now(), &mut told));
        assert_eq!((opened(), &told), ([true, false, false], &None));
        put(&PathKeys { current: second, next: None, previous: Some(first) }.text());
        assert!(keys.turn(Instant::now(), &mut told));
        assert_eq!(opened(), [true, true, false]);
        for broken in [String::new(), "current plain\n".repeat(80), "current 12\n".to_owned()] {
            put(&broken);
            assert!(keys.turn(Instant::now(), &mut told));
            assert_eq!(opened(), [true, true, false], "{broken:?}");
            assert!(told.is_some());
        }
        put(&PathKeys::only(second).text());
        assert!(keys.turn(Instant::now(), &mut told));
        assert_eq!((opened(), keys.ids()), ([false, true, false], vec![second.id()]));
        put(&PathKeys::only(first).text());
        assert!(keys.turn(Instant::now(), &mut told));
        assert_eq!(
            (opened(), keys.ids()),
            ([true, true, false], vec![first.id()]),
            "webhooks have the second one still"
        );
    }
}
