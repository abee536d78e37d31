//! What this replica serves: one record a policy, in one immutable table that is swapped as a whole.
//!
//! A request takes the table once and keeps it to its end, so that an answer is wholly of one generation, however many
//! swaps happen meanwhile. The old table goes when the last of its requests ends.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use portcullis_contract::{Failure, FailurePolicy, GroupId, Mode, PolicyId, WebhookKind};

use crate::guest::loaded::Loaded;
use crate::lanes::Share;
use crate::metrics::PolicyMetrics;

/// The table in use. `ArcSwap` and not a lock: each request reads it, and none may wait for a swap.
pub type SharedTable = Arc<ArcSwap<Table>>;

/// Everything that a replica serves at one moment.
#[derive(Default)]
pub struct Table {
    /// The manifest that it was made from; 0 before the first, when nothing is known of any policy.
    pub manifest_number: u64,
    /// The policies.
    pub policies: HashMap<PolicyId, Arc<Record>>,
    /// The match groups.
    pub groups: HashMap<GroupId, Group>,
}

/// One policy.
pub struct Record {
    /// Its id.
    pub id: PolicyId,
    /// The object's uid.
    pub uid: String,
    /// The newest generation, which may not be the one that serves.
    pub generation: i64,
    /// Of the newest generation.
    pub mode: Mode,
    /// Of the newest generation.
    pub failure_policy: FailurePolicy,
    /// Of the newest generation: the policy is loaded and not asked.
    pub suspend: bool,
    /// Whether it was ever enforced everywhere. While nothing of it serves, groups pass over one that was not.
    pub enforced: bool,
    /// What answers.
    pub serving: Serving,
    /// Why the newest generation does not serve, where it does not.
    pub failure: Option<Failure>,
    /// The policy's bound on running and waiting evaluations; it outlives swaps.
    pub share: Arc<Share>,
    /// The policy's own counters, looked up once and not at each request; they outlive swaps.
    pub metrics: Arc<PolicyMetrics>,
}

/// What answers for a policy.
pub enum Serving {
    /// A loaded generation.
    Ready(Arc<Loaded>),
    /// Nothing. Where the policy is asked all the same, the answer is by `failurePolicy`, with this failure.
    Unserved(Failure),
}

/// A match group.
pub struct Group {
    /// Validating members run side by side, mutating ones one after the other.
    pub kind: WebhookKind,
    /// The members in the order of their ids; empty for a tombstone, which answers "allowed".
    pub members: Vec<Arc<Record>>,
}
