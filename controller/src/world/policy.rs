//! A policy, with what decisions need of it.

use std::sync::Arc;

use jiff::Timestamp;
use portcullis_api::DecodeError;
use portcullis_api::kubernetes::{FINALIZER, Outline, decode_match};
use portcullis_api::reason::UNINSTALLED;
use portcullis_api::{
    Condition, ConditionType, Kind, PolicyReference, PolicyStatus, ReplicaStatus, Resolved, RevisionError, Truth,
};
use portcullis_contract::{FailurePolicy, GroupId, MatchPart, Reason, ReplicaState, shard_id};
use portcullis_matching::shared_part;
use serde::Deserialize as _;
use serde_json::Value;

/// The default of `timeoutSeconds`, in seconds.
const TIMEOUT_SECONDS: u32 = 10;

/// How many shards are searched for a group that only a label names.
const SHARDS: u32 = 64;

/// A policy.
#[derive(Debug, Clone)]
pub struct PolicyView {
    /// Kind, name and uid.
    pub reference: PolicyReference,
    /// The name of the policy server that serves it.
    pub policy_server: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// Whether it has our finalizer. One that is cut may have it. The other finalizers are read again when ours is removed, so that the memory
    /// of this program does not grow with them.
    pub is_held: bool,
    /// Whether a part of it was not read, as all of it takes too much memory.
    pub is_cut: bool,
    /// What its match part takes in memory, in bytes, if there was no room for it: those of its namespace take too much. `content` is an error then.
    pub left_out: Option<usize>,
    /// The size of its spec as JSON, in bytes. The spec itself is read again when a revision is made of it, so that the memory of this
    /// program does not grow with what users write.
    pub spec_bytes: usize,
    /// How many older revisions are kept.
    pub history_limit: usize,
    /// `failurePolicy` of the newest generation; `None` if this release cannot read it.
    pub failure_policy: Option<FailurePolicy>,
    /// The generation to roll back to, if any.
    pub rollback_to: Option<i64>,
    /// Whether it is suspended, so that it is not called.
    pub is_suspended: bool,
    /// The part of its spec that decides which webhook calls it, or why it cannot be read.
    pub content: Result<Content, Unreadable>,
    /// What decisions need of its status.
    pub status: StatusView,
}

/// The status of a policy, with what decisions need of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StatusView {
    /// The newest generation, if every expected replica knows it and serves it or an older one, and has the objects that it reads;
    /// otherwise 0.
    pub everywhere: i64,
    /// The `observedGeneration` that the reporters wrote; before that -1, or 0 without the default of the definition.
    pub observed: i64,
    /// A generation and the digest of its module, if the status has them.
    pub resolved: Option<Resolved>,
    /// The last generation that served on every replica.
    pub last_served: Option<Resolved>,
    /// The condition `WebhookConfigured`, which the controller writes.
    pub webhook: Option<Condition>,
}

/// The part of a spec that decides which webhook calls the policy.
#[derive(Debug, Clone)]
pub struct Content {
    /// The match group.
    pub group: GroupId,
    /// The match part of the group, which its webhook has. Where the webhook is shared, its rules name groups and versions only.
    pub part: Arc<MatchPart>,
    /// The policy's own match part. It differs from `part` if the webhook is shared.
    pub own: Arc<MatchPart>,
    /// Whether the webhook is shared with policies of other rules, object selectors and match conditions, which the evaluators judge.
    pub shared: bool,
    /// The shard of the match part that the group is.
    pub shard: u32,
    /// How long the API server waits, in seconds.
    pub timeout_seconds: u32,
    /// How long one evaluation may take, in seconds, if the spec says.
    pub timeout_eval_seconds: Option<u32>,
}

/// Why a policy or a revision cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The data of a revision are not those of any release.
    #[error("{0}")]
    Damaged(RevisionError),
    /// The spec has a value that this release does not know.
    #[error("spec.{0}")]
    Unknown(DecodeError),
}

