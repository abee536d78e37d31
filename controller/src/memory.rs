//! What a leading controller remembers between decisions. All of it may be lost: who starts without it waits a little longer and asks
//! once more.

use std::collections::BTreeMap;
use std::time::Instant;

use portcullis_api::Truth;
use portcullis_contract::GroupId;

use crate::world::Entries;

/// The memory.
#[derive(Debug)]
pub struct Memory {
    /// When leading began.
    pub since: Instant,
    /// By match group.
    pub groups: BTreeMap<GroupId, GroupMemory>,
    /// Which shard of its match part a policy's next revision will be in, by the policy's uid and generation.
    pub placed: BTreeMap<(String, i64), u32>,
    /// Since when all revisions of a deleted policy say so, by its uid.
    pub forgotten: BTreeMap<String, Instant>,
    /// Since when there are revisions of a policy that nobody knows, by its uid.
    pub orphans: BTreeMap<String, Instant>,
    /// Policies that wait for their replicas, by uid.
    pub waiting: BTreeMap<String, Waiting>,
}

/// What is remembered of a match group.
#[derive(Debug, Default, Clone)]
pub struct GroupMemory {
    /// Whether there was a webhook when it was looked last.
    pub was_found: bool,
    /// The entries that were last seen to be as they should.
    pub right: Option<Entries>,
    /// Since when there is no webhook, after there was one.
    pub gone: Option<Instant>,
    /// Whether an API server has tried the webhook in a dry run, and what it said against it.
    pub tried: Option<Result<(), Refusal>>,
    /// The webhook whose marker came back from every API server.
    pub proven: Option<(String, Entries)>,
    /// Why a proof failed last, and the webhook that was to be proven.
    pub unproven: Option<Verdict>,
    /// Why the last write failed, where somebody must mend it.
    pub refused: Option<Verdict>,
}

/// An API server's words against a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// In its words.
    pub message: String,
    /// When. A newer API server may think otherwise.
    pub at: Instant,
}

/// What a condition is to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the webhook is configured.
    pub status: Truth,
    /// Why, in one word.
    pub reason: &'static str,
    /// Why, in words.
    pub message: String,
}

impl Verdict {
    /// The webhook is not configured.
    pub fn no(reason: &'static str, message: String) -> Self {
        Self { status: Truth::False, reason, message }
    }
}

/// A policy that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// The generation.
    pub generation: i64,
    /// Since when.
    pub since: Instant,
    /// Since when, or when it was last told.
    pub told: Instant,
}

impl Memory {
    /// None.
    pub fn new(now: Instant) -> Self {
        Self {
            since: now,
            groups: BTreeMap::new(),
            placed: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            orphans: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// We removed the webhook of this name: whoever joins its group from now on registers it anew, and waits for that.
    pub fn unregistered(&mut self, name: &str) {
        for (_, group) in self.groups.iter_mut().filter(|(group, _)| name.ends_with(group.as_str())) {
            group.right = None;
            group.proven = None;
            group.unproven = None;
        }
    }
}
