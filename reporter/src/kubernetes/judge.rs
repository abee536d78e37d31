//! What a policy's status should be, and whether it has to be written. Pure.

use jiff::Timestamp;
use portcullis_api::reason::UNINSTALLED;
use portcullis_api::{Condition, ConditionType, PolicyStatus, Truth};
use serde_json::json;

use super::fields::Fingerprint;
use super::object::PolicyObject;
use super::store::TrackedPolicy;
use crate::decide::decide;
use crate::facts::{Facts, Replica, Unconfirmed, Webhook};

/// The status to write; `None` if the present one is right or cannot be corrected, or the policy is being deleted.
pub(crate) fn wanted(policy: &TrackedPolicy, replicas: &[Replica<'_>], now: Timestamp) -> Option<PolicyStatus> {
    let object = &policy.object;
    if object.meta.deleting {
        return None;
    }
    let registration = Registration::of(object);
    let facts = Facts {
        uid: &object.meta.uid,
        generation: object.meta.generation,
        suspend: object.suspend,
        // The digests come from the reports. The controller pins them from this status.
        digest: None,
        members: None,
        rollback_to: object.rollback_to,
        refusal: registration.refusal(object.meta.generation),
    };
    let words = registration.words();
    let webhook = webhook(policy, &registration, &words);
    let mut status = decide(&facts, replicas, webhook, policy.last.as_ref(), now);
    if policy.audit.is_some() {
        status.audit.clone_from(&policy.audit);
    }
    let (wanted, found) = (Fingerprint::of(&json!(status)), object.found);
    let is_given_up = policy.given_up == Some((wanted, found));
    (wanted != found && !is_given_up).then_some(status)
}

/// What the controller says in the condition `WebhookConfigured`.
#[derive(Debug, Clone, Copy)]
enum Registration<'a> {
    /// Nothing yet.
    Nothing,
    /// API servers call the policy by the match rules of this generation.
    Confirmed(i64),
    /// A generation is beyond a limit, so that no replica gets it.
    Refused(&'a Condition),
    /// The webhook for the match rules of a generation is not registered, or API servers do not call by them yet. This does not depend on older
    /// match rules.
    NotRegistered(&'a Condition),
    /// There is trouble with the webhook or with the API servers, and older match rules may have the same.
    Trouble(&'a Condition),
}

impl<'a> Registration<'a> {
    fn of(object: &'a PolicyObject) -> Self {
        let Some(condition) = &object.webhook else { return Self::Nothing };
        match (condition.status, condition.reason.as_str()) {
            (Truth::True, _) => Self::Confirmed(condition.observed_generation),
            (Truth::False, "QuotaExceeded") => Self::Refused(condition),
            (Truth::False, "WaitingForReplicas" | "SpecInvalid") => Self::NotRegistered(condition),
            (Truth::False | Truth::Unknown, _) => Self::Trouble(condition),
        }
    }

    /// The message if this generation is refused.
    fn refusal(self, generation: i64) -> Option<&'a str> {
        match self {
            Self::Refused(condition) if condition.observed_generation >= generation => Some(&condition.message),
            _ => None,
        }
    }

    /// Why the newest generation is not called, for people to read.
    fn words(self) -> String {
        match self {
            Self::Nothing => "the controller has not looked at it yet".to_owned(),
            Self::Confirmed(generation) => format!("the webhook is confirmed for generation {generation}"),
            Self::Refused(condition) | Self::NotRegistered(condition) | Self::Trouble(condition) => {
                match condition.message.as_str() {
                    "" => condition.reason.clone(),
                    message => format!("{}: {message}", condition.reason),
                }
            }
        }
    }

    /// The reason why this generation is not called, if waiting does not help: the API server refuses its match rules, or the controller
    /// lacks a right. That of a generation that is refused is known without the webhook.
    fn stuck(self, generation: i64) -> Option<&'a str> {
        match self {
            Self::NotRegistered(condition) | Self::Trouble(condition) => {
                let is_stuck = matches!(condition.reason.as_str(), "SpecInvalid" | "Forbidden")
                    && condition.observed_generation >= generation;
                is_stuck.then_some(condition.reason.as_str())
            }
            Self::Nothing | Self::Confirmed(_) | Self::Refused(_) => None,
        }
    }
}

fn webhook<'a>(policy: &TrackedPolicy, registration: &Registration<'a>, words: &'a str) -> Webhook<'a> {
    let generation = policy.object.meta.generation;
    let confirmed = match registration {
        Registration::Confirmed(confirmed) => Some(*confirmed),
        _ => None,
    };
    let why = Unconfirmed { words, stuck: registration.stuck(generation), confirmed };
    match registration {
        Registration::Confirmed(confirmed) if *confirmed >= generation => Webhook::Confirmed,
        Registration::Confirmed(_) => Webhook::Older(why),
        Registration::Refused(_) | Registration::NotRegistered(_) if is_older_called(policy) => Webhook::Older(why),
        Registration::Nothing
        | Registration::Refused(_)
        | Registration::NotRegistered(_)
        | Registration::Trouble(_) => Webhook::Pending(why),
    }
}

/// Whether API servers go on calling the policy by the match rules of an older generation, where those of the newest one were never
/// confirmed. The controller keeps the older webhook until then, so it is enough that they called it before. By the policy's status they
/// did if it was enforced, or if a generation was served everywhere and only replicas have failed since.
fn is_older_called(policy: &TrackedPolicy) -> bool {
    let generation = policy.object.meta.generation;
    let Some(last) = &policy.last else { return false };
    let served = last.last_served.as_ref().map(|served| served.generation);
    if served.is_some_and(|served| served >= generation) {
        // It was called, so it is its own webhook that is gone.
        return false;
    }
    let Some(enforced) = last.condition(ConditionType::Enforced) else { return served.is_some() };
    match (enforced.status, enforced.reason.as_str()) {
        (Truth::True, reason) => reason == "ServingPrevious" || enforced.observed_generation < generation,
        (_, "WebhookPending" | "Suspended" | UNINSTALLED) => false,
        _ => served.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use portcullis_api::{AuditSummary, Kind, PolicyKey, ReplicaReportSpec, Resolved};
    use portcullis_contract::{Digest, Reason};
    use serde_json::Value;

    use super::*;
    use crate::facts::LastReport;

    const UID: &str = "9b2c41d2-a1f0-4e17-8000-000000000001";

    fn policy(generation: i64, webhook: Option<(&str, i64)>) -> TrackedPolicy {
        let conditions: Vec<Value> = webhook
            .iter()
            .map(|(status, observed)| {
                json!({"type": "WebhookConfigured", "status": status, "reason": "WaitingForReplicas", "message": "",
                    "observedGeneration": observed, "lastTransitionTime": "2026-01-01T00:00:00Z"})
            })
            .collect();
        let object = json!({
            "metadata": {"name": "a", "uid": UID, "resourceVersion": "1", "generation": generation},
            "spec": {},
            "status": {"conditions": conditions},
        });
        let object = PolicyObject::of(Kind::ClusterPolicy, &object).expect("a policy");
        TrackedPolicy::new(object, None)
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().expect("a time")
    }

    /// The policy after this status was written.
    fn after(policy: &TrackedPolicy, status: &PolicyStatus) -> TrackedPolicy {
        let mut next = policy.clone();
        next.object.found = Fingerprint::of(&json!(status));
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
        let mut raw = json!(status);
        raw["summary"] = json!("9/9");
        raw["conditions"][1]["lastTransitionTime"] = json!("1999-01-01T00:00:00Z");
        edited.object.found = Fingerprint::of(&raw);
        assert_eq!(wanted(&edited, &[], Timestamp::now()), Some(status));
    }

    #[test]
    fn what_cannot_be_written_as_wanted_is_not_tried_again_until_something_changes() {
        let policy = policy(1, None);
        let status = wanted(&policy, &[], now()).expect("the first");
        let mut dropped = after(&policy, &status);
        let mut raw = json!(status);
        raw.as_object_mut().expect("an object").remove("summary");
        dropped.object.found = Fingerprint::of(&raw);
        assert!(wanted(&dropped, &[], now()).is_some());
        dropped.given_up = Some((Fingerprint::of(&json!(status)), dropped.object.found));
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
            handled_request: String::new(),
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

    /// What the webhook does, without words.
    fn called(policy: &TrackedPolicy) -> &'static str {
        match webhook(policy, &Registration::of(&policy.object), "w") {
            Webhook::Confirmed => "Confirmed",
            Webhook::Older(_) => "Older",
            Webhook::Pending(_) => "Pending",
        }
    }

    fn refusal(policy: &TrackedPolicy) -> Option<&str> {
        Registration::of(&policy.object).refusal(policy.object.meta.generation)
    }

    fn set_reason(policy: &mut TrackedPolicy, reason: &str) {
        policy.object.webhook.as_mut().expect("a condition").reason = reason.into();
    }

    #[test]
    fn the_controllers_refusal_counts_for_the_generation_that_it_is_about() {
        let mut policy = policy(2, Some(("False", 2)));
        assert_eq!(refusal(&policy), None);
        set_reason(&mut policy, Reason::QuotaExceeded.as_str());
        policy.object.webhook.as_mut().expect("a condition").message = "too many".into();
        assert_eq!(refusal(&policy), Some("too many"));
        assert_eq!(called(&policy), "Pending");
        let served = Some(Resolved::module(1, Digest::of(b"")));
        policy.last = Some(PolicyStatus { last_served: served, ..PolicyStatus::default() });
        assert_eq!(called(&policy), "Older", "the older generation is still called");
        policy.object.meta.generation = 3;
        assert_eq!(refusal(&policy), None);
    }

    #[test]
    fn the_webhook_counts_when_it_is_confirmed_for_this_generation() {
        assert_eq!(called(&policy(2, Some(("True", 2)))), "Confirmed");
        assert_eq!(called(&policy(2, Some(("True", 1)))), "Older");
        assert_eq!(called(&policy(2, Some(("False", 2)))), "Pending");
        assert_eq!(called(&policy(2, None)), "Pending");
    }

    /// The policy as the controller has told of it since: its generation, and status, reason and generation of `WebhookConfigured`.
    fn edited(before: &TrackedPolicy, generation: i64, condition: (&str, &str, i64)) -> TrackedPolicy {
        let mut next = policy(generation, Some((condition.0, condition.2)));
        set_reason(&mut next, condition.1);
        next.last.clone_from(&before.last);
        next
    }

    /// Decides when the only replica serves this generation, or none if it is 0. Returns the policy with its new status, and `Ready` and
    /// `Enforced`.
    fn decided(policy: &TrackedPolicy, serving: i64) -> (TrackedPolicy, [String; 2]) {
        let mut report = ReplicaReportSpec { pod_uid: "pod-uid".into(), ..ReplicaReportSpec::default() };
        report.current.extend((serving > 0).then(|| (PolicyKey::of(UID), serving)));
        report.digests.extend((serving > 0).then(|| (PolicyKey::of(UID), Digest::of(b"module"))));
        let heard = LastReport { report: &report, is_stale: false };
        let replica = Replica { pod: "pod", pod_uid: "pod-uid", expected: true, report: Some(heard) };
        let status = wanted(policy, &[replica], now()).or_else(|| policy.last.clone()).expect("a status");
        let words = [ConditionType::Ready, ConditionType::Enforced].map(|r#type| {
            let condition = status.condition(r#type).expect("it is there");
            format!("{}/{}", condition.status.as_str(), condition.reason)
        });
        (after(policy, &status), words)
    }

    /// The policy whose generation 1 answers and is called.
    fn active() -> TrackedPolicy {
        let (active, words) = decided(&policy(1, Some(("True", 1))), 1);
        assert_eq!(words, ["True/Active", "True/Active"]);
        active
    }

    #[test]
    fn an_edit_of_match_rules_leaves_the_policy_enforced_by_the_older_webhook_also_where_it_is_refused() {
        for reason in ["WaitingForReplicas", "SpecInvalid", "QuotaExceeded"] {
            let edit = edited(&active(), 2, ("True", "Registered", 1));
            let (before, words) = decided(&edit, 1);
            assert_eq!(words[1], "True/ServingPrevious", "the controller has not looked at it yet");
            let (loading, words) = decided(&edited(&before, 2, ("False", reason, 2)), 1);
            assert_eq!(words[1], "True/ServingPrevious", "{reason}");
            let (loaded, words) = decided(&edited(&loading, 2, ("False", reason, 2)), 2);
            assert_eq!(words, ["False/WebhookPending", "True/ServingPrevious"], "{reason}");
            // A replica restarts meanwhile, which does not depend on the webhook.
            let (restarted, words) = decided(&edited(&loaded, 2, ("False", reason, 2)), 0);
            assert_eq!(words[1].split('/').next(), Some("False"), "{reason}");
            let (back, words) = decided(&edited(&restarted, 2, ("False", reason, 2)), 2);
            assert_eq!(words, ["False/WebhookPending", "True/ServingPrevious"], "{reason}");
            let (_, words) = decided(&edited(&back, 3, ("False", reason, 2)), 2);
            assert_eq!(words[1], "True/ServingPrevious", "{reason}: another edit");
        }
    }

    #[test]
    fn without_an_older_webhook_that_was_called_nothing_is_enforced() {
        for reason in ["WaitingForReplicas", "SpecInvalid", "QuotaExceeded"] {
            let (mut new, words) = decided(&policy(1, None), 1);
            assert_eq!(words[1], "False/WebhookPending");
            for generation in [1, 2, 2] {
                let words;
                (new, words) = decided(&edited(&new, generation, ("False", reason, generation)), 1);
                assert_eq!(words[1], "False/WebhookPending", "{reason}");
            }
            // The webhook of the generation that was called is gone.
            let gone = edited(&active(), 1, ("False", reason, 1));
            assert_eq!(called(&gone), "Pending", "{reason}");
        }
        for reason in ["CABundleInvalid", "Unknown", "Forbidden"] {
            assert_eq!(called(&edited(&active(), 2, ("False", reason, 2))), "Pending", "{reason}");
        }
    }

    #[test]
    fn a_webhook_that_somebody_deleted_and_that_may_not_come_back_leaves_no_older_one_that_is_called() {
        let (loading, words) = decided(&edited(&active(), 2, ("True", "Registered", 1)), 1);
        assert_eq!(words[1], "True/ServingPrevious");
        let mut gone = edited(&loading, 2, ("False", "Forbidden", 2));
        assert_eq!(called(&gone), "Pending");
        // It stays so under a controller that knows nothing of the deletion.
        for reason in ["Forbidden", "SpecInvalid"] {
            let words;
            (gone, words) = decided(&edited(&gone, 2, ("False", reason, 2)), 1);
            assert_eq!(words[1], "False/WebhookPending", "{reason}");
        }
    }

    #[test]
    fn what_nobody_mends_by_waiting_is_told_of_the_generation_that_it_is_about() {
        let stuck = |reason: &str, generation| {
            Registration::of(&edited(&active(), 2, ("False", reason, generation)).object).stuck(2).map(str::to_owned)
        };
        for reason in ["SpecInvalid", "Forbidden"] {
            assert_eq!((stuck(reason, 2).as_deref(), stuck(reason, 1)), (Some(reason), None));
        }
        for reason in ["WaitingForReplicas", "QuotaExceeded", "CABundleInvalid", "Unknown"] {
            assert_eq!(stuck(reason, 2), None, "{reason}");
        }
    }
}
