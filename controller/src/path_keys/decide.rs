//! Decides the next step of a change of keys. Pure: from the stored keys, what follows them, and the time, to what is to be stored.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use portcullis_contract::{PathKey, PathKeys};

/// How long to wait before asking again whether replicas and webhooks follow a change.
const FOLLOWING: Duration = Duration::from_secs(1);
const KEYS: &str = "keys";
const MADE: &str = "made";

/// The settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathRules {
    /// Whether webhooks get paths without a code.
    pub(crate) is_plain: bool,
    /// How long a key is used.
    pub(crate) age: Duration,
    /// How long pods and API servers that cannot be asked may take to follow.
    pub(crate) pause: Duration,
}

/// The content of the Secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) keys: PathKeys,
    /// When the newest key was made.
    pub(crate) made: Timestamp,
}

/// What a change waits for before its next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// Every expected replica accepts this key.
    Replicas(PathKey),
    /// Every webhook has the path that this key makes.
    Webhooks(PathKey),
}

/// What is known when nothing is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The keys that this controller read last.
    Remembered(PathKeys),
    /// Webhooks have paths without a code, or replicas accept no key.
    Plain,
    /// None of these.
    Nothing,
}

/// What is known besides the Secret.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Observed {
    /// The time, by the API server's clock.
    pub(crate) now: Timestamp,
    /// For how long nothing has changed, by the monotonic clock.
    pub(crate) unchanged: Duration,
    /// Whether what the change waits for has happened.
    pub(crate) is_followed: bool,
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Store this.
    Store(Stored, Step),
    /// Wait this long, unless something changes.
    Wait(Duration),
}

/// Why the keys are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// There were no keys.
    Make,
    /// The Secret could not be read as keys, or was deleted.
    Restore,
    /// Somebody else replaced the keys, and those that webhooks have are put back.
    Return,
    /// Replicas start to accept another key.
    Introduce,
    /// Webhooks move to the paths of the next key.
    Move,
    /// Replicas no longer accept the previous key.
    Drop,
}

impl Stored {
    /// Reads the data of a Secret; `None` if they are not keys.
    pub(crate) fn read(data: &BTreeMap<String, ByteString>) -> Option<Self> {
        let text = |name: &str| str::from_utf8(&data.get(name)?.0).ok();
        // A time that cannot be read counts as long ago, so the key is replaced and gets a time.
        let made = text(MADE).and_then(|text| text.parse().ok()).unwrap_or(Timestamp::UNIX_EPOCH);
        Some(Self { keys: text(KEYS)?.parse().ok()?, made })
    }

    /// The data of the Secret.
    pub(crate) fn data(&self) -> BTreeMap<String, ByteString> {
        let texts = [(KEYS, self.keys.text()), (MADE, self.made.to_string())];
        texts.into_iter().map(|(name, text)| (name.to_owned(), ByteString(text.into_bytes()))).collect()
    }

    /// What the change waits for; `None` if there is no change.
    pub(crate) fn awaited(&self) -> Option<Awaited> {
        let PathKeys { current, next, previous } = self.keys;
        previous.map(|_| Awaited::Webhooks(current)).or(next.map(Awaited::Replicas))
    }
}

/// The keys to store when there are none.
pub(crate) fn first(found: Found, rules: &PathRules, now: Timestamp, make: impl FnOnce() -> PathKey) -> (Stored, Step) {
    let (keys, step) = match found {
        // Deleting the Secret may be a request for another key.
        Found::Remembered(keys) => {
            (PathKeys { next: keys.next.or_else(|| Some(other(keys, rules, make))), ..keys }, Step::Restore)
        }
        Found::Plain if rules.is_plain => (PathKeys::only(PathKey::Plain), Step::Make),
        Found::Plain => (PathKeys { next: Some(make()), ..PathKeys::only(PathKey::Plain) }, Step::Make),
        Found::Nothing if rules.is_plain => (PathKeys::only(PathKey::Plain), Step::Make),
        Found::Nothing => (PathKeys::only(make()), Step::Make),
    };
    (Stored { keys, made: now }, step)
}

fn other(keys: PathKeys, rules: &PathRules, make: impl FnOnce() -> PathKey) -> PathKey {
    if rules.is_plain && keys.current != PathKey::Plain { PathKey::Plain } else { make() }
}

