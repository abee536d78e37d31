//! Evidence of a failed test: objects, events, and the logs of every container and component.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use crate::Cluster;
use crate::node::folder;

/// Keeps evidence if it is dropped while the test panics.
pub struct Evidence<'a> {
    cluster: &'a Cluster,
    folder: PathBuf,
}

impl Drop for Evidence<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            match self.cluster.keep_evidence(&self.folder) {
                Ok(()) => eprintln!("objects, events and logs are kept in {}", self.folder.display()),
                Err(error) => eprintln!("warning: failed to keep evidence in {}: {error}", self.folder.display()),
            }
        }
    }
}

impl Cluster {
    /// Keeps evidence in this folder if the test fails before the guard is dropped.
    #[must_use]
    pub fn evidence(&self, folder: impl Into<PathBuf>) -> Evidence<'_> {
        Evidence { cluster: self, folder: folder.into() }
    }

    /// Writes to a new folder: `objects.yaml` with all objects except Secrets, `events.txt` in order, `pods.txt` with the output of
    /// `kubectl describe`, `components/` with the logs of components, and `pods/` with those of all containers, and of earlier ones that
    /// the kubelet has kept. What the API does not return is left out.
    ///
    /// # Errors
    /// When a file cannot be written.
    ///
    /// # Panics
    /// When kubectl cannot be started.
    pub fn keep_evidence(&self, to: &Path) -> io::Result<()> {
        fs::create_dir_all(to)?;
        let ask = |args: &[&str]| {
            let output = self.kubectl(args.iter().copied());
            output.stdout + &output.stderr
        };
        let kinds = ask(&["api-resources", "--verbs=list", "--output=name"]);
        let kinds: Vec<&str> = kinds.lines().filter(|kind| is_kept(kind)).collect();
        let everywhere = "--all-namespaces";
        fs::write(to.join("objects.yaml"), ask(&["get", &kinds.join(","), everywhere, "--output=yaml"]))?;
        fs::write(
            to.join("events.txt"),
            ask(&["get", "events", everywhere, "--sort-by=.lastTimestamp", "--output=wide"]),
        )?;
        fs::write(to.join("pods.txt"), ask(&["describe", "pods", everywhere]))?;
        copy(&self.layout.file("logs"), &to.join("components"))?;
        copy(&folder(&self.layout).join("pods"), &to.join("pods"))
    }
}

/// Secrets are not kept, not even those of a test; and events have a file of their own.
fn is_kept(kind: &str) -> bool {
    !kind.is_empty() && kind != "secrets" && !kind.starts_with("events") && !kind.contains(' ')
}

/// Copies a folder with its content; a folder that does not exist counts as empty. Files may vanish in the meantime.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
    fs::create_dir_all(to)?;
    for entry in entries.flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            match fs::copy(entry.path(), &target) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_kept() {
        assert!(is_kept("pods") && is_kept("clusterpolicies.policies.portcullis.dev"));
        assert!(!is_kept("secrets") && !is_kept("events.events.k8s.io") && !is_kept(""));
    }

    #[test]
    fn folders_are_copied_whole() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("from/a/b")).unwrap();
        fs::write(root.path().join("from/a/b/0.log"), "words").unwrap();
        copy(&root.path().join("from"), &root.path().join("to")).unwrap();
        assert_eq!(fs::read_to_string(root.path().join("to/a/b/0.log")).unwrap(), "words");
        copy(&root.path().join("none"), &root.path().join("to")).unwrap();
    }
}
