//! The keys of webhook paths, read again when their file changes.
//!
//! They are in one file, so that a change is seen as a whole: two files that are read one after the other could belong to two changes, and a
//! key that is accepted before and after them could be missing in between.

use std::fs;
use std::io;
use std::iter;
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
/// How long a key is accepted that webhooks may have and that vanished from the file. The controller removes none that webhooks have, so
/// somebody else has replaced them, and it puts the key back; until a pod sees that, which takes the kubelet up to two minutes, webhooks have
/// it.
const GRACE: Duration = Duration::from_secs(300);
/// The most keys that are accepted although they vanished: as many as a file can have.
const MOST_VANISHED: usize = 3;

/// The keys that are accepted.
pub struct AcceptedKeys {
    folder: PathBuf,
    /// None until keys have been read once, and until then no path is accepted.
    accepted: ArcSwapOption<Accepted>,
}

/// What is accepted at a time.
#[derive(Debug, PartialEq, Eq)]
struct Accepted {
    /// The keys as last read.
    keys: PathKeys,
    /// The keys that vanished, and until when each is accepted. Those that vanished first come first.
    vanished: Vec<(PathKey, Instant)>,
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
        self.accepted.load().as_ref()?.sets(Instant::now).find_map(|keys| keys.opened(path))
    }

    /// Whether one of the keys made this path of checks.
    pub fn opens_check(&self, path: &str) -> bool {
        let accepted = self.accepted.load();
        accepted.as_ref().is_some_and(|accepted| accepted.sets(Instant::now).any(|keys| keys.opens_check(path)))
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
                let accepted = Arc::new(Accepted::after(before.as_deref(), keys, now));
                if before.as_ref() != Some(&accepted) {
                    self.accepted.store(Some(Arc::clone(&accepted)));
                }
                if before.is_none_or(|before| before.keys != keys) {
                    let vanished: Vec<_> = accepted.vanished.iter().map(|(key, _)| key.id()).collect();
                    tracing::info!(accepted = ?self.ids(), ?vanished, "keys of webhook paths taken");
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
        let Some(before) = before else { return Self { keys, vanished: Vec::new() } };
        let is_missing = |key: &PathKey| keys.all().all(|other| other != *key);
        let in_grace = |(key, until): &&(PathKey, Instant)| now < *until && is_missing(key);
        let mut vanished: Vec<_> = before.vanished.iter().filter(in_grace).copied().collect();
        // Without the current key all of them are somebody else's. Then webhooks may have a path of each: of the previous key while they
        // move, and of the next one if they began to move before this pod could see it. Keys that vanished earlier are kept rather than
        // later ones, which may have been stored for a moment only.
        if is_missing(&before.keys.current) {
            for key in before.keys.all().filter(is_missing) {
                if vanished.len() < MOST_VANISHED && vanished.iter().all(|(other, _)| *other != key) {
                    vanished.push((key, now + GRACE));
                }
            }
        }
        Self { keys, vanished }
    }

    /// The keys of the file, and then those that vanished not long ago. The clock is read only if there are any.
    fn sets(&self, now: impl FnOnce() -> Instant) -> impl Iterator<Item = PathKeys> {
        let now = (!self.vanished.is_empty()).then(now);
        let in_grace = move |(_, until): &&(PathKey, Instant)| now.is_some_and(|now| now < *until);
        iter::once(self.keys).chain(self.vanished.iter().filter(in_grace).map(|(key, _)| PathKeys::only(*key)))
    }
}

/// Keys for tests of other modules.
#[cfg(test)]
pub(crate) fn with(key: portcullis_contract::PathKey) -> Arc<AcceptedKeys> {
    let keys = AcceptedKeys::new(PathBuf::new());
    keys.accepted.store(Some(Arc::new(Accepted::after(None, PathKeys::only(key), Instant::now()))));
    keys
}

#[cfg(test)]
mod tests {
    use portcullis_contract::{ADMIT_PATH, GroupId};

    use super::*;