/// Decides the next step.
pub(crate) fn next(stored: &Stored, observed: &Observed, rules: &PathRules, make: impl FnOnce() -> PathKey) -> Next {
    let keys = stored.keys;
    if stored.awaited().is_some() {
        if !observed.is_followed {
            return Next::Wait(FOLLOWING);
        }
        if let Some(left) = rules.pause.checked_sub(observed.unchanged).filter(|left| !left.is_zero()) {
            return Next::Wait(left);
        }
    }
    let store = |keys, made, step| Next::Store(Stored { keys, made }, step);
    match (keys.previous, keys.next) {
        (Some(_), _) => store(PathKeys { previous: None, ..keys }, stored.made, Step::Drop),
        (None, Some(next)) => {
            let keys = PathKeys { current: next, next: None, previous: Some(keys.current) };
            store(keys, stored.made, Step::Move)
        }
        (None, None) => {
            let is_plain = keys.current == PathKey::Plain;
            let age = Duration::try_from(observed.now.duration_since(stored.made)).unwrap_or_default();
            let left = rules.age.saturating_sub(age);
            if is_plain == rules.is_plain && (is_plain || !left.is_zero()) {
                return Next::Wait(if is_plain { rules.age } else { left });
            }
            let next = if rules.is_plain { PathKey::Plain } else { make() };
            store(PathKeys { next: Some(next), ..keys }, observed.now, Step::Introduce)
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Make => "the first keys",
            Self::Restore => "the earlier keys, as they were deleted or could not be read, and another one",
            Self::Return => "the keys that webhooks have, as somebody else had replaced them",
            Self::Introduce => "another key, which webhooks get when all replicas accept it",
            Self::Move => "webhooks get the paths of the next key, which all replicas accept",
            Self::Drop => "the previous key is no longer accepted, as no webhook has its paths",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PathKey = PathKey::Secret([1; 32]);
    const B: PathKey = PathKey::Secret([2; 32]);
    const PAUSE: Duration = Duration::from_secs(300);
    const RULES: PathRules = PathRules { is_plain: false, age: Duration::from_secs(1000), pause: PAUSE };
    const PLAIN: PathRules = PathRules { is_plain: true, ..RULES };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn keys(current: PathKey, next: Option<PathKey>, previous: Option<PathKey>) -> PathKeys {
        PathKeys { current, next, previous }
    }

    fn decide(stored: &Stored, rules: &PathRules, observed: (i64, Duration, bool)) -> Next {
        let (second, unchanged, is_followed) = observed;
        next(stored, &Observed { now: at(second), unchanged, is_followed }, rules, || B)
    }

    /// All keys that are stored one after the other until no step is left, if replicas and webhooks follow at once and no time passes.
    fn run(mut stored: Stored, rules: &PathRules, second: i64) -> Vec<PathKeys> {
        let mut all = Vec::new();
        while let Next::Store(then, _) = decide(&stored, rules, (second, PAUSE, true)) {
            all.push(then.keys);
            stored = then;
            assert!(all.len() < 10, "it ends");
        }
        all
    }

    #[test]
    fn a_key_that_is_old_is_replaced_in_three_steps() {
        let stored = Stored { keys: PathKeys::only(A), made: at(0) };
        assert_eq!(decide(&stored, &RULES, (999, PAUSE, true)), Next::Wait(Duration::from_secs(1)));
        assert_eq!(run(stored, &RULES, 1000), [keys(A, Some(B), None), keys(B, None, Some(A)), PathKeys::only(B)]);
    }

    #[test]
    fn no_step_of_a_change_comes_before_all_follow_and_a_pause() {
        for changing in [keys(A, Some(B), None), keys(B, None, Some(A)), keys(A, Some(B), Some(PathKey::Plain))] {
            let stored = Stored { keys: changing, made: at(0) };
            assert_eq!(decide(&stored, &RULES, (9999, PAUSE, false)), Next::Wait(FOLLOWING));
            let left = Duration::from_secs(1);
            assert_eq!(decide(&stored, &RULES, (9999, PAUSE - left, true)), Next::Wait(left));
            assert!(matches!(decide(&stored, &RULES, (0, PAUSE, true)), Next::Store(..)));
        }
    }

    #[test]
    fn webhooks_are_awaited_before_replicas() {
        let awaited = |keys| Stored { keys, made: at(0) }.awaited();
        assert_eq!(awaited(PathKeys::only(A)), None);
        assert_eq!(awaited(keys(A, Some(B), None)), Some(Awaited::Replicas(B)));
        assert_eq!(awaited(keys(B, None, Some(A))), Some(Awaited::Webhooks(B)));
        assert_eq!(awaited(keys(A, Some(B), Some(PathKey::Plain))), Some(Awaited::Webhooks(A)));
    }

    #[test]
    fn an_installation_without_codes_gets_them_and_gives_them_up_as_it_changes_a_key() {
        let plain = Stored { keys: PathKeys::only(PathKey::Plain), made: at(0) };
        let there = [keys(PathKey::Plain, Some(B), None), keys(B, None, Some(PathKey::Plain)), PathKeys::only(B)];
        assert_eq!(run(plain, &RULES, 0), there);
        let coded = Stored { keys: PathKeys::only(A), made: at(0) };
        let back =
            [keys(A, Some(PathKey::Plain), None), keys(PathKey::Plain, None, Some(A)), PathKeys::only(PathKey::Plain)];
        assert_eq!(run(coded, &PLAIN, 0), back);
        assert_eq!(run(plain, &PLAIN, 9999), [], "nothing ages where there is no key");
    }

    #[test]
    fn the_first_keys_are_such_that_nobody_is_refused() {
        let first = |found, rules| first(found, rules, at(5), || B).0.keys;
        assert_eq!(first(Found::Nothing, &RULES), PathKeys::only(B));
        assert_eq!(first(Found::Plain, &RULES), keys(PathKey::Plain, Some(B), None));
        assert_eq!(first(Found::Plain, &PLAIN), PathKeys::only(PathKey::Plain));
        assert_eq!(first(Found::Nothing, &PLAIN), PathKeys::only(PathKey::Plain));
        assert_eq!(first(Found::Remembered(PathKeys::only(A)), &RULES), keys(A, Some(B), None));
        let moving = keys(A, None, Some(PathKey::Plain));
        assert_eq!(first(Found::Remembered(moving), &RULES), keys(A, Some(B), Some(PathKey::Plain)));
        let introducing = keys(PathKey::Plain, Some(A), None);
        assert_eq!(first(Found::Remembered(introducing), &RULES), introducing);
    }

    #[test]
    fn what_is_stored_is_read_back() {
        let stored = Stored { keys: keys(A, Some(B), None), made: at(5) };
        let mut data = stored.data();
        assert_eq!(Stored::read(&data), Some(stored));
        data.remove(MADE);
        assert_eq!(Stored::read(&data).map(|stored| stored.made), Some(Timestamp::UNIX_EPOCH));
        data.insert(KEYS.to_owned(), ByteString(b"noise".to_vec()));
        assert_eq!(Stored::read(&data), None);
    }
}