impl PolicyView {
    /// Reads an object; `None` without a name or uid, which every object of an API server has.
    pub fn read(kind: Kind, object: &Outline) -> Option<Self> {
        let metadata = &object.metadata;
        let reference = PolicyReference::of(kind, metadata)?;
        let spec = &object.data["spec"];
        let status = serde_json::from_value(object.data["status"].clone()).unwrap_or_default();
        Some(Self {
            // A part of the match part may be missing.
            content: match object.is_cut() {
                true => Err(Unreadable::Damaged(RevisionError::TooLarge)),
                false => Content::read(&reference, spec, 0, false),
            },
            reference,
            policy_server: spec["policyServer"].as_str().unwrap_or("default").to_owned(),
            generation: metadata.generation.unwrap_or(0),
            version: metadata.resource_version.clone().unwrap_or_default(),
            created: metadata.creation_timestamp.as_ref().map(|time| time.0),
            is_deleting: metadata.deletion_timestamp.is_some(),
            is_held: object.is_cut() || metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER),
            history_limit: spec["revisionHistoryLimit"]
                .as_u64()
                .and_then(|limit| usize::try_from(limit).ok())
                .unwrap_or(10),
            failure_policy: match &spec["failurePolicy"] {
                Value::Null => Some(FailurePolicy::default()),
                value => FailurePolicy::deserialize(value).ok(),
            },
            rollback_to: spec["rollbackTo"].as_i64(),
            is_suspended: spec["suspend"].as_bool().unwrap_or(false),
            is_cut: object.is_cut(),
            left_out: None,
            spec_bytes: object.spec_bytes(),
            status: StatusView::of(status),
        })
    }

    /// Whether the status says that API servers call the policy because of this generation. A leader has written that after a proof.
    pub(crate) fn is_registered_at(&self, generation: i64) -> bool {
        let condition = self.status.webhook.as_ref();
        condition.is_some_and(|one| one.status == Truth::True && one.observed_generation == generation)
    }

    /// Whether the installation was removed on purpose, and API servers have not called the policy since then. It counts as one that was never
    /// registered: replicas of the next installation that are not ready must not reject requests.
    pub(crate) fn is_uninstalled(&self) -> bool {
        let condition = self.status.webhook.as_ref();
        condition.is_some_and(|one| one.status != Truth::True && one.reason == UNINSTALLED)
    }
}

impl StatusView {
    fn of(status: PolicyStatus) -> Self {
        let counts = status.replica_counts;
        let all_serve = counts.expected > 0 && counts.current + counts.previous == counts.expected;
        let all_know = !status.replicas.iter().any(is_behind) && shows_who_is_behind(&status);
        // A policy that lacks objects would reject what is fine.
        let has_context = status.word() != "ContextNotSynced";
        Self {
            everywhere: if all_serve && all_know && has_context { status.observed_generation } else { 0 },
            observed: status.observed_generation,
            resolved: status.resolved,
            last_served: status.last_served,
            webhook: status.conditions.into_iter().find(|one| one.r#type == ConditionType::WebhookConfigured),
        }
    }
}

/// Whether a replica serves an older generation and may not know the newest one yet, nor its match group. One that has failed with it knows
/// it; but no replica is given a generation that is beyond a limit, and reporters say so in its place.
fn is_behind(replica: &ReplicaStatus) -> bool {
    let knows = |reason: &str| reason != Reason::QuotaExceeded.as_str();
    replica.state == ReplicaState::Previous && !replica.reason.as_deref().is_some_and(knows)
}

/// Whether a replica that is behind could not be missing from the list. It has room for some replicas only, and a reporter of an earlier
/// release may have filled it with others. But as long as one is behind, every release says that it is being loaded.
fn shows_who_is_behind(status: &PolicyStatus) -> bool {
    let previous = status.replica_counts.previous as usize;
    let listed = status.replicas.iter().filter(|one| one.state == ReplicaState::Previous).count();
    let reconciling = status.condition(ConditionType::Reconciling).map(|condition| condition.reason.as_str());
    previous == 0
        || status.replicas_omitted == 0 && listed >= previous
        || matches!(reconciling, Some("Idle" | "Retrying"))
}

impl Content {
    /// Reads this part of the spec of a policy or of a revision, which says whether the webhook is shared, and the shard.
    ///
    /// # Errors
    /// What this release cannot read, and where.
    pub fn read(policy: &PolicyReference, spec: &Value, shard: u32, shared: bool) -> Result<Self, Unreadable> {
        let policy = decode_match(policy, spec).map_err(Unreadable::Unknown)?;
        let part = Arc::new(policy.match_part());
        let content = Self {
            group: shard_id(&part, shard),
            own: Arc::clone(&part),
            part,
            shared: false,
            shard,
            timeout_seconds: policy.spec.timeout_seconds.unwrap_or(TIMEOUT_SECONDS),
            timeout_eval_seconds: policy.spec.timeout_eval_seconds,
        };
        Ok(if shared { content.sharing(true) } else { content })
    }

    /// The same content with a webhook that is shared, or with one for its own match part, in the first shard.
    pub fn sharing(&self, shared: bool) -> Self {
        let part = if shared { Arc::new(self.own.shared().0) } else { Arc::clone(&self.own) };
        Self { group: shard_id(&part, 0), part, shared, shard: 0, ..self.clone() }
    }

    /// Whether the policy can share a webhook with others: evaluators can judge its rules, its object selector and its match conditions as an
    /// API server does. Mutating policies have a webhook for each match part, since API servers look at the object again before each.
    pub fn may_share(&self) -> bool {
        shared_part(&self.own).is_some()
    }

    /// The same content in another shard.
    pub fn in_shard(&self, shard: u32) -> Self {
        Self { group: shard_id(&self.part, shard), shard, ..self.clone() }
    }

    /// The same content with another failure policy, in the first shard.
    pub fn with(&self, failure_policy: FailurePolicy) -> Self {
        let own = Arc::new(MatchPart { failure_policy, ..(*self.own).clone() });
        Self { own, ..self.clone() }.sharing(self.shared)
    }

