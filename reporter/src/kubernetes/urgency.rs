//! How soon a status is written. Pure.

use portcullis_api::{ConditionType, PolicyStatus};
use serde_json::json;

use super::fields::Fingerprint;
use super::store::TrackedPolicy;

/// How soon a status is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// At once.
    Now,
    /// After a moment, as loading has begun. Mostly it also ends within that moment, and one write shows both.
    Soon,
    /// Later, as loading only makes progress.
    Progress,
}

/// How soon `next`, which differs from the present status, is written.
pub(crate) fn urgency(policy: &TrackedPolicy, next: &PolicyStatus) -> Urgency {
    let last = policy.last.as_ref();
    // Once every replica has loaded the policy, its webhook waits for the status to show that.
    let counts = &next.replica_counts;
    let is_loaded = counts.expected > 0 && counts.current == counts.expected;
    let is_loading = next.word() == "Progressing" && !next.is_true(ConditionType::Degraded) && !is_loaded;
    if !is_loading || last.is_some_and(|last| last.is_true(ConditionType::Degraded)) {
        return Urgency::Now;
    }
    match last {
        // Another client has changed the status, which is corrected at once.
        Some(last) if Fingerprint::of(&json!(last)) != policy.object.found => Urgency::Now,
        Some(last) if says(last) == says(next) => Urgency::Progress,
        Some(_) | None => Urgency::Soon,
    }
}

/// A status without its numbers and messages.
fn says(status: &PolicyStatus) -> impl PartialEq {
    let conditions = status.conditions.iter();
    let conditions: Vec<_> = conditions.map(|one| (one.r#type, one.status, one.reason.clone())).collect();
    (status.observed_generation, conditions)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use portcullis_api::{Condition, Kind, ReplicaCounts, Truth};

    use super::*;
    use crate::kubernetes::object::PolicyObject;

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
}
