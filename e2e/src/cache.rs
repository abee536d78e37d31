//! The folder outside the checkout with programs that take minutes to build, and with the files of clusters.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::Error;

/// The cache folder: `PORTCULLIS_CACHE`, otherwise `portcullis/` below `XDG_CACHE_HOME`, otherwise below `~/.cache`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The cache folder that the environment names.
    ///
    /// # Errors
    /// When the environment names no folder.
    pub fn from_env() -> Result<Self, Error> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        root(set("PORTCULLIS_CACHE"), set("XDG_CACHE_HOME"), set("HOME"))
            .map(|root| Self { root })
            .ok_or(Error::NoCache)
    }

    /// A cache in this folder.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Its path.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of the clusters, each of which has a folder named after its slot.
    pub(crate) fn clusters(&self) -> PathBuf {
        self.root.join("clusters")
    }

    /// Sources and build results of Go, which are kept when the built programs change.
    pub(crate) fn go(&self) -> PathBuf {
        self.root.join("go")
    }
}

/// Only absolute paths: a relative one would be another folder in each working directory.
fn root(own: Option<OsString>, caches: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    own.and_then(absolute)
        .or_else(|| Some(caches.and_then(absolute)?.join("portcullis")))
        .or_else(|| Some(home.and_then(absolute)?.join(".cache/portcullis")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(own: &str, caches: &str, home: &str) -> Option<String> {
        let set = |value: &str| Some(OsString::from(value)).filter(|value| !value.is_empty());
        Some(root(set(own), set(caches), set(home))?.to_str().unwrap().to_owned())
    }

    #[test]
    fn the_most_specific_variable_wins() {
        assert_eq!(found("/a", "/b", "/c").as_deref(), Some("/a"));
        assert_eq!(found("", "/b", "/c").as_deref(), Some("/b/portcullis"));
        assert_eq!(found("", "", "/c").as_deref(), Some("/c/.cache/portcullis"));
        assert_eq!(found("", "", ""), None);
    }

    #[test]
    fn a_relative_path_is_no_cache() {
        assert_eq!(found("a", "b", "/c").as_deref(), Some("/c/.cache/portcullis"));
    }
}
