//! Rig VOL: the shared volume, which a test can change, and a small volume.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use portcullis_contract::{Candidate, CandidateContent, CandidateModule, MANIFEST_FILE, Manifest, PolicyEntry};

use crate::eventually;
use crate::files::{open_to_all, write_whole};

/// A volume, seen from outside.
#[derive(Debug, Clone)]
pub struct Volume(PathBuf);

impl Volume {
    /// The volume in a folder.
    pub fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of the manifest.
    pub fn manifest_path(&self) -> PathBuf {
        self.0.join(MANIFEST_FILE)
    }

    /// The manifest, as soon as there is one.
    ///
    /// # Panics
    /// When there is none in time, or it is incomplete: the loader only publishes complete ones.
    pub fn manifest(&self) -> Manifest {
        let bytes = eventually("a manifest", || fs::read(self.manifest_path()).ok());
        Manifest::decode(&bytes).expect("a published manifest is whole")
    }

    /// Publishes a manifest as it is, by rename.
    ///
    /// # Panics
    /// When the volume cannot be written.
    pub fn publish(&self, manifest: &Manifest) {
        self.publish_bytes(&manifest.encode().expect("a manifest encodes"));
    }

    /// Publishes any bytes as the manifest, by rename.
    pub fn publish_bytes(&self, bytes: &[u8]) {
        write_whole(&self.manifest_path(), bytes);
    }

    /// Publishes the manifest with a change and the next number, which is returned. Use it only while no loader runs.
    pub fn edit(&self, change: impl FnOnce(&mut Manifest)) -> u64 {
        let mut manifest = self.manifest();
        manifest.number += 1;
        change(&mut manifest);
        self.publish(&manifest);
        manifest.number
    }

    /// A policy's entry in the manifest.
    ///
    /// # Panics
    /// When it has none.
    pub fn entry(&self, id: &str) -> PolicyEntry {
        let found = self.manifest().policies.into_iter().find(|policy| policy.id.as_str() == id);
        found.unwrap_or_else(|| panic!("no {id} in the manifest"))
    }

    /// The best candidate of a policy.
    ///
    /// # Panics
    /// When it has none.
    pub fn candidate(&self, id: &str) -> Candidate {
        let found = self.entry(id).candidates.into_iter().next();
        found.unwrap_or_else(|| panic!("no candidate of {id} in the manifest"))
    }

    /// The module of a policy's best candidate.
    ///
    /// # Panics
    /// When it has none, or is a policy group.
    pub fn module(&self, id: &str) -> CandidateModule {
        match self.candidate(id).content {
            CandidateContent::Module(module) => module,
            CandidateContent::Group(_) => panic!("{id} is a policy group"),
        }
    }

    /// The file of a policy's best candidate.
    pub fn artifact(&self, id: &str) -> PathBuf {
        self.artifacts_folder().join(self.module(id).artifact.file)
    }

    /// The folder of the artifacts.
    pub fn artifacts_folder(&self) -> PathBuf {
        self.0.join("artifacts")
    }

    /// The names of the artifacts, sorted, without temporary files and files beside an artifact.
    pub fn artifacts(&self) -> Vec<String> {
        let is_artifact = |name: &String| !name.starts_with('.') && name.ends_with(".cwasm");
        let mut names: Vec<_> = names(&self.artifacts_folder()).into_iter().filter(is_artifact).collect();
        names.sort();
        names
    }

    /// Every temporary file of the volume: those whose name begins with a dot, and those in `tmp/`.
    pub fn temporary_files(&self) -> Vec<PathBuf> {
        let (mut found, mut folders) = (Vec::new(), vec![self.0.clone()]);
        while let Some(folder) = folders.pop() {
            for name in names(&folder) {
                let path = folder.join(&name);
                if path.is_dir() {
                    folders.push(path);
                } else if name.starts_with('.') && name.ends_with(".tmp") || folder.ends_with("tmp") {
                    found.push(path);
                }
            }
        }
        found
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// A file system in memory of a few megabytes. It is unmounted when this is dropped.
pub struct SmallVolume {
    folder: tempfile::TempDir,
}

impl SmallVolume {
    /// A file system of `size` (`8m`). If the test may not mount, the test is [skipped](portcullis_testkit::skip), and this is `None`.
    ///
    /// # Panics
    /// When there is no room for a temporary folder.
    pub fn mounted(size: &str) -> Option<Self> {
        let folder = tempfile::Builder::new().prefix("portcullis-volume-").tempdir().expect("a temporary folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size},mode=0755"), "portcullis-test"]).arg(folder.path());
        if mount.output().is_ok_and(|output| output.status.success()) {
            open_to_all(folder.path());
            return Some(Self { folder });
        }
        portcullis_testkit::skip("it mounts a small volume, which only root can; run it as root or in `unshare -rm`");
        None
    }

    /// The mounted folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Fills it with a file `ballast` until `left` bytes are left.
    ///
    /// # Panics
    /// When it has less room than that already.
    pub fn fill(&self, left: u64) {
        let stat = rustix::fs::statvfs(self.path()).expect("the volume is there");
        let size = (stat.f_bavail * stat.f_frsize).checked_sub(left).expect("there is more room than should be left");
        let size = usize::try_from(size).expect("the volume is small");
        fs::write(self.path().join("ballast"), vec![0x55; size]).expect("the ballast fits");
    }

    /// Removes the ballast.
    ///
    /// # Panics
    /// When there is none.
    pub fn relieve(&self) {
        fs::remove_file(self.path().join("ballast")).expect("there is ballast");
    }

    /// Makes it read-only, or writable again. This mounts the same folder over itself, because the kernel refuses to
    /// remount a file system that has a file open for writing.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn set_read_only(&self, read_only: bool) {
        let path = self.path().to_string_lossy().into_owned();
        let commands: &[&[&str]] = match read_only {
            true => &[&["mount", "--bind", &path, &path], &["mount", "-o", "remount,bind,ro", &path]],
            false => &[&["umount", "-l", &path]],
        };
        for command in commands {
            let output = Command::new(command[0]).args(&command[1..]).output().expect("the command is there");
            assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

impl Drop for SmallVolume {
    fn drop(&mut self) {
        // A lazy unmount, as a program that is ending may have files open.
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}
