//! Libraries in C that are loaded into a real program before it starts.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::repository;

/// Compiles a library from a file of the folder `tests`, and returns its path, which is in `folder`.
///
/// # Panics
/// When there is no C compiler.
pub(crate) fn library(source: &str, folder: &Path) -> PathBuf {
    let library = folder.join("preloaded.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-o"]).arg(&library);
    let output = compiler.arg(repository().join("tests").join(source)).output().expect("there is a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}
