//! How soon a status is written. Pure.

use std::collections::BTreeSet;

use portcullis_api::{ConditionType, PolicyStatus, ReplicaCounts, Truth};
use portcullis_contract::Reason;
use serde_json::json;

use super::fields::Fingerprint;
use super::store::TrackedPolicy;
use crate::message;

/// How soon a status is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// At once.
    Now,
    /// After a moment, as loading has begun. Mostly it also ends within that moment, and one write shows both. Or other pods fail than before, or
    /// an audit or a check of the policy found something else.
    Soon,
    /// Later, as only numbers and messages differ: loading makes progress, or a pod has come or gone.
    Progress,
    /// Much later, as only the times of the next tries differ: while a registry is unreachable, they do all the time.
    Retries,
    /// After a moment, and then in turn with those that show progress: the generation is beyond a limit, so that nothing waits for its status.
    /// A tenant may have any number of these.
    Refused,
}

/// How soon `next`, which differs from the present status, is written.
pub(crate) fn urgency(policy: &TrackedPolicy, next: &PolicyStatus) -> Urgency {
    let Some(last) = policy.last.as_ref() else {
        return if is_refused(next) {
            Urgency::Refused
        } else if is_loading(next) {
            Urgency::Soon
        } else {
            Urgency::Now
        };
    };
    if Fingerprint::of(&json!(last)) != policy.object.found {
        // Another client has changed the status, which is corrected at once.
        return Urgency::Now;
    }
    let is_enforced = |status: &PolicyStatus| status.is_true(ConditionType::Enforced);
    if is_refused(next) && (is_enforced(next) || !is_enforced(last)) {
        return Urgency::Refused;
    }
    let is_same = says(last) == says(next);
    if is_loading(next) && !last.is_true(ConditionType::Degraded) {
        return if is_same { Urgency::Progress } else { Urgency::Soon };
    }
    if !is_same || is_awaited(policy, last, next) {
        return Urgency::Now;
    }
    // Somebody may look which pods fail, or wait for what was found about the policy.
    let is_detail = failing(last) == failing(next) && (&last.audit, &last.impact) == (&next.audit, &next.impact);
    match is_detail {
        true if without_retries(last) == without_retries(next) => Urgency::Retries,
        true => Urgency::Progress,
        false => Urgency::Soon,
    }
}

/// A status that does not say when pods try again.
fn without_retries(status: &PolicyStatus) -> PolicyStatus {
    let mut status = status.clone();
    let times = status.replicas.iter_mut().filter_map(|entry| entry.next_retry_time.take());
    let words: Vec<_> = times.map(|time| message::retry(Some(time))).collect();
    for condition in &mut status.conditions {
        words.iter().for_each(|words| condition.message = condition.message.replace(words, ""));
    }
    status
}

/// The pods that fail, each with the reason.
fn failing(status: &PolicyStatus) -> BTreeSet<(&str, &str)> {
    let entries = status.replicas.iter();
    entries.filter_map(|entry| Some((entry.pod_uid.as_str(), entry.reason.as_deref()?))).collect()
}

/// Whether the newest generation is beyond a limit. `Accepted` may still be about an older one.
fn is_refused(status: &PolicyStatus) -> bool {
    status.condition(ConditionType::Accepted).is_some_and(|accepted| {
        accepted.reason == Reason::QuotaExceeded.as_str() && accepted.observed_generation >= status.observed_generation
    })
}

/// Whether replicas are loading the policy and none has failed. Once all of them have loaded it, its webhook waits for the status to show that.
fn is_loading(status: &PolicyStatus) -> bool {
    let counts = status.replica_counts;
    let is_loaded = counts.expected > 0 && counts.current == counts.expected;
    status.word() == "Progressing" && !status.is_true(ConditionType::Degraded) && !is_loaded
}

/// Whether the controller waits for what is new in `next`, which says the same as `last`: which bytes replicas serve, which it pins; which
/// generation served everywhere, which it marks; or that all answer, before which it registers no webhook.
fn is_awaited(policy: &TrackedPolicy, last: &PolicyStatus, next: &PolicyStatus) -> bool {
    let object = &policy.object;
    let is_confirmed = object
        .webhook
        .as_ref()
        .is_some_and(|webhook| webhook.status == Truth::True && webhook.observed_generation >= object.meta.generation);
    let answer = |counts: ReplicaCounts| counts.expected > 0 && counts.current + counts.previous == counts.expected;
    // A replica with an older generation may not have known the newest one, so that the controller went on waiting.
    let did_answer = answer(last.replica_counts) && last.replica_counts.previous == 0;
    let is_reached = answer(next.replica_counts) && !did_answer;
    (&last.resolved, &last.last_served) != (&next.resolved, &next.last_served)
        || is_reached && !is_confirmed && !object.suspend
}

