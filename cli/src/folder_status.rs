//! Status and events that the reporter of a folder has written.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jiff::Timestamp;
use portcullis_api::{ObservedPolicy, PolicyEvent};
use portcullis_contract::PolicyId;
use portcullis_process::files;

use crate::item::Item;
use crate::layout::Layout;
use crate::name::Wanted;

/// Largest file that is read, in bytes.
const LARGEST: u64 = 1 << 20;

/// The status of all policies of a folder.
#[derive(Debug)]
pub struct FolderStatus {
    policies: Vec<(PolicyId, ObservedPolicy)>,
    events: Vec<PolicyEvent>,
    stopped: Option<Timestamp>,
    dir: PathBuf,
}

/// Why there is no status to show.
#[derive(Debug, thiserror::Error)]
pub enum FolderStatusError {
    /// Another user has served the folder, and the status is theirs alone.
    #[error("failed to read {}: {source}; only the user whose `portcullis run` serves the folder may", path.display())]
    Unreadable {
        /// The folder of the status.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// `portcullis run` has not served the folder.
    #[error(
        "{} has no status: `portcullis run` has not served this folder yet; start it with `portcullis run {}`, {hint}",
        dir.display(), dir.display()
    )]
    NoStatus {
        /// The folder.
        dir: PathBuf,
        /// Where status might be instead, in words.
        hint: String,
    },
    /// `portcullis run` has not served the folder, and there is no cluster.
    #[error(
        "there is no kubeconfig, and {} has no status: `portcullis run` has not served this folder yet; name a cluster with \
         `--kubeconfig`, serve the folder with `portcullis run {}`, {hint}",
        dir.display(), dir.display()
    )]
    Nowhere {
        /// The folder.
        dir: PathBuf,
        /// Where status might be instead, in words.
        hint: String,
    },
}

impl FolderStatusError {
    /// `portcullis run` has not served `dir`, and there is no cluster.
    pub fn nowhere(dir: &Path) -> Self {
        Self::Nowhere { dir: dir.to_owned(), hint: hint(dir) }
    }
}

impl FolderStatus {
    /// Reads the status of the policies of `dir`.
    ///
    /// # Errors
    /// When `portcullis run` has not served it, or the status may not be read.
    pub fn open(dir: &Path) -> Result<Self, FolderStatusError> {
        let layout = Layout::of(dir);
        if let Err(source) = fs::read_dir(&layout.status) {
            if source.kind() == io::ErrorKind::PermissionDenied {
                return Err(FolderStatusError::Unreadable { path: layout.status, source });
            }
            return Err(FolderStatusError::NoStatus { dir: dir.to_owned(), hint: hint(dir) });
        }
        let mut policies = Vec::new();
        let mut newest = SystemTime::UNIX_EPOCH;
        read(&layout.status, &layout.status, 0, &mut policies, &mut newest);
        policies.sort_by(|a, b| a.0.cmp(&b.0));
        let events = files::read_regular(&layout.status.join("events.jsonl"), LARGEST).unwrap_or_default();
        let events = events.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
        let lock = modified(&layout.lock).unwrap_or(SystemTime::UNIX_EPOCH);
        let stopped = (!is_running(&layout)).then(|| Timestamp::try_from(newest.max(lock)).unwrap_or_default());
        Ok(Self { policies, events, stopped, dir: dir.to_owned() })
    }

    /// Notes about the policies: that there are none, or that the status is old.
    pub fn notes(&self) -> Vec<String> {
        let dir = self.dir.display();
        let empty = self.policies.is_empty().then(|| format!("No policies in {dir}."));
        let stopped = self.stopped.map(|stopped| {
            let time = stopped.strftime("%Y-%m-%dT%H:%M:%SZ");
            format!("This is as of {time}: `portcullis run` is not running. Start it with `portcullis run {dir}`.")
        });
        empty.into_iter().chain(stopped).collect()
    }

    /// The policies, by id.
    ///
    /// # Errors
    /// None that an object read from a file can cause.
    pub fn items(&self) -> serde_json::Result<Vec<Item>> {
        self.policies.iter().map(|(id, policy)| Item::of_folder(id.clone(), policy)).collect()
    }

    /// The events of a policy, oldest first.
    pub fn events<'a>(&'a self, id: &'a PolicyId) -> impl Iterator<Item = &'a PolicyEvent> {
        self.events.iter().filter(move |event| event.policy == *id)
    }

    /// The policy that the user means.
    ///
    /// # Errors
    /// When the user means none of the policies, or several.
    pub fn find(&self, wanted: &Wanted) -> anyhow::Result<Item> {
        let ids: Vec<&PolicyId> = self.policies.iter().map(|(id, _)| id).collect();
        let (id, policy) = &self.policies[wanted.find(&ids, &self.dir.display().to_string())?];
        Ok(Item::of_folder(id.clone(), policy)?)
    }
}

/// Whether a pod holds the folder's lock.
fn is_running(layout: &Layout) -> bool {
    File::open(&layout.lock).is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(fs::TryLockError::WouldBlock)))
}

fn modified(path: &Path) -> io::Result<SystemTime> {
    fs::metadata(path)?.modified()
}

/// Where there may be a status instead: in a folder below `dir`, or elsewhere.
fn hint(dir: &Path) -> String {
    let below = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut with_status: Vec<PathBuf> = below.filter(|path| Layout::of(path).status.is_dir()).collect();
    with_status.sort();
    match with_status.first() {
        Some(found) => {
            let found = found.strip_prefix(".").unwrap_or(found);
            format!("or name the folder that it has served with `--dir {}`", found.display())
        }
        None => "or name another folder with `--dir`".to_owned(),
    }
}

/// Reads all objects below `folder`, up to three levels deep, as ids have at most three segments.
fn read(root: &Path, folder: &Path, depth: u32, into: &mut Vec<(PolicyId, ObservedPolicy)>, newest: &mut SystemTime) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if depth < 2 {
                read(root, &path, depth + 1, into, newest);
            }
            continue;
        }
        let Ok(bytes) = files::read_regular(&path, LARGEST) else { continue };
        let Ok(object) = portcullis_yaml::read::<ObservedPolicy>(&bytes) else { continue };
        let Ok(id) = object.id() else { continue };
        if ObservedPolicy::path(root, &id) == path {
            *newest = (*newest).max(modified(&path).unwrap_or(SystemTime::UNIX_EPOCH));
            into.push((id, object));
        }
    }
}
