//! Texts for users, cut and cleaned, and keys that the API server accepts.

use std::time::Duration;

use portcullis_contract::{Digest, clean};

/// The longest text of a denial, in bytes.
pub(crate) const DENIAL: usize = 1024;
/// The longest name part of a qualified name, which the key of an audit annotation is.
const KEY: usize = 63;

/// Cleans and cuts the text of a denial.
pub(crate) fn denial(text: &str) -> String {
    clean(text, DENIAL)
}

/// A key of an audit annotation. The API server drops the annotation unless its key is the name part of a qualified name: at
/// most 63 letters, digits, `-`, `_` and `.`, the first and last one a letter or digit. A slash becomes a dot, so that policy ids
/// stay different; a key that had to be changed otherwise ends with 8 hex digits of its hash.
pub(crate) fn annotation_key(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let key: String = name.chars().map(|c| if c == '/' { '.' } else { c }).collect();
    let ends = |key: &str| key.ends_with(|c: char| c.is_ascii_alphanumeric());
    let starts = |key: &str| key.starts_with(|c: char| c.is_ascii_alphanumeric());
    if key.len() <= KEY && key.chars().all(plain) && starts(&key) && ends(&key) {
        return key;
    }
    let kept: String = key.chars().map(|c| if plain(c) { c } else { '-' }).collect();
    let kept = kept.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    let hash = &Digest::of(name.as_bytes()).hex()[..8];
    let cut = &kept[..kept.len().min(KEY - 9)];
    if cut.is_empty() { format!("x-{hash}") } else { format!("{cut}-{hash}") }
}

/// A time from now, for a sentence: `at once`, `in 40 s`, `in 5 min`, `in 2 h`.
pub(crate) fn from_now(wait: Duration) -> String {
    match wait.as_secs() {
        0 => "at once".to_owned(),
        seconds @ 1..=119 => format!("in {seconds} s"),
        seconds @ 120..=7199 => format!("in {} min", seconds.div_ceil(60)),
        seconds => format!("in {} h", seconds.div_ceil(3600)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_the_api_server_takes_stay() {
        for (name, key) in [
            ("generation", "generation"),
            ("cluster/no-privileged", "cluster.no-privileged"),
            ("namespaced/team-a/labels.generation", "namespaced.team-a.labels.generation"),
            ("A_b", "A_b"),
        ] {
            assert_eq!(annotation_key(name), key);
        }
    }

    #[test]
    fn other_keys_are_changed_and_stay_apart() {
        let names = ["", "-a", "a-", "a b", "a ü", &"x".repeat(64), &"x".repeat(65), "💥", "/", "__"];
        let keys: std::collections::BTreeSet<String> = names.iter().map(|name| annotation_key(name)).collect();
        assert_eq!(keys.len(), names.len(), "{keys:?}");
        for key in keys {
            assert!(key.len() <= 63 && annotation_key(&key) == key, "{key}");
        }
    }

    #[test]
    fn times_are_read_at_a_glance() {
        for (seconds, text) in
            [(0, "at once"), (1, "in 1 s"), (119, "in 119 s"), (120, "in 2 min"), (121, "in 3 min"), (7200, "in 2 h")]
        {
            assert_eq!(from_now(Duration::from_secs(seconds)), text);
        }
    }
}
