//! What the reporter of a folder has written: status and events.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jiff::Timestamp;
use portcullis_api::{ObservedPolicy, PolicyEvent};
use portcullis_contract::PolicyId;
use portcullis_process::files;

use crate::layout::Layout;

/// Largest file that is read, in bytes.
const LARGEST: u64 = 1 << 20;

/// The status of all policies of a folder.
#[derive(Debug)]
pub struct Store {
    policies: Vec<(PolicyId, ObservedPolicy)>,
    events: Vec<PolicyEvent>,
    stopped: Option<Timestamp>,
    dir: PathBuf,
}

/// Why there is no status to show.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No pod has run on the folder.
    #[error(
        "{} has no status: no pod has run on this folder; start one with `portcullis run {}`{hint}",
        dir.display(), dir.display()
    )]
    NoStatus {
        /// The folder.
        dir: PathBuf,
        /// Where status might be instead, in words.
        hint: String,
    },
    /// No policy has this name.
    #[error("no policy {name:?} in {}; there {known}", dir.display())]
    NotFound {
        /// What was asked for.
        name: String,
        /// The folder.
        dir: PathBuf,
        /// What there is, in words.
        known: String,
    },
    /// Several policies have this name.
    #[error("{name:?} is the name of several policies: {}; name one in full", ids.join(", "))]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// The policies.
        ids: Vec<String>,
    },
}

impl Store {
    /// Reads the status of the pod on `dir`.
    ///
    /// # Errors
    /// When no pod has run there.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let layout = Layout::of(dir);
        if !layout.status.is_dir() {
            return Err(StoreError::NoStatus { dir: dir.to_owned(), hint: hint(dir) });
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

    /// Since when the pod is not running, as far as is known; nothing while it runs.
    pub fn stopped(&self) -> Option<Timestamp> {
        self.stopped
    }

    /// The policies, by id.
    pub fn policies(&self) -> &[(PolicyId, ObservedPolicy)] {
        &self.policies
    }

    /// The events of a policy, oldest first.
    pub fn events<'a>(&'a self, id: &'a PolicyId) -> impl Iterator<Item = &'a PolicyEvent> {
        self.events.iter().filter(move |event| event.policy == *id)
    }

    /// The policy with this id, or with this name if only one has it.
    ///
    /// # Errors
    /// When none or several have it.
    pub fn find(&self, name: &str) -> Result<&(PolicyId, ObservedPolicy), StoreError> {
        if let Some(exact) = self.policies.iter().find(|(id, _)| id.as_str() == name) {
            return Ok(exact);
        }
        let named: Vec<_> = self.policies.iter().filter(|(id, _)| id.name() == name).collect();
        match named.as_slice() {
            [one] => Ok(one),
            [] => {
                let ids: Vec<&str> = self.policies.iter().map(|(id, _)| id.as_str()).collect();
                let known = match ids.as_slice() {
                    [] => "is none at all".to_owned(),
                    [one] => format!("is {one} only"),
                    several => format!("are {}", several.join(", ")),
                };
                let known = portcullis_contract::truncate(&known, 500);
                Err(StoreError::NotFound { name: name.to_owned(), dir: self.dir.clone(), known })
            }
            several => {
                let ids = several.iter().map(|(id, _)| id.to_string()).collect();
                Err(StoreError::Ambiguous { name: name.to_owned(), ids })
            }
        }
    }
}

/// Whether a pod holds the folder's lock.
fn is_running(layout: &Layout) -> bool {
    File::open(&layout.lock).is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(fs::TryLockError::WouldBlock)))
}

fn modified(path: &Path) -> io::Result<SystemTime> {
    fs::metadata(path)?.modified()
}

/// Folders below `dir` that have a status.
fn hint(dir: &Path) -> String {
    let below = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut with_status: Vec<PathBuf> = below.filter(|path| Layout::of(path).status.is_dir()).collect();
    with_status.sort();
    match with_status.first() {
        Some(found) => {
            let found = found.strip_prefix(".").unwrap_or(found);
            format!(", or look at the one there is with `--dir {}`", found.display())
        }
        None => ", or name the folder of a pod with `--dir`".to_owned(),
    }
}

/// Reads all objects below `folder`, three levels deep, as ids have three segments at most.
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
        let Ok(object) = serde_yaml_ng::from_slice::<ObservedPolicy>(&bytes) else { continue };
        let Ok(id) = object.id() else { continue };
        if ObservedPolicy::path(root, &id) == path {
            *newest = (*newest).max(modified(&path).unwrap_or(SystemTime::UNIX_EPOCH));
            into.push((id, object));
        }
    }
}
