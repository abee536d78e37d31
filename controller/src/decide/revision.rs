//! Decides what a new revision contains, and which old ones are kept.

use std::collections::BTreeMap;

use portcullis_api::revision::{PINNED_DIGEST_ANNOTATION, ROLLED_BACK_TO_ANNOTATION, SERVED_ANNOTATION, group_labels};
use portcullis_api::{Resolved, RevisionData};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::rules::Rules;
use super::uninstalled;
use crate::action::Action;
use crate::world::{Content, PolicyView, RevisionView};

/// The fields that are always taken from the newest generation.
const NEWEST: [&str; 6] = ["policyServer", "mode", "suspend", "failurePolicy", "rollbackTo", "revisionHistoryLimit"];

/// How large a policy's older revisions may be together, in bytes: a little more than one of the largest specs. Revisions in force and the
/// one that served last are kept in any case.
const HISTORY_BYTES: usize = 1 << 20;

/// A revision that is still to be made.
#[derive(Debug)]
pub(super) struct Planned {
    /// The part that decides which webhook calls the policy; `None` if this release cannot read it.
    pub(super) content: Option<Content>,
    /// Whether its policy needs more of its group's time than before.
    pub(super) needs_time: bool,
    /// The size of its spec as JSON, in bytes.
    pub(super) spec_bytes: usize,
    /// The name of the revision that the policy is rolled back to.
    source: Option<String>,
    problem: Option<String>,
    annotations: BTreeMap<&'static str, String>,
}

/// The revision of a policy's newest generation. If the generation to roll back to no longer exists, the revision says so: then `mode`,
/// `suspend` and `failurePolicy` take effect, and the generation that served before still serves.
pub(super) fn plan(policy: &PolicyView, revisions: Option<&BTreeMap<i64, RevisionView>>) -> Planned {
    let mut annotations = BTreeMap::new();
    let newest = policy.content.as_ref().ok().map(|content| content.in_shard(0));
    let mut spec_bytes = policy.spec_bytes;
    let (content, from, problem) =
        match policy.rollback_to.map(|generation| (generation, source(generation, revisions))) {
            None => (newest, None, None),
            Some((generation, Some(source))) => {
                annotations.insert(ROLLED_BACK_TO_ANNOTATION, generation.to_string());
                if let Some(pin) = source.annotations.get(PINNED_DIGEST_ANNOTATION) {
                    annotations.insert(PINNED_DIGEST_ANNOTATION, pin.clone());
                }
                let content = source.content.as_ref().ok().zip(policy.failure_policy);
                let content = content.map(|(content, failure_policy)| content.with(failure_policy));
                spec_bytes = source.spec_bytes;
                (content, Some(source.name.clone()), None)
            }
            Some((generation, None)) => (newest, None, Some(missing(generation, revisions))),
        };
    Planned { content, needs_time: false, spec_bytes, source: from, problem, annotations }
}

/// The action that creates it.
pub(super) fn create(policy: &PolicyView, planned: &Planned, rules: &Rules) -> Action {
    let mut annotations = planned.annotations.clone();
    // If the revision was deleted by hand, fresh pods must learn at once that the policy was enforced.
    if uninstalled::has_served(policy, policy.generation) {
        annotations.insert(SERVED_ANNOTATION, "true".to_owned());
    }
    let content = planned.content.as_ref();
    let mut labels = policy.reference.labels(&rules.policy_server);
    let group = content.map(|content| group_labels(&content.group, content.part.kind));
    labels.extend(group.into_iter().flatten().map(|(label, value)| (label.to_owned(), value)));
    let data = RevisionData {
        policy: policy.reference.clone(),
        generation: policy.generation,
        // It is read when the revision is created: see `Action::CreateRevision`.
        spec: Value::Null,
        problem: planned.problem.clone(),
        shard: content.map_or(0, |content| content.shard),
        shared: content.is_some_and(|content| content.shared),
    };
    let name = policy.reference.revision_name(policy.generation);
    let object = json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": rules.namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "data": data,
        "revision": policy.generation,
    });
    let (source, policy) = (planned.source.clone(), policy.reference.clone());
    Action::CreateRevision { name, policy, source, object }
}

/// The action that deletes it.
pub(super) fn delete(revision: &RevisionView) -> Action {
    let (name, uid) = (revision.name.clone(), revision.uid.clone());
    Action::DeleteRevision { name, policy: revision.policy.clone(), uid }
}

/// The revision of a generation, or a later revision that holds its content.
fn source(generation: i64, revisions: Option<&BTreeMap<i64, RevisionView>>) -> Option<&RevisionView> {
    let holds = |revision: &&RevisionView| revision.marks.rolled_back_to == Some(generation);
    let named = revisions?.get(&generation).filter(|named| named.has_content);
    named.or_else(|| revisions?.values().rev().find(holds))
}

/// The message that the generation to roll back to no longer exists, with those that do.
fn missing(generation: i64, revisions: Option<&BTreeMap<i64, RevisionView>>) -> String {
    let kept = revisions.into_iter().flat_map(BTreeMap::values).filter(|revision| revision.has_content);
    let kept: Vec<_> = kept.rev().take(20).map(|revision| revision.generation.to_string()).collect();
    let kept = if kept.is_empty() { "none".to_owned() } else { kept.join(", ") };
    format!(
        "spec.rollbackTo: there is no revision of generation {generation}; set it to one of those that are kept ({kept}), or remove it"
    )
}

/// The content of an older generation with the fields that are always taken from the newest. Both are specs as text.
///
/// # Errors
/// When one of them is not an object.
pub(crate) fn rolled_back(content: &RawValue, newest: &RawValue) -> serde_json::Result<Box<RawValue>> {
    let mut fields: BTreeMap<String, &RawValue> = serde_json::from_str(content.get())?;
    let mut newest: BTreeMap<String, &RawValue> = serde_json::from_str(newest.get())?;
    for field in NEWEST {
        match newest.remove(field) {
            Some(value) => fields.insert(field.to_owned(), value),
            None => fields.remove(field),
        };
    }
    to_raw_value(&fields)
}

/// The text of an annotation that pins a digest; for a group, a JSON object with the digest of each member.
pub(super) fn pin(resolved: &Resolved) -> String {
    if resolved.members.is_empty() { resolved.digest.to_string() } else { json!(resolved.members).to_string() }
}

/// The revisions to delete: those beyond the limits of number and size, oldest first. The newest, the newest that served, those in force
/// and the one that is rolled back to always stay.
pub(super) fn prune<'w>(policy: &PolicyView, revisions: &'w BTreeMap<i64, RevisionView>) -> Vec<&'w RevisionView> {
    let served = revisions.values().rev().find(|revision| revision.marks.served).map(|revision| revision.generation);
    let wanted = policy.rollback_to.and_then(|to| source(to, Some(revisions))).map(|source| source.generation);
    let older = revisions.values().rev().filter(|revision| revision.generation < policy.generation);
    let beyond = older.enumerate().scan(0, |bytes: &mut usize, (n, one)| {
        *bytes = bytes.saturating_add(one.bytes());
        Some((n >= policy.history_limit || *bytes > HISTORY_BYTES, one))
    });
    let beyond = beyond.filter_map(|(is_beyond, one)| is_beyond.then_some(one));
    beyond
        .filter(|one| !one.is_in_force() && Some(one.generation) != served && Some(one.generation) != wanted)
        .collect()
}
