//! What the status of a policy says after the installation was removed. Pure.
//!
//! It claims no enforcement, and the controller of the next installation sees that API servers do not call the policy: it registers the
//! policy only when every replica serves it. Neither are replicas counted any more, as the counts would say that they do, nor is a generation
//! named that served, as the policy would count as an enforced one because of it.

use jiff::Timestamp;
use portcullis_api::kubernetes::Outline;
use portcullis_api::reason::UNINSTALLED;
use portcullis_api::{Condition, ConditionType, ReplicaCounts, Truth};
use serde_json::{Value, json};

use crate::world::PolicyView;

/// The message of each condition.
const MESSAGE: &str = "the installation was removed; nothing evaluates this policy";

/// The conditions that would claim that the policy is called.
const CONDITIONS: [(ConditionType, Truth); 3] = [
    (ConditionType::Ready, Truth::Unknown),
    (ConditionType::Enforced, Truth::False),
    (ConditionType::WebhookConfigured, Truth::False),
];

/// The patch that makes the status of this policy say so; `None` if it does, or if the next installation would not take the policy for one that
/// is called anyway. The API server refuses the patch if the policy has changed since.
pub(super) fn patch(policy: &PolicyView, object: &Outline, now: Timestamp) -> Option<Value> {
    let version = object.metadata.resource_version.as_ref()?;
    let status = &object.data["status"];
    // A patch replaces the list as a whole, so that of a policy that was not read as a whole stays.
    let found = status["conditions"].as_array().filter(|found| !found.is_empty() && !object.is_cut())?;
    let is_true = |r#type: ConditionType| {
        let is_it = |one: &&Value| one["type"] == r#type.as_str();
        found.iter().find(is_it).is_some_and(|one| one["status"] == json!(Truth::True))
    };
    let is_called = [ConditionType::Enforced, ConditionType::WebhookConfigured].into_iter().any(is_true);
    if !is_called && policy.status.last_served.is_none() && policy.status.everywhere == 0 {
        return None;
    }
    let mut conditions = found.clone();
    for (r#type, truth) in CONDITIONS {
        let place = conditions.iter().position(|one| one["type"] == r#type.as_str());
        let before = place.map(|place| &conditions[place]).filter(|before| before["status"] == json!(truth));
        let since = before.and_then(|before| before["lastTransitionTime"].as_str()?.parse().ok());
        let condition = json!(Condition {
            r#type,
            status: truth,
            reason: UNINSTALLED.to_owned(),
            message: MESSAGE.to_owned(),
            observed_generation: policy.generation,
            last_transition_time: since.unwrap_or(now),
        });
        match place {
            Some(place) => conditions[place] = condition,
            None => conditions.push(condition),
        }
    }
    Some(json!({
        "metadata": {"resourceVersion": version},
        "status": {
            "conditions": conditions, "replicaCounts": ReplicaCounts::default(), "summary": "0/0", "replicas": [],
            "replicasOmitted": 0, "lastServed": null,
        },
    }))
}

#[cfg(test)]
mod tests {
    use portcullis_api::Kind;

    use super::*;

    const NOW: &str = "2026-01-02T00:00:00Z";

    fn served() -> Value {
        json!({"generation": 3, "digest": format!("sha256:{}", "a".repeat(64))})
    }

    fn policy(status: &Value) -> Outline {
        let metadata = json!({"name": "a", "uid": "u", "resourceVersion": "7", "generation": 3});
        serde_json::from_value(json!({"metadata": metadata, "spec": {}, "status": status})).expect("an object")
    }

    fn condition(r#type: &str, status: &str, reason: &str) -> Value {
        json!({"type": r#type, "status": status, "reason": reason, "message": "m", "observedGeneration": 3,
               "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    fn patched(status: &Value) -> Option<Value> {
        let object = policy(status);
        let view = PolicyView::read(Kind::ClusterPolicy, &object).expect("a policy");
        patch(&view, &object, NOW.parse().expect("a time"))
    }

    #[test]
    fn the_status_of_an_enforced_policy_claims_nothing_any_more() {
        let accepted = condition("Accepted", "True", "Accepted");
        let status = json!({
            "observedGeneration": 3, "summary": "2/2",
            "replicaCounts": {"expected": 2, "current": 2}, "replicas": [{"pod": "a"}], "lastServed": served(),
            "conditions": [accepted, condition("Ready", "True", "Active"), condition("Enforced", "True", "Active"),
                           condition("WebhookConfigured", "True", "Registered")],
        });
        let patch = patched(&status).expect("a patch");
        assert_eq!(patch["metadata"], json!({"resourceVersion": "7"}));
        let left = &patch["status"]["conditions"];
        assert_eq!(left[0], accepted, "those that are about the spec stay");
        let said = |place: usize| {
            let one = &left[place];
            [&one["type"], &one["status"], &one["reason"], &one["lastTransitionTime"]]
                .map(|text| text.as_str().unwrap())
        };
        assert_eq!(said(1), ["Ready", "Unknown", "Uninstalled", NOW]);
        assert_eq!(said(2), ["Enforced", "False", "Uninstalled", NOW]);
        assert_eq!(said(3), ["WebhookConfigured", "False", "Uninstalled", NOW]);
        assert_eq!(left[3]["message"], "the installation was removed; nothing evaluates this policy");

        // The controller of the next installation sees that no replica serves it, and a second run has nothing to do.
        let mut after = status;
        for (field, value) in patch["status"].as_object().expect("fields") {
            after[field] = value.clone();
        }
        let view = PolicyView::read(Kind::ClusterPolicy, &policy(&after)).expect("a policy");
        assert_eq!((view.status.everywhere, view.status.observed, view.status.last_served), (0, 3, None));
        assert_eq!(patched(&after), None);
    }

    #[test]
    fn what_was_false_keeps_its_time() {
        let fails =
            json!({"conditions": [condition("Enforced", "False", "AllReplicasFailed")], "lastServed": served()});
        let patch = patched(&fails).expect("a patch");
        let conditions = patch["status"]["conditions"].as_array().expect("a list");
        assert_eq!(conditions[0]["lastTransitionTime"], "2026-01-01T00:00:00Z");
        assert_eq!(conditions.len(), 3);
    }

    #[test]
    fn only_what_the_next_installation_would_take_for_enforced_is_written() {
        assert_eq!(patched(&json!({})), None);
        assert_eq!(patched(&Value::Null), None);
        let waits = json!({
            "observedGeneration": 3, "replicaCounts": {"expected": 2, "current": 1},
            "conditions": [condition("Ready", "False", "Progressing"), condition("Enforced", "False", "NotLoaded"),
                           condition("WebhookConfigured", "False", "WaitingForReplicas")],
        });
        assert_eq!(patched(&waits), None);
        let with = |field: &str, value: Value| {
            let mut status = waits.clone();
            status[field] = value;
            patched(&status).is_some()
        };
        assert!(with("lastServed", served()));
        assert!(with("replicaCounts", json!({"expected": 2, "current": 2})), "it would be registered at once");
        assert!(with("conditions", json!([condition("Enforced", "True", "Active")])));
        assert!(with("conditions", json!([condition("WebhookConfigured", "True", "Registered")])));
    }
}
