//! Finalizers: removes our own from policies, and reports those of others that keep an object.
//!
//! A patch replaces the whole list, so the other finalizers are read just before. Those of all policies are not kept in memory: users decide how
//! many there are, also in policies that are not accepted.

use portcullis_api::PolicyReference;
use portcullis_api::kubernetes::{FINALIZER, Outline};
use serde_json::{Value, json};

use crate::certificates::own_webhooks::few;

/// The patch that removes our finalizer from a policy that was just read, and whether that was the last one; `None` if it is another policy,
/// does not have our finalizer, or has so many that not all are known. The API server refuses the patch if the policy has changed since.
pub(crate) fn release(policy: &PolicyReference, found: &Outline) -> Option<(Value, bool)> {
    let metadata = &found.metadata;
    let finalizers = metadata.finalizers.as_deref().unwrap_or_default();
    let is_held = finalizers.iter().any(|finalizer| finalizer == FINALIZER);
    if metadata.uid.as_ref() != Some(&policy.uid) || !is_held || found.is_cut() {
        return None;
    }
    let version = metadata.resource_version.as_ref()?;
    let others: Vec<_> = finalizers.iter().filter(|finalizer| *finalizer != FINALIZER).collect();
    let patch = json!({"metadata": {"resourceVersion": version, "uid": policy.uid, "finalizers": others}});
    Some((patch, others.is_empty()))
}

/// Why an object still exists that an API server was to delete, by its answer; `None` if the object is gone.
pub(crate) fn kept(answer: &Outline) -> Option<String> {
    answer.metadata.deletion_timestamp.as_ref()?;
    let finalizers: Vec<_> = answer.metadata.finalizers.iter().flatten().map(String::as_str).collect();
    Some(match finalizers.is_empty() {
        true => "it is being deleted".to_owned(),
        false => format!("it is being deleted, and these finalizers keep it: {}; remove them", few(&finalizers)),
    })
}

#[cfg(test)]
mod tests {
    use portcullis_api::Kind;

    use super::*;

    fn released(uid: &str, finalizers: &[&str]) -> Option<(Value, bool)> {
        let metadata = json!({"name": "a", "uid": "u", "resourceVersion": "7", "finalizers": finalizers});
        let found = serde_json::from_value(json!({"metadata": metadata, "spec": {}})).expect("an object");
        let policy =
            PolicyReference { kind: Kind::ClusterPolicy, namespace: None, name: "a".into(), uid: uid.to_owned() };
        release(&policy, &found)
    }

    fn patch(finalizers: &Value) -> Value {
        json!({"metadata": {"resourceVersion": "7", "uid": "u", "finalizers": finalizers}})
    }

    #[test]
    fn our_finalizer_goes_and_those_of_others_stay() {
        let others = ["example.com/one", FINALIZER, "example.com/two"];
        let left = patch(&json!(["example.com/one", "example.com/two"]));
        assert_eq!(released("u", &others), Some((left, false)));
        assert_eq!(released("u", &[FINALIZER]), Some((patch(&json!([])), true)));
    }

    #[test]
    fn a_policy_that_is_free_or_another_one_is_left_alone() {
        assert_eq!(released("u", &["example.com/one"]), None);
        assert_eq!(released("u", &[]), None);
        assert_eq!(released("earlier", &[FINALIZER]), None);
    }

    #[test]
    fn z10_nothing_removes_finalizers_that_were_not_read() {
        let many: Vec<_> = (0..50_000).map(|number| format!("example.com/{number}")).collect();
        let with = |count: usize| {
            let all: Vec<_> = many[..count].iter().map(String::as_str).chain([FINALIZER]).collect();
            released("u", &all).is_some()
        };
        assert!(with(1) && !with(many.len()));
        // Not even if ours is among those that were read.
        let all: Vec<_> = [FINALIZER].into_iter().chain(many.iter().map(String::as_str)).collect();
        assert_eq!(released("u", &all), None);
    }
}