    const A: PathKey = PathKey::Secret([1; 32]);
    const B: PathKey = PathKey::Secret([2; 32]);
    const C: PathKey = PathKey::Secret([3; 32]);
    const X: PathKey = PathKey::Secret([4; 32]);
    const Y: PathKey = PathKey::Secret([5; 32]);

    fn keys(current: PathKey, next: Option<PathKey>, previous: Option<PathKey>) -> PathKeys {
        PathKeys { current, next, previous }
    }

    /// The keys that have vanished when a pod has seen these contents of the file, one a second.
    fn vanished(seen: &[PathKeys]) -> Vec<PathKey> {
        let mut now = Instant::now();
        let mut accepted = None;
        for keys in seen {
            now += Duration::from_secs(1);
            accepted = Some(Accepted::after(accepted.as_ref(), *keys, now));
        }
        accepted.into_iter().flat_map(|accepted| accepted.vanished).map(|(key, _)| key).collect()
    }

    #[test]
    fn a_key_of_webhooks_that_somebody_else_removes_is_accepted_for_a_while() {
        let now = Instant::now();
        let later = now + Duration::from_secs(60);
        let own = Accepted::after(None, PathKeys::only(A), now);
        let replaced = Accepted::after(Some(&own), PathKeys::only(X), now);
        assert_eq!(replaced.vanished, [(A, now + GRACE)]);
        assert_eq!(Accepted::after(Some(&replaced), replaced.keys, later), replaced, "not from the start again");
        assert_eq!(Accepted::after(Some(&replaced), replaced.keys, now + GRACE).vanished, []);
        let again = Accepted::after(Some(&replaced), PathKeys::only(Y), later);
        assert_eq!(again.vanished, [(A, now + GRACE), (X, later + GRACE)], "each has its own time");
    }

    #[test]
    fn what_the_controller_removes_or_puts_back_has_not_vanished() {
        assert_eq!(vanished(&[PathKeys::only(A)]), []);
        assert_eq!(vanished(&[keys(B, None, Some(A)), PathKeys::only(B)]), [], "no webhook has the previous one");
        assert_eq!(vanished(&[PathKeys::only(A), PathKeys::only(X), keys(A, Some(X), None)]), []);
    }

    #[test]
    fn all_keys_that_webhooks_may_have_stay_when_a_strange_one_comes() {
        assert_eq!(vanished(&[keys(B, None, Some(A)), PathKeys::only(X)]), [B, A]);
        assert_eq!(vanished(&[keys(A, Some(B), None), PathKeys::only(X)]), [A, B]);
        assert_eq!(vanished(&[keys(B, Some(A), Some(A)), PathKeys::only(X)]), [B, A], "each once");
        assert_eq!(vanished(&[keys(B, None, Some(A)), PathKeys::only(A)]), [B], "an older state");
    }

    #[test]
    fn three_keys_that_vanished_are_kept_and_those_of_webhooks_before_strange_ones() {
        assert_eq!(vanished(&[A, X, Y].map(PathKeys::only)), [A, X]);
        assert_eq!(vanished(&[A, X, Y, B, C].map(PathKeys::only)), [A, X, Y]);
        assert_eq!(vanished(&[keys(B, Some(C), Some(A)), PathKeys::only(X), PathKeys::only(Y)]), [B, C, A]);
    }

    #[test]
    fn a_key_that_vanished_is_refused_in_time_even_if_the_file_is_not_read_again() {
        let now = Instant::now();
        let own = Accepted::after(None, PathKeys::only(A), now);
        let sets = |accepted: &Accepted, now: Instant| accepted.sets(|| now).collect::<Vec<_>>();
        let replaced = Accepted::after(Some(&own), PathKeys::only(X), now);
        assert_eq!(sets(&replaced, now), [PathKeys::only(X), PathKeys::only(A)]);
        assert_eq!(sets(&replaced, now + GRACE), [PathKeys::only(X)]);
        assert_eq!(own.sets(|| unreachable!("the clock is not read")).collect::<Vec<_>>(), [own.keys]);
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
