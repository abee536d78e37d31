//! Keys of webhook paths: a caller that does not know the path of a webhook cannot spend an evaluator's time.
//!
//! The path of a webhook is `/admit/<group>/<code>` or `/marker/<group>/<code>`. The code is the HMAC-SHA256 of `admit/<group>` under a
//! key that only the controller and the evaluators have; API servers learn the path with the webhook configuration. A path reveals nothing
//! of the key, nor of another group's path, nor of the other path of the same group.
//!
//! An installation of an earlier release has paths without a code. To accept these is a key too, [`PathKey::Plain`], so that the change
//! from there to a key works in the same way as the change from one key to the next.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::{CHECK_PATH, Digest, GroupId, MARKER_PATH, hex};

/// First segment of the path by which the policies of a group are asked.
pub const ADMIT_PATH: &str = "admit";

/// What the path of checks has in place of the group.
const POLICIES: &str = "policies";

/// The text that stands for [`PathKey::Plain`].
const PLAIN: &str = "plain";

/// A key that makes and accepts the paths of webhooks. Its `Debug` output is its id, so that the key does not get into
/// a log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PathKey {
    /// Paths without a code.
    Plain,
    /// Paths with a code.
    Secret([u8; 32]),
}

/// The keys that an evaluator accepts, as they are in the Secret of the installation: lines `current <key>`, `next <key>`
/// and `previous <key>`, the last two only during a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathKeys {
    /// The key for every webhook that is registered or changed.
    pub current: PathKey,
    /// The next key, which becomes the current one when all replicas accept it.
    pub next: Option<PathKey>,
    /// The previous key, which some API servers may still use.
    pub previous: Option<PathKey>,
}

/// A text that does not hold valid keys. The error does not quote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathKeyError {
    /// One of the keys is not valid.
    #[error("want 64 lower-case hex digits or the word plain for each key")]
    Key,
    /// The text as a whole does not have the right lines.
    #[error(
        "want the lines `current <key>`, `next <key>` and `previous <key>`, the first in any case and each of them once"
    )]
    Lines,
}

impl PathKey {
    /// The path of a group, below [`ADMIT_PATH`] or [`MARKER_PATH`].
    pub fn path(&self, root: &str, group: &GroupId) -> String {
        self.path_of(root, group.as_str())
    }

    /// The path by which API servers ask about policies that are applied: `/check/policies/<code>`.
    pub fn check_path(&self) -> String {
        self.path_of(CHECK_PATH, POLICIES)
    }

    fn path_of(&self, root: &str, name: &str) -> String {
        match self {
            Self::Plain => format!("/{root}/{name}"),
            Self::Secret(key) => {
                let code: [u8; 32] = mac(key, root, name).finalize().into_bytes().into();
                format!("/{root}/{name}/{}", hex::encode(&code))
            }
        }
    }

    /// The first segment and the group of a path that this key has made; `None` for any other path. The time that it takes reveals
    /// nothing about the right code.
    pub fn opened<'p>(&self, path: &'p str) -> Option<(&'p str, &'p str)> {
        let (root, group) = self.made(path)?;
        (root != CHECK_PATH && group.parse::<GroupId>().is_ok()).then_some((root, group))
    }

    /// Whether this key has made a path of checks. The time that it takes reveals nothing about the right code.
    pub fn opens_check(&self, path: &str) -> bool {
        self.made(path) == Some((CHECK_PATH, POLICIES))
    }

    /// The first segment of a path and the text after it without the code; `None` if the code is not this key's.
    /// Callers check that text.
    fn made<'p>(&self, path: &'p str) -> Option<(&'p str, &'p str)> {
        let (root, rest) = path.strip_prefix('/')?.split_once('/')?;
        if ![ADMIT_PATH, MARKER_PATH, CHECK_PATH].contains(&root) {
            return None;
        }
        let name = match self {
            Self::Plain => rest,
            Self::Secret(key) => {
                let (name, code) = rest.split_once('/')?;
                mac(key, root, name).verify_slice(&hex::decode(code)?).ok()?;
                name
            }
        };
        Some((root, name))
    }

    /// The key's id, which may be shown: the first 8 hex digits of its SHA-256.
    pub fn id(&self) -> String {
        match self {
            Self::Plain => PLAIN.to_owned(),
            Self::Secret(key) => Digest::of(key).hex()[..8].to_owned(),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Plain => PLAIN.to_owned(),
            Self::Secret(key) => hex::encode(key),
        }
    }
}

