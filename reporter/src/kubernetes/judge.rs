//! What a policy's status should be, and whether it has to be written. Pure.

use jiff::Timestamp;
use portcullis_api::{ConditionType, PolicyStatus, Truth};
use portcullis_contract::Reason;
use serde_json::json;

use super::fields;
use super::object::PolicyObject;
use super::store::TrackedPolicy;
use crate::decide::decide;
use crate::facts::{Facts, Replica, Webhook};

/// The status to write; `None` if the present one is right or cannot be corrected, or the policy is being deleted.
pub(crate) fn wanted(policy: &TrackedPolicy, replicas: &[Replica<'_>], now: Timestamp) -> Option<PolicyStatus> {
    let object = &policy.object;
    if object.meta.deleting {
        return None;
    }
    let facts = Facts {
        uid: &object.meta.uid,
        generation: object.meta.generation,
        suspend: object.suspend,
        // The digests come from the reports. The controller pins them from this status.
        digest: None,
        members: None,
        rollback_to: object.rollback_to,
        refusal: refusal(object),
    };
    let words = webhook_words(object);
    let webhook = webhook(object, &words);
    let mut status = decide(&facts, replicas, webhook, policy.last.as_ref(), now);
    if policy.audit.is_some() {
        status.audit.clone_from(&policy.audit);
    }
    let (wanted, found) = (fields::ours(&json!(status)), fields::ours(&object.raw_status));
    let is_given_up = policy.given_up.as_ref().is_some_and(|(last, left)| (last, left) == (&wanted, &found));
    (wanted != found && !is_given_up).then_some(status)
}

/// The controller's message if it refuses this generation, which is beyond a limit.
fn refusal(object: &PolicyObject) -> Option<&str> {
    let condition = object.status.as_ref()?.condition(ConditionType::WebhookConfigured)?;
    let is_refused = condition.status == Truth::False
        && condition.reason == Reason::QuotaExceeded.as_str()
        && condition.observed_generation >= object.meta.generation;
    is_refused.then_some(condition.message.as_str())
}

/// The controller's message about the webhook.
fn webhook_words(object: &PolicyObject) -> String {
    let condition = object.status.as_ref().and_then(|status| status.condition(ConditionType::WebhookConfigured));
    match condition {
        None => "the controller has not looked at it yet".to_owned(),
        Some(condition) if condition.status == Truth::True => {
            format!("the webhook is confirmed for generation {}", condition.observed_generation)
        }
        Some(condition) if condition.message.is_empty() => condition.reason.clone(),
        Some(condition) => format!("{}: {}", condition.reason, condition.message),
    }
}

fn webhook<'a>(object: &PolicyObject, words: &'a str) -> Webhook<'a> {
    let condition = object.status.as_ref().and_then(|status| status.condition(ConditionType::WebhookConfigured));
    match condition.filter(|condition| condition.status == Truth::True) {
        Some(condition) if condition.observed_generation >= object.meta.generation => Webhook::Confirmed,
        Some(_) => Webhook::Older(words),
        // A refused generation changes nothing: API servers go on calling the generation that served.
        None if refusal(object).is_some() && has_served(object) => Webhook::Older(words),
        None => Webhook::Pending(words),
    }
}

fn has_served(object: &PolicyObject) -> bool {
    object.status.as_ref().is_some_and(|status| status.last_served.is_some())
}

#[cfg(test)]
mod tests {
    use portcullis_api::{AuditSummary, Kind, Resolved};
    use serde_json::Value;

    use super::*;

    fn policy(generation: i64, webhook: Option<(&str, i64)>) -> TrackedPolicy {
        let conditions: Vec<Value> = webhook
            .iter()
            .map(|(status, observed)| {
                json!({"type": "WebhookConfigured", "status": status, "reason": "WaitingForReplicas", "message": "",
                    "observedGeneration": observed, "lastTransitionTime": "2026-01-01T00:00:00Z"})
            })
            .collect();
        let object = json!({
            "metadata": {"name": "a", "uid": "9b2c41d2-a1f0-4e17-8000-000000000001", "resourceVersion": "1",
                "generation": generation},
            "spec": {},
            "status": {"conditions": conditions},
        });
        let object = PolicyObject::of(Kind::ClusterPolicy, &object).expect("a policy");
        TrackedPolicy { object, last: None, tried: None, given_up: None, has_failed: false, audit: None, audit_answered: String::new() }
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().expect("a time")
    }

