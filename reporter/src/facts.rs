//! The input of the decision about a policy: the policy, its webhook, and the reports of replicas. Data only.

use std::collections::BTreeMap;

use jiff::{Timestamp, Unit};
use portcullis_api::ReplicaReportSpec;
use portcullis_contract::Digest;

/// The policy itself.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The uid of the object.
    pub uid: &'a str,
    /// The newest generation.
    pub generation: i64,
    /// `suspend` of the newest generation.
    pub suspend: bool,
    /// The digest of the newest generation's module, if it is pinned.
    pub digest: Option<Digest>,
    /// The digests of a policy group's members, if they are pinned.
    pub members: Option<&'a BTreeMap<String, Digest>>,
    /// `rollbackTo` of the newest generation: the generation whose content it serves.
    pub rollback_to: Option<i64>,
    /// The controller's message if it refuses the policy because its namespace has too many. Then no replica gets the policy.
    pub refusal: Option<&'a str>,
}

/// Whether the API servers call the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Webhook<'a> {
    /// They do, or there are no API servers, as in a folder.
    Confirmed,
    /// They do, by the match rules of an older generation.
    Older(Unconfirmed<'a>),
    /// Not yet.
    Pending(Unconfirmed<'a>),
}

/// Why API servers do not call the newest generation by its own match rules yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unconfirmed<'a> {
    /// Why, for people to read.
    pub words: &'a str,
    /// The reason, if waiting does not help: somebody has to change something.
    pub stuck: Option<&'a str>,
    /// The generation whose match rules are confirmed, if that is known.
    pub confirmed: Option<i64>,
}

impl<'a> From<&'a str> for Unconfirmed<'a> {
    /// What passes by itself.
    fn from(words: &'a str) -> Self {
        Self { words, stuck: None, confirmed: None }
    }
}

/// A replica that API servers call, or may call soon.
#[derive(Debug, Clone, Copy)]
pub struct Replica<'a> {
    /// The pod's name.
    pub pod: &'a str,
    /// The pod's uid.
    pub pod_uid: &'a str,
    /// Whether it counts: ready, and not terminating.
    pub expected: bool,
    /// Its last report.
    pub report: Option<LastReport<'a>>,
}

/// The last report of a pod, and whether it still counts.
#[derive(Debug, Clone, Copy)]
pub struct LastReport<'a> {
    /// The report.
    pub report: &'a ReplicaReportSpec,
    /// Whether its heartbeat stopped too long ago, by the reader's monotonic clock. Then it does not count.
    pub is_stale: bool,
}

impl<'a> Replica<'a> {
    /// Its last report, if that counts: it is of this pod and not stale.
    pub(crate) fn heard(&self) -> Option<&'a ReplicaReportSpec> {
        let last = self.report.filter(|last| !last.is_stale && last.report.pod_uid == self.pod_uid)?;
        Some(last.report)
    }
}

/// A time as Kubernetes writes it: whole seconds.
pub(crate) fn to_second(time: Timestamp) -> Timestamp {
    time.round(jiff::TimestampRound::new().smallest(Unit::Second).mode(jiff::RoundMode::Trunc)).unwrap_or(time)
}