impl PathKeys {
    /// One key and no other.
    pub fn only(current: PathKey) -> Self {
        Self { current, next: None, previous: None }
    }

    /// All keys, the current one first.
    pub fn all(&self) -> impl Iterator<Item = PathKey> {
        [Some(self.current), self.next, self.previous].into_iter().flatten()
    }

    /// The first segment and the group of a path that one of the keys has made; `None` for any other path.
    pub fn opened<'p>(&self, path: &'p str) -> Option<(&'p str, &'p str)> {
        self.all().find_map(|key| key.opened(path))
    }

    /// Whether one of the keys has made a path of checks.
    pub fn opens_check(&self, path: &str) -> bool {
        self.all().any(|key| key.opens_check(path))
    }

    /// The text of the Secret. It holds the keys, so it must not go anywhere else.
    pub fn text(&self) -> String {
        let lines = [("current", Some(self.current)), ("next", self.next), ("previous", self.previous)];
        lines.into_iter().filter_map(|(role, key)| Some(format!("{role} {}\n", key?.text()))).collect()
    }
}

impl fmt::Debug for PathKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PathKey({})", self.id())
    }
}

impl FromStr for PathKey {
    type Err = PathKeyError;

    fn from_str(text: &str) -> Result<Self, PathKeyError> {
        match text {
            PLAIN => Ok(Self::Plain),
            _ => hex::decode(text).map(Self::Secret).ok_or(PathKeyError::Key),
        }
    }
}

impl FromStr for PathKeys {
    type Err = PathKeyError;

    fn from_str(text: &str) -> Result<Self, PathKeyError> {
        let [mut current, mut next, mut previous] = [None; 3];
        for line in text.lines() {
            let (role, key) = line.split_once(' ').ok_or(PathKeyError::Lines)?;
            let place = match role {
                "current" => &mut current,
                "next" => &mut next,
                "previous" => &mut previous,
                _ => return Err(PathKeyError::Lines),
            };
            if place.replace(key.parse()?).is_some() {
                return Err(PathKeyError::Lines);
            }
        }
        Ok(Self { current: current.ok_or(PathKeyError::Lines)?, next, previous })
    }
}

