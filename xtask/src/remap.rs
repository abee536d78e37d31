//! Folders of this machine that must not be named in build results.

use std::env;
use std::path::{Path, PathBuf};

/// The compiler flag that replaces this folder by `/NAME` in its output. If two flags match, the later one applies.
pub(crate) fn flag(folder: &Path, name: &str) -> String {
    format!("--remap-path-prefix={}=/{name}", folder.display())
}

/// The folder in which cargo keeps the sources of dependencies.
pub(crate) fn cargo_home() -> PathBuf {
    match env::var_os("CARGO_HOME") {
        Some(home) => home.into(),
        None => env::home_dir().unwrap_or_default().join(".cargo"),
    }
}
