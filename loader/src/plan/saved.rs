//! What the manifest remembers of a policy beside what evaluators read: it is for the loader's own restart.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use portcullis_contract::{Digest, LastGood, PolicyEntry};
use serde::{Deserialize, Serialize};

use crate::content::{Body, Head};
use crate::problem::Problem;
use crate::source::Reference;

/// What the manifest remembers of the newest generation, for the loader's own restart.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SavedPolicy {
    pub(super) file: String,
    pub(super) hash: Digest,
    pub(super) created: Timestamp,
    pub(super) begun: Timestamp,
    pub(super) head: Head,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) body: Option<Body>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) problem: Option<Problem>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) reference: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) digest: Option<Digest>,
    /// The addresses for the members of a policy group; `members` has their digests.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub(super) references: BTreeMap<String, Reference>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub(super) members: BTreeMap<String, Digest>,
    /// A generation that was published after the last good one, and replaced before an evaluator reported on it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) unproven: Option<LastGood>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty", default)]
    pub(super) trusted: Trusted,
}

/// Addresses of which nobody could say yet whether they lead to the module that a policy is pinned to.
pub(super) type Trusted = BTreeSet<(Reference, Digest)>;

/// Those in the entry of an earlier manifest.
pub(super) fn trusted_in(entry: &PolicyEntry) -> Trusted {
    #[derive(Deserialize)]
    struct Saved {
        #[serde(default)]
        trusted: Trusted,
    }

    let saved = entry.source.as_ref().and_then(|source| serde_json::from_str(source.get()).ok());
    saved.map(|Saved { trusted }| trusted).unwrap_or_default()
}