fn mac(key: &[u8; 32], root: &str, group: &str) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("an HMAC takes a key of any length");
    for part in [root, "/", group] {
        mac.update(part.as_bytes());
    }
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: PathKey = PathKey::Secret([7; 32]);
    const OTHER: PathKey = PathKey::Secret([8; 32]);

    fn group() -> GroupId {
        "0123456789abcdef".parse().expect("a group")
    }

    #[test]
    fn a_path_is_what_any_implementation_of_hmac_says() {
        // printf admit/0123456789abcdef | openssl dgst -sha256 -mac hmac -macopt hexkey:0707…07
        let code = "16d66a770bc7f30b299ed82b4488748bbf3aca16e77312f8a6bb105ca4a5605f";
        assert_eq!(KEY.path(ADMIT_PATH, &group()), format!("/admit/0123456789abcdef/{code}"));
    }

    #[test]
    fn a_path_opens_itself_and_nothing_else() {
        let path = KEY.path(ADMIT_PATH, &group());
        assert_eq!(KEY.opened(&path), Some(("admit", "0123456789abcdef")));
        assert_eq!(OTHER.opened(&path), None);
        assert_eq!(PathKey::Plain.opened(&path), None);
        let marker = KEY.path(MARKER_PATH, &group());
        assert_eq!(KEY.opened(&marker), Some(("marker", "0123456789abcdef")));
        let code = path.rsplit('/').next().expect("a code");
        for wrong in [
            format!("/marker/{}/{code}", group()),
            format!("/admit/fedcba9876543210/{code}"),
            format!("/validate/{}/{code}", group()),
            format!("/admit/{}", group()),
            format!("/admit/{}/", group()),
            format!("/admit/{}/{}", group(), code.to_uppercase()),
            format!("/admit/{}/{}", group(), &code[1..]),
            format!("{path}0"),
            format!("{path}/"),
            format!("/admit//{code}"),
            format!("admit/{}/{code}", group()),
        ] {
            assert_eq!(KEY.opened(&wrong), None, "{wrong}");
        }
        let flipped = if path.ends_with('0') { '1' } else { '0' };
        assert_eq!(KEY.opened(&format!("{}{flipped}", &path[..path.len() - 1])), None);
    }

    #[test]
    fn the_path_of_checks_opens_itself_and_nothing_else() {
        let path = KEY.check_path();
        assert!(KEY.opens_check(&path) && !OTHER.opens_check(&path) && !PathKey::Plain.opens_check(&path));
        assert!(PathKeys { current: OTHER, next: None, previous: Some(KEY) }.opens_check(&path));
        assert_eq!(KEY.opened(&path), None);
        assert!(!KEY.opens_check(&KEY.path(ADMIT_PATH, &group())));
        for wrong in [format!("{path}0"), format!("{path}/"), path[1..].to_owned(), path[..path.len() - 1].to_owned()] {
            assert!(!KEY.opens_check(&wrong), "{wrong}");
        }
        let plain = PathKey::Plain.check_path();
        assert_eq!(plain, "/check/policies");
        assert!(PathKey::Plain.opens_check(&plain) && !KEY.opens_check(&plain));
        assert!(!PathKey::Plain.opens_check("/check/policies/x") && !PathKey::Plain.opens_check("/check/policiesx"));
    }

    #[test]
    fn a_plain_path_is_opened_where_it_is_accepted() {
        let path = PathKey::Plain.path(ADMIT_PATH, &group());
        assert_eq!(PathKey::Plain.opened(&path), Some(("admit", "0123456789abcdef")));
        assert_eq!(PathKey::Plain.opened("/admit/cluster/denies"), None);
        let keys = PathKeys { current: KEY, next: None, previous: Some(PathKey::Plain) };
        assert_eq!(keys.opened(&path), Some(("admit", "0123456789abcdef")));
        assert_eq!(PathKeys::only(KEY).opened(&path), None);
    }

    #[test]
    fn keys_are_read_as_they_are_written() {
        let all = PathKeys { current: KEY, next: Some(OTHER), previous: Some(PathKey::Plain) };
        for keys in [all, PathKeys::only(KEY), PathKeys::only(PathKey::Plain)] {
            assert_eq!(keys.text().parse(), Ok(keys));
        }
        for (text, error) in [
            ("", PathKeyError::Lines),
            ("next plain\n", PathKeyError::Lines),
            ("current plain\ncurrent plain\n", PathKeyError::Lines),
            ("current plain\nlast plain\n", PathKeyError::Lines),
            ("current\n", PathKeyError::Lines),
            ("current 07\n", PathKeyError::Key),
            ("current PLAIN\n", PathKeyError::Key),
        ] {
            assert_eq!(text.parse::<PathKeys>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn neither_a_debug_text_nor_an_error_tells_a_key() {
        let keys = PathKeys { current: KEY, next: Some(OTHER), previous: None };
        let shown = format!("{keys:?}");
        assert!(shown.contains(&KEY.id()) && !shown.contains("0707"), "{shown}");
        let error = format!("current {}x", "07".repeat(32)).parse::<PathKeys>().expect_err("too long");
        assert!(!error.to_string().contains("0707"));
        assert_ne!(KEY.id(), OTHER.id());
    }
}
