//! Making a revision, and which ones are kept.

use std::collections::BTreeMap;

use portcullis_api::revision::{PINNED_DIGEST_ANNOTATION, ROLLED_BACK_TO_ANNOTATION};
use portcullis_api::{Resolved, RevisionData};
use serde_json::{Value, json};

use super::Rules;
use crate::action::Action;
use crate::world::{PolicyView, RevisionView};

/// Fields that always act from the newest generation, or say how it is kept.
const NEWEST: [&str; 6] = ["policyServer", "mode", "suspend", "failurePolicy", "rollbackTo", "revisionHistoryLimit"];

/// The generation to roll back to is not there any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "spec.rollbackTo: there is no revision of generation {wanted}; set it to one of those that are kept ({kept}), or remove it"
)]
pub(super) struct NoRevision {
    wanted: i64,
    kept: String,
}

/// The revision of a policy's newest generation.
pub(super) fn create(
    policy: &PolicyView,
    revisions: Option<&BTreeMap<i64, RevisionView>>,
    rules: &Rules,
) -> Result<Action, NoRevision> {
    let mut annotations = BTreeMap::new();
    let spec = match policy.rollback_to {
        None => (*policy.spec).clone(),
        Some(generation) => {
            let source = source(generation, revisions)?;
            annotations.insert(ROLLED_BACK_TO_ANNOTATION, generation.to_string());
            if let Some(pin) = source.annotations.get(PINNED_DIGEST_ANNOTATION) {
                annotations.insert(PINNED_DIGEST_ANNOTATION, pin.clone());
            }
            rolled_back(&source.spec, &policy.spec)
        }
    };
    let data = RevisionData { policy: policy.reference.clone(), generation: policy.generation, spec };
    let name = policy.reference.revision_name(policy.generation);
    let object = json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": rules.namespace,
            "labels": policy.reference.labels(&rules.policy_server),
            "annotations": annotations,
        },
        "data": data,
        "revision": policy.generation,
    });
    Ok(Action::CreateRevision { name, object })
}

/// The revision of a generation, or a later one that holds its content.
fn source(generation: i64, revisions: Option<&BTreeMap<i64, RevisionView>>) -> Result<&RevisionView, NoRevision> {
    let holds = |revision: &&RevisionView| revision.marks.rolled_back_to == Some(generation);
    let found = revisions.and_then(|all| all.get(&generation).or_else(|| all.values().rev().find(holds)));
    found.ok_or_else(|| {
        let kept: Vec<_> =
            revisions.into_iter().flat_map(BTreeMap::keys).rev().take(20).map(ToString::to_string).collect();
        NoRevision { wanted: generation, kept: if kept.is_empty() { "none".to_owned() } else { kept.join(", ") } }
    })
}

fn rolled_back(content: &Value, newest: &Value) -> Value {
    let mut spec = content.clone();
    if let Value::Object(fields) = &mut spec {
        for field in NEWEST {
            match newest.get(field) {
                Some(value) => drop(fields.insert(field.to_owned(), value.clone())),
                None => drop(fields.remove(field)),
            }
        }
    }
    spec
}

/// How a digest is pinned: of a group, the digest of each member by its name.
pub(super) fn pin(resolved: &Resolved) -> String {
    if resolved.members.is_empty() { resolved.digest.to_string() } else { json!(resolved.members).to_string() }
}

/// The revisions that go: beyond the limit, oldest first. The newest, the newest served one, those in force and the one that is rolled
/// back to always stay.
pub(super) fn prune<'w>(policy: &PolicyView, revisions: &'w BTreeMap<i64, RevisionView>) -> Vec<&'w RevisionView> {
    let served = revisions.values().rev().find(|revision| revision.marks.served).map(|revision| revision.generation);
    let wanted = policy.rollback_to.and_then(|to| source(to, Some(revisions)).ok()).map(|source| source.generation);
    let older = revisions.values().rev().filter(|revision| revision.generation < policy.generation);
    let beyond = older.skip(policy.history_limit);
    beyond
        .filter(|one| !one.is_in_force() && Some(one.generation) != served && Some(one.generation) != wanted)
        .collect()
}
