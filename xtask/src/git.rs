//! What git says about the checkout.

use std::path::Path;
use std::process::Command;

/// What a git command writes in this checkout, without white space around it; `None` if it fails or there is no git.
pub(crate) fn output(root: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
