//! What this replica serves: one entry per policy, in one immutable table that is swapped as a whole.
//!
//! A request looks into the table once, when its head has come, and keeps what it found: its whole answer comes from one table,
//! however many swaps happen meanwhile. A policy that is no longer served is dropped when the last of its requests ends.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use portcullis_contract::{Failure, FailurePolicy, GroupId, Mode, PolicyId, WebhookKind};
use portcullis_matching::MemberMatcher;

use crate::fair::claimant::Claimant;
use crate::guest::loaded::Loaded;
use crate::lanes::Share;
use crate::metrics::PolicyMetrics;
use crate::verdict::decision::NewestSpec;

/// The table in use. It is an `ArcSwap` rather than a lock, since each request reads it and none may wait for a swap.
pub type SharedTable = Arc<ArcSwap<Table>>;

/// Everything that this replica serves at one moment.
#[derive(Default)]
pub struct Table {
    /// The number of the manifest that it was made from; 0 before the first, while no policy is known.
    pub manifest_number: u64,
    /// The policies, without those that are only checked.
    pub policies: HashMap<PolicyId, Arc<ServedPolicy>>,
    /// Policies that are only checked. No request finds them; the loader asks them about objects that exist.
    pub checks: HashMap<PolicyId, Arc<ServedPolicy>>,
    /// The match groups.
    pub groups: HashMap<GroupId, Arc<MatchGroup>>,
}

/// One policy as it is served.
pub struct ServedPolicy {
    /// Its id.
    pub id: PolicyId,
    /// The object's uid.
    pub uid: String,
    /// The newest generation, which may not be the one that serves.
    pub generation: i64,
    /// What a denial does, by the newest generation.
    pub mode: Mode,
    /// What happens without a verdict, by the newest generation.
    pub failure_policy: FailurePolicy,
    /// Whether the newest generation is suspended: loaded and not asked.
    pub suspend: bool,
    /// Whether the generation that serves is a policy group; where none serves, whether the newest candidate is one.
    pub is_group: bool,
    /// Whether any generation was ever enforced. Match groups pass over a policy that never was, until it is loaded.
    pub enforced: bool,
    /// What answers for the policy.
    pub serving: Serving,
    /// Why the newest generation does not serve; none if it does.
    pub failure: Option<Failure>,
    /// The bound on the policy's running and waiting evaluations; it outlives swaps.
    pub share: Arc<Share>,
    /// The policy's own counters, looked up once and not at each request; they outlive swaps.
    pub metrics: Arc<PolicyMetrics>,
}

impl ServedPolicy {
    /// What decides how a verdict of this policy counts.
    pub(crate) fn newest(&self) -> NewestSpec<'_> {
        NewestSpec { id: &self.id, mode: self.mode, failure_policy: self.failure_policy }
    }
}

/// What answers for a policy.
pub enum Serving {
    /// A loaded generation.
    Ready(Arc<Loaded>),
    /// Nothing, for this reason. `failurePolicy` decides what that means for a request.
    Unserved(Failure),
}

/// A match group.
pub struct MatchGroup {
    /// Validating members run side by side, mutating ones one after the other.
    pub kind: WebhookKind,
    /// The members in the order of their ids; empty for a tombstone, which answers "allowed".
    pub members: Vec<Arc<ServedPolicy>>,
    /// Where members share a webhook: the match parts of each member, of which any one suffices. A member without an entry is asked about
    /// every request.
    pub matchers: Arc<HashMap<PolicyId, Vec<MemberMatcher>>>,
}

impl MatchGroup {
    /// The policy that a request to the group counts for; `None` for a group without members. All members belong to one tenant, as the
    /// namespace is part of the match part, so the first one stands for all.
    pub(crate) fn claimant(&self) -> Option<&Arc<Claimant>> {
        self.members.first().map(|policy| policy.share.claimant())
    }
}