    /// The same content in the shard whose group this is, if it is a group of this match part.
    pub fn in_shard_of(&self, group: Option<&GroupId>) -> Self {
        let shards = (0..SHARDS).map(|shard| self.in_shard(shard)).chain([self.sharing(true)]);
        let is_it = |content: &Self| Some(&content.group) == group;
        group.and_then(|_| shards.into_iter().find(is_it)).unwrap_or_else(|| self.clone())
    }

    /// How long one evaluation may take, in seconds; `default` is the limit of policies that set none.
    pub fn evaluation_limit(&self, default: u32) -> u32 {
        self.timeout_eval_seconds.unwrap_or(default).min(self.timeout_seconds)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(counts: [u32; 3], replicas: Value) -> i64 {
        let [expected, current, previous] = counts;
        let status = json!({
            "observedGeneration": 7, "replicas": replicas,
            "replicaCounts": {"expected": expected, "current": current, "previous": previous},
        });
        StatusView::of(serde_json::from_value(status).expect("a status")).everywhere
    }

    fn replica(state: &str, reason: Option<&str>) -> Value {
        json!({"pod": "a", "podUID": "u", "state": state, "generation": 6, "reason": reason})
    }

    #[test]
    fn a_policy_is_everywhere_when_each_replica_serves_it_and_knows_the_newest_generation() {
        assert_eq!(status([3, 3, 0], json!([])), 7);
        assert_eq!(status([0, 0, 0], json!([])), 0, "nobody to call");
        assert_eq!(status([3, 2, 0], json!([])), 0);
        assert_eq!(status([2, 1, 1], json!([replica("Previous", Some("NotFound"))])), 7);
        assert_eq!(status([2, 1, 1], json!([replica("Previous", None)])), 0, "may not know the new match group");
    }

    #[test]
    fn fault_w14_a_replica_that_is_behind_is_waited_for_although_the_list_has_no_room_for_it() {
        // The list of a reporter of an earlier release: all failing ones come first.
        let everywhere = |failing: usize, behind: usize, reason: &str, last: Option<Value>| {
            let expected = failing + behind;
            let mut listed = vec![replica("Previous", Some("NotFound")); failing.min(16)];
            listed.extend(last);
            let status = json!({
                "observedGeneration": 7, "replicas": listed, "replicasOmitted": expected.saturating_sub(16),
                "replicaCounts": {"expected": expected, "current": 0, "previous": expected},
                "conditions": [{
                    "type": "Reconciling", "status": "True", "reason": reason, "message": "", "observedGeneration": 7,
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            });
            StatusView::of(serde_json::from_value(status).expect("a status")).everywhere
        };
        for all in [17, 20] {
            assert_eq!(everywhere(all - 1, 1, "Loading", None), 0, "{all}: one is behind and not listed");
            assert_eq!(everywhere(all, 0, "Novelty", None), 0, "{all}: it is not known whether one is behind");
            assert_eq!(everywhere(all, 0, "Retrying", None), 7, "{all}: all know it and have failed with it");
            assert_eq!(everywhere(all, 0, "Idle", None), 7, "{all}: retrying does not help");
            let behind = Some(replica("Previous", None));
            assert_eq!(everywhere(all - 1, 1, "Idle", behind), 0, "{all}: one is listed, whatever else is said");
        }
        assert_eq!(everywhere(1, 0, "Loading", None), 7, "a list of all replicas proves it");
    }

    #[test]
    fn a_replica_that_was_given_nothing_because_of_a_limit_does_not_know_the_newest_generation() {
        assert_eq!(status([2, 1, 1], json!([replica("Previous", Some("QuotaExceeded"))])), 0);
    }

    #[test]
    fn a_policy_that_lacks_objects_is_nowhere() {
        let status = |reason: &str| {
            let status = json!({
                "observedGeneration": 7, "replicaCounts": {"expected": 1, "current": 1},
                "conditions": [{
                    "type": "Ready", "status": "False", "reason": reason, "message": "", "observedGeneration": 7,
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            });
            StatusView::of(serde_json::from_value(status).expect("a status")).everywhere
        };
        assert_eq!((status("ContextNotSynced"), status("WebhookPending")), (0, 7));
    }

    #[test]
    fn an_odd_spec_still_has_a_name_and_a_server() {
        let object = serde_json::from_value(json!({
            "metadata": {"name": "a", "uid": "u", "generation": 3},
            "spec": {"policyServer": "one", "mode": "quarantine", "suspend": true, "failurePolicy": "Perhaps"},
        }));
        let policy = PolicyView::read(Kind::ClusterPolicy, &object.expect("an object")).expect("a policy");
        assert_eq!((policy.policy_server.as_str(), policy.is_suspended), ("one", true));
        let error = policy.content.expect_err("cannot be read");
        assert!(error.to_string().contains("failurePolicy"), "{error}");
    }
}
