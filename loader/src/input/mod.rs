//! Which policies should be served: a stream of full snapshots.
//!
//! They come from a folder, or from a watch of revisions in Kubernetes.

mod applied;
mod decode;
mod directory;
mod kubernetes;
mod manifest;
mod policies_yml;
mod policy_group;
mod scan;
mod settings;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use portcullis_contract::{Digest, PolicyId};
use tokio::sync::watch;

pub(crate) use self::applied::{Applied, NotTried};
pub(crate) use self::directory::watch_directory;
pub(crate) use self::kubernetes::{Installation, watch_revisions};
pub(crate) use self::scan::Directory;
use crate::content::{DesiredPolicy, Matched};

/// The newest snapshot; `None` before the first.
pub(crate) type Desired = watch::Receiver<Option<Arc<Snapshot>>>;

/// Everything that should be served at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    /// The policies, each id once.
    pub policies: Vec<DesiredPolicy>,
    /// The match parts of the policies of a cluster. Policies of a folder, and match parts that are too large, are left out.
    pub matched: BTreeMap<PolicyId, Arc<Matched>>,
    /// Files that cannot be read. Their last content stays in force, with this problem.
    pub unreadable: BTreeMap<String, Unreadable>,
    /// Problems that belong to no policy, such as a document that was perhaps meant to be one: file and text.
    pub problems: Vec<(String, String)>,
    /// The local module files and the stamp of each; `None` where there is no file.
    pub stamps: BTreeMap<PathBuf, Option<Stamp>>,
}

/// A file that cannot be read as policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unreadable {
    /// Why it cannot be read.
    pub message: String,
    /// The digest of its bytes, or of the message where the bytes could not be read.
    pub hash: Digest,
}

/// Metadata of a file that changes when its content does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    /// Whether the file is so fresh that another write may leave the same times. It is read again at the next scan.
    fresh: bool,
}
