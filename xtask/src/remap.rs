//! Folders of this machine, which what is built here should not name.

use std::env;
use std::path::{Path, PathBuf};

/// The compiler's flag that writes `/NAME` where it would write this folder. Of two that fit, the later one counts.
pub(crate) fn flag(folder: &Path, name: &str) -> String {
    format!("--remap-path-prefix={}=/{name}", folder.display())
}

/// Where cargo keeps the sources of dependencies.
pub(crate) fn cargo_home() -> PathBuf {
    match env::var_os("CARGO_HOME") {
        Some(home) => home.into(),
        None => env::home_dir().unwrap_or_default().join(".cargo"),
    }
}
