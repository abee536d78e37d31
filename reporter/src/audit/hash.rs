//! Hashes for what this program remembers while it runs. Pure.

use std::hash::{DefaultHasher, Hash, Hasher};

/// A hash that is the same for the same value as long as this program runs.
pub(super) fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
