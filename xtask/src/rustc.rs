//! What the compiler says of itself.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

/// The rest of the line of `rustc -vV` that begins with these words.
pub(crate) fn version_line(words: &str) -> Result<String> {
    let text = ask(&["-vV"])?;
    let line = text.lines().find_map(|line| line.strip_prefix(words));
    line.map(str::to_owned).with_context(|| format!("rustc -vV says nothing behind `{words}`"))
}

/// The folder with the tools of LLVM, which the component `llvm-tools` installs.
pub(crate) fn llvm_tools() -> Result<PathBuf> {
    let libraries = PathBuf::from(ask(&["--print", "target-libdir"])?.trim());
    let parent = libraries.parent().context("the libraries of the compiler are in a folder")?;
    Ok(parent.join("bin"))
}

fn ask(args: &[&str]) -> Result<String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(args).output().context("failed to start rustc")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