    /// The policy after this status was written.
    fn after(policy: &TrackedPolicy, status: &PolicyStatus) -> TrackedPolicy {
        let mut next = policy.clone();
        let mut raw = json!(status);
        let conditions = raw["conditions"].as_array_mut().expect("a list");
        conditions.extend(policy.object.raw_status["conditions"].as_array().into_iter().flatten().cloned());
        next.object.raw_status = raw;
        next.last = Some(status.clone());
        next
    }

    #[test]
    fn a_status_that_is_right_is_not_written_again() {
        let policy = policy(1, None);
        let status = wanted(&policy, &[], now()).expect("the first");
        assert_eq!(status.word(), "NoReplicas");
        assert_eq!(wanted(&after(&policy, &status), &[], Timestamp::now()), None);
    }

    #[test]
    fn an_edited_status_is_repaired_and_keeps_its_times() {
        let policy = policy(1, None);
        let status = wanted(&policy, &[], now()).expect("the first");
        let mut edited = after(&policy, &status);
        edited.object.raw_status["summary"] = json!("9/9");
        edited.object.raw_status["conditions"][1]["lastTransitionTime"] = json!("1999-01-01T00:00:00Z");
        assert_eq!(wanted(&edited, &[], Timestamp::now()), Some(status));
    }

    #[test]
    fn what_cannot_be_written_as_wanted_is_not_tried_again_until_something_changes() {
        let policy = policy(1, None);
        let status = wanted(&policy, &[], now()).expect("the first");
        let mut dropped = after(&policy, &status);
        dropped.object.raw_status.as_object_mut().expect("an object").remove("summary");
        assert!(wanted(&dropped, &[], now()).is_some());
        dropped.given_up = Some((fields::ours(&json!(status)), fields::ours(&dropped.object.raw_status)));
        assert_eq!(wanted(&dropped, &[], now()), None);
        dropped.object.suspend = true;
        dropped.object.meta.generation = 2;
        assert!(wanted(&dropped, &[], now()).is_some());
    }

    #[test]
    fn what_the_audit_found_is_written_and_stays() {
        let mut policy = policy(1, None);
        let first = wanted(&policy, &[], now()).expect("the first");
        assert_eq!(first.audit, None);
        policy = after(&policy, &first);
        policy.audit = Some(AuditSummary {
            scanned_at: now(),
            generation: 1,
            checked: 7,
            violations: 1,
            errors: 0,
            examples: vec!["Pod team-a/web".to_owned()],
            unreadable: Vec::new(),
            message: String::new(),
        });
        let audited = wanted(&policy, &[], now()).expect("the summary");
        assert_eq!(audited, PolicyStatus { audit: policy.audit.clone(), ..first });
        let mut next_leader = after(&policy, &audited);
        next_leader.audit = None;
        assert_eq!(wanted(&next_leader, &[], now()), None, "it stays until there is another");
    }

    #[test]
    fn a_policy_that_is_being_deleted_is_left_alone() {
        let mut policy = policy(1, None);
        policy.object.meta.deleting = true;
        assert_eq!(wanted(&policy, &[], now()), None);
    }

    #[test]
    fn the_controllers_refusal_counts_for_the_generation_that_it_is_about() {
        let mut policy = policy(2, Some(("False", 2)));
        assert_eq!(refusal(&policy.object), None);
        let condition = &mut policy.object.status.as_mut().expect("a status").conditions[0];
        condition.reason = "QuotaExceeded".into();
        condition.message = "too many".into();
        assert_eq!(refusal(&policy.object), Some("too many"));
        assert_eq!(webhook(&policy.object, "w"), Webhook::Pending("w"));
        let digest = portcullis_contract::Digest::of(b"");
        policy.object.status.as_mut().expect("a status").last_served = Some(Resolved::module(1, digest));
        assert_eq!(webhook(&policy.object, "w"), Webhook::Older("w"), "the older generation is still called");
        policy.object.meta.generation = 3;
        assert_eq!(refusal(&policy.object), None);
    }

    #[test]
    fn the_webhook_counts_when_it_is_confirmed_for_this_generation() {
        let told = |policy: &TrackedPolicy| webhook(&policy.object, "w");
        assert_eq!(told(&policy(2, Some(("True", 2)))), Webhook::Confirmed);
        assert_eq!(told(&policy(2, Some(("True", 1)))), Webhook::Older("w"));
        assert_eq!(told(&policy(2, Some(("False", 2)))), Webhook::Pending("w"));
        assert_eq!(told(&policy(2, None)), Webhook::Pending("w"));
    }
}
