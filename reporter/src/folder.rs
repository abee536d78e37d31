//! The status folder: `<id>.yaml` for each policy, and `events.jsonl`. Files are replaced by rename, and only if they have changed.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use portcullis_api::{ObservedPolicy, PolicyEvent};
use portcullis_contract::PolicyId;
use portcullis_process::files::{self, FileError};

/// Largest file that is read, in bytes.
const LARGEST: u64 = 1 << 20;
/// The events' file.
const EVENTS: &str = "events.jsonl";

/// The folder, and its content.
#[derive(Debug)]
pub struct StatusFolder {
    root: PathBuf,
    written: HashMap<PolicyId, ObservedPolicy>,
}

impl StatusFolder {
    /// Opens the folder, creates it if it is absent, and reads what an earlier run has left. A file that cannot be read counts
    /// as absent; the next status replaces it.
    ///
    /// # Errors
    /// When the folder can neither be found nor made.
    pub fn open(root: &Path) -> Result<Self, FileError> {
        fs::create_dir_all(root).map_err(FileError::new("make the folder", root))?;
        let mut written = HashMap::new();
        read(root, root, 0, &mut written);
        Ok(Self { root: root.to_owned(), written })
    }

    /// The object of a policy in the folder.
    pub fn get(&self, id: &PolicyId) -> Option<&ObservedPolicy> {
        self.written.get(id)
    }

    /// The policies that have a file.
    pub fn ids(&self) -> Vec<PolicyId> {
        self.written.keys().cloned().collect()
    }

    /// Writes a policy's object if it has changed. True when it was written.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn put(&mut self, id: &PolicyId, object: &ObservedPolicy) -> Result<bool, FileError> {
        if self.written.get(id) == Some(object) {
            return Ok(false);
        }
        let path = ObservedPolicy::path(&self.root, id);
        let invalid = |error: portcullis_yaml::WriteError| io::Error::new(io::ErrorKind::InvalidData, error);
        let text = portcullis_yaml::write(object).map_err(invalid).map_err(FileError::new("encode", &path))?;
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(FileError::new("make the folder", parent))?;
        }
        files::publish(&path, text.as_bytes())?;
        self.written.insert(id.clone(), object.clone());
        Ok(true)
    }

    /// Removes the file of a policy that is gone, and the folder of its namespace if that was the last one there.
    ///
    /// # Errors
    /// When the file is there and cannot be removed.
    pub fn remove(&mut self, id: &PolicyId) -> Result<(), FileError> {
        let path = ObservedPolicy::path(&self.root, id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FileError::new("remove", &path)(error)),
            _ => {
                self.written.remove(id);
                let mut folder = path.parent();
                // `remove_dir` fails on the first folder that is not empty, and the loop should end there.
                while let Some(empty) = folder.filter(|f| *f != self.root).filter(|f| fs::remove_dir(f).is_ok()) {
                    folder = empty.parent();
                }
                Ok(())
            }
        }
    }

    /// The events that an earlier run has kept.
    pub fn read_events(&self) -> Vec<PolicyEvent> {
        let bytes = files::read_regular(&self.root.join(EVENTS), LARGEST).unwrap_or_default();
        bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }

    /// Writes the events, one a line.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn write_events<'e>(&self, events: impl Iterator<Item = &'e PolicyEvent>) -> Result<(), FileError> {
        let path = self.root.join(EVENTS);
        let mut text = Vec::new();
        for event in events {
            serde_json::to_writer(&mut text, event)
                .map_err(io::Error::from)
                .map_err(FileError::new("encode", &path))?;
            text.push(b'\n');
        }
        files::publish(&path, &text)
    }
}

/// Reads all objects below `folder`, three levels deep, as ids have three segments at most.
fn read(root: &Path, folder: &Path, depth: u32, into: &mut HashMap<PolicyId, ObservedPolicy>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if depth < 2 {
                read(root, &path, depth + 1, into);
            }
            continue;
        }
        let Ok(bytes) = files::read_regular(&path, LARGEST) else { continue };
        let object = portcullis_yaml::read::<ObservedPolicy>(&bytes).ok();
        // A file that is not at the path of its own id is not ours.
        let named = object.and_then(|object| Some((object.id().ok()?, object)));
        if let Some((id, object)) = named.filter(|(id, _)| ObservedPolicy::path(root, id) == path) {
            into.insert(id, object);
        }
    }
}

#[cfg(test)]
mod tests {
    use portcullis_api::PolicyStatus;

    use super::*;
    use crate::fixtures::observed;

    fn object(id: &str, generation: i64) -> (PolicyId, ObservedPolicy) {
        let status = PolicyStatus { observed_generation: generation, ..PolicyStatus::default() };
        (id.parse().expect("an id"), observed(id, generation, status))
    }

    #[test]
    fn what_is_written_is_read_after_a_restart_and_an_equal_object_is_not_written() {
        let root = tempfile::tempdir().expect("a folder");
        let mut folder = StatusFolder::open(root.path()).expect("opens");
        for id in ["cluster/a", "namespaced/n/b", "bare"] {
            let (id, object) = object(id, 1);
            assert_eq!(folder.put(&id, &object).ok(), Some(true));
            assert_eq!(folder.put(&id, &object).ok(), Some(false));
            let again = StatusFolder::open(root.path()).expect("opens");
            assert_eq!(again.get(&id), Some(&object));
        }
    }

    #[test]
    fn a_policy_that_is_gone_leaves_nothing() {
        let root = tempfile::tempdir().expect("a folder");
        let mut folder = StatusFolder::open(root.path()).expect("opens");
        let (id, object) = object("namespaced/n/b", 1);
        folder.put(&id, &object).expect("writes");
        folder.remove(&id).expect("removes");
        folder.remove(&id).expect("is gone already");
        assert_eq!(fs::read_dir(root.path()).expect("lists").count(), 0);
    }

    #[test]
    fn noise_and_misplaced_files_are_passed_over() {
        let root = tempfile::tempdir().expect("a folder");
        fs::write(root.path().join("noise.yaml"), "{{{").expect("writes");
        let (_, object) = object("cluster/a", 1);
        let text = portcullis_yaml::write(&object).expect("encodes");
        fs::write(root.path().join("elsewhere.yaml"), text).expect("writes");
        assert!(StatusFolder::open(root.path()).expect("opens").ids().is_empty());
    }
}