/// A status without its numbers and messages.
fn says(status: &PolicyStatus) -> impl PartialEq {
    let conditions = status.conditions.iter();
    let conditions: Vec<_> = conditions.map(|one| (one.r#type, one.status, one.reason.clone())).collect();
    (status.observed_generation, conditions)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use jiff::Timestamp;
    use portcullis_api::{Condition, Kind, ReplicaStatus, Resolved};
    use portcullis_contract::{Digest, PolicyId, ReplicaState};

    use super::*;
    use crate::kubernetes::object::PolicyObject;
    use crate::kubernetes::pace::{Next, Pace};

    fn status(word: &str, summary: &str, is_degraded: bool) -> PolicyStatus {
        let condition = |r#type, status, reason: &str| Condition {
            r#type,
            status,
            reason: reason.to_owned(),
            message: summary.to_owned(),
            observed_generation: 1,
            last_transition_time: Timestamp::UNIX_EPOCH,
        };
        let degraded = if is_degraded { Truth::True } else { Truth::False };
        PolicyStatus {
            observed_generation: 1,
            summary: summary.to_owned(),
            conditions: vec![
                condition(ConditionType::Ready, Truth::False, word),
                condition(ConditionType::Degraded, degraded, "AsExpected"),
            ],
            ..PolicyStatus::default()
        }
    }

    /// A policy whose status is `last`.
    fn policy(last: Option<PolicyStatus>) -> TrackedPolicy {
        let metadata = json!({"name": "a", "uid": "u", "resourceVersion": "1", "generation": 1});
        let object = json!({"metadata": metadata, "spec": {}, "status": last});
        let object = PolicyObject::of(Kind::ClusterPolicy, &object).expect("a policy");
        TrackedPolicy::new(object, last)
    }

    #[test]
    fn that_loading_has_begun_can_wait_and_what_comes_of_it_cannot() {
        let loading = status("Progressing", "0/3", false);
        assert_eq!(urgency(&policy(None), &loading), Urgency::Soon);
        assert_eq!(urgency(&policy(Some(status("Active", "3/3", false))), &loading), Urgency::Soon);
        assert_eq!(urgency(&policy(Some(loading.clone())), &status("Progressing", "1/3", false)), Urgency::Progress);
        for word in ["Active", "WebhookPending", "NoReplicas"] {
            assert_eq!(urgency(&policy(Some(loading.clone())), &status(word, "3/3", false)), Urgency::Now, "{word}");
        }
    }

    #[test]
    fn that_all_replicas_have_loaded_it_does_not_wait() {
        let loading = status("Progressing", "2/3", false);
        let counts = |current| ReplicaCounts { expected: 3, current, ..ReplicaCounts::default() };
        let at = |current| PolicyStatus { replica_counts: counts(current), ..status("Progressing", "", false) };
        assert_eq!(urgency(&policy(None), &at(2)), Urgency::Soon);
        assert_eq!(urgency(&policy(None), &at(3)), Urgency::Now);
        assert_eq!(urgency(&policy(Some(loading)), &at(3)), Urgency::Now);
    }

    #[test]
    fn failures_their_end_and_somebody_else_s_edits_do_not_wait() {
        let (loading, failing) = (status("Progressing", "0/3", false), status("Degraded", "0/3", true));
        assert_eq!(urgency(&policy(Some(loading.clone())), &failing), Urgency::Now);
        assert_eq!(urgency(&policy(Some(failing)), &loading), Urgency::Now);
        let mut edited = policy(Some(loading.clone()));
        edited.object.found = Fingerprint::of(&json!(status("Progressing", "9/9", false)));
        assert_eq!(urgency(&edited, &loading), Urgency::Now);
    }

    /// A policy whose newest generation serves on all of so many replicas.
    fn active(expected: u32) -> PolicyStatus {
        let replica_counts = ReplicaCounts { expected, current: expected, ..ReplicaCounts::default() };
        PolicyStatus { replica_counts, ..status("Active", &format!("{expected}/{expected}"), false) }
    }

    #[test]
    fn a_pod_that_comes_or_goes_changes_numbers_and_holds_up_no_failure() {
        assert_eq!(urgency(&policy(Some(active(3))), &active(4)), Urgency::Progress);
        assert_eq!(urgency(&policy(Some(active(4))), &active(3)), Urgency::Progress);

        let start = Instant::now();
        let mut pace = Pace::new(50, start);
        let id = |name: &str| -> PolicyId { format!("cluster/{name}").parse().expect("an id") };
        let rolled = policy(Some(active(3)));
        for number in 0..1000 {
            pace.want(&id(&format!("p{number}")), Some(urgency(&rolled, &active(4))), start);
        }
        let later = start + Duration::from_secs(10);
        let failing = urgency(&rolled, &status("Degraded", "3/4", true));
        pace.want(&id("z"), Some(failing), later);
        assert_eq!(pace.next(later), Next::Write(id("z")));
    }

    #[test]
    fn which_pods_fail_is_told_soon() {
        let failing = |pods: &[&str]| {
            let entry = |pod: &&str| ReplicaStatus {
                pod: (*pod).to_owned(),
                pod_uid: (*pod).to_owned(),
                state: ReplicaState::Failed,
                generation: 0,
                reason: Some("NotFound".to_owned()),
                retryable: None,
                next_retry_time: None,
                since: None,
                message: None,
            };
            PolicyStatus { replicas: pods.iter().map(entry).collect(), ..status("Degraded", "1/3", true) }
        };
        assert_eq!(urgency(&policy(Some(failing(&["a"]))), &failing(&["a", "b"])), Urgency::Soon);
        assert_eq!(urgency(&policy(Some(failing(&["a", "b"]))), &failing(&["b"])), Urgency::Soon);
        let mut later = failing(&["a"]);
        later.replicas[0].message = Some("in other words".to_owned());
        assert_eq!(urgency(&policy(Some(failing(&["a"]))), &later), Urgency::Progress);
    }

    #[test]
    fn retry_times_are_written_much_later() {
        let failing = |next: Option<i64>, why: &str| {
            let next = next.map(|next| Timestamp::from_second(next).expect("a time"));
            let entry = ReplicaStatus {
                pod: "a".to_owned(),
                pod_uid: "a".to_owned(),
                state: ReplicaState::Failed,
                generation: 0,
                reason: Some("RegistryTimeout".to_owned()),
                retryable: Some(true),
                next_retry_time: next,
                since: None,
                message: None,
            };
            let mut status = status("Degraded", "1/3", true);
            status.conditions[1].message = format!("a: RegistryTimeout{}: {why}", message::retry(next));
            PolicyStatus { replicas: vec![entry], ..status }
        };
        let before = policy(Some(failing(Some(10), "words")));
        for next in [Some(20), None] {
            assert_eq!(urgency(&before, &failing(next, "words")), Urgency::Retries);
        }
        assert_eq!(urgency(&before, &failing(Some(20), "others")), Urgency::Progress);
    }

    #[test]
    fn a_count_for_which_the_controller_waits_does_not_wait() {
        let pending = |current, previous| {
            let replica_counts = ReplicaCounts { expected: 3, current, previous, ..ReplicaCounts::default() };
            PolicyStatus { replica_counts, ..status("Degraded", "", true) }
        };
        let of = |last, confirmed: Option<i64>| {
            let mut policy = policy(Some(last));
            policy.object.webhook = confirmed.map(|observed_generation| Condition {
                r#type: ConditionType::WebhookConfigured,
                status: Truth::True,
                observed_generation,
                ..active(3).conditions.remove(0)
            });
            policy
        };
        assert_eq!(urgency(&of(pending(1, 1), None), &pending(2, 1)), Urgency::Now);
        assert_eq!(urgency(&of(pending(1, 1), Some(0)), &pending(2, 1)), Urgency::Now, "of an older generation");
        assert_eq!(urgency(&of(pending(1, 1), Some(1)), &pending(2, 1)), Urgency::Progress, "it is called");
        assert_eq!(urgency(&of(pending(2, 1), None), &pending(1, 1)), Urgency::Progress);
        let mut suspended = of(pending(1, 1), None);
        suspended.object.suspend = true;
        assert_eq!(urgency(&suspended, &pending(2, 1)), Urgency::Progress);
        let served = PolicyStatus { last_served: Some(Resolved::module(1, Digest::of(b""))), ..active(3) };
        assert_eq!(urgency(&policy(Some(active(3))), &served), Urgency::Now, "the controller marks it");
    }

    #[test]
    fn a_refused_generation_waits_unless_requests_are_no_longer_evaluated() {
        let with = |mut status: PolicyStatus, r#type, truth, reason: &str| {
            status.conditions.push(Condition {
                r#type,
                status: truth,
                reason: reason.to_owned(),
                ..status.conditions[0].clone()
            });
            status
        };
        let refused = |word| with(status(word, "0/3", true), ConditionType::Accepted, Truth::False, "QuotaExceeded");
        let enforced = |status| with(status, ConditionType::Enforced, Truth::True, "ServingPrevious");
        assert_eq!(urgency(&policy(None), &refused("Error")), Urgency::Refused);
        assert_eq!(urgency(&policy(Some(status("Progressing", "", false))), &refused("Error")), Urgency::Refused);
        let active = enforced(active(3));
        assert_eq!(urgency(&policy(Some(active.clone())), &enforced(refused("ServingPrevious"))), Urgency::Refused);
        assert_eq!(urgency(&policy(Some(active)), &refused("Error")), Urgency::Now);
        let mut older = refused("Error");
        older.observed_generation = 2;
        assert_eq!(urgency(&policy(None), &older), Urgency::Now, "that was an older generation");
    }
}
