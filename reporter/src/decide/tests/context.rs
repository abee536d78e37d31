//! Objects of the cluster that a policy reads and that are missing or old.

use portcullis_api::ReportContext;

use super::*;

/// The status when replicas serve the newest generation and each reports one of `reasons`; none stands for no problem.
fn status(reasons: &[Option<&str>], facts: &Facts<'_>, previous: Option<&PolicyStatus>) -> PolicyStatus {
    let reports = reasons.iter().zip(PODS).map(|(reason, pod)| {
        let entry = reason.map(|reason| ReportContext {
            policy_uid: UID.into(),
            generation: 7,
            reason: reason.into(),
            message: "in words".into(),
        });
        ReplicaReportSpec { context: entry.into_iter().collect(), ..report(pod, Current) }
    });
    status_by(&reports.collect::<Vec<_>>(), facts, previous)
}

/// The status when replicas have made these reports.
fn status_by(reports: &[ReplicaReportSpec], facts: &Facts<'_>, previous: Option<&PolicyStatus>) -> PolicyStatus {
    let replicas = reports.iter().zip(PODS).map(|(report, pod)| {
        let heard = LastReport { report, is_stale: false };
        Replica { pod, pod_uid: pod, expected: true, report: Some(heard) }
    });
    decide(facts, &replicas.collect::<Vec<_>>(), Webhook::Confirmed, previous, now())
}

fn words(status: &PolicyStatus, r#type: ConditionType) -> String {
    let condition = status.condition(r#type).expect("it is there");
    format!("{}/{} {}", condition.status.as_str(), condition.reason, condition.message)
}

#[test]
fn a_policy_that_lacks_objects_is_not_ready_and_counts_as_served_nowhere() {
    use ConditionType::{ContextSynced, Degraded, Enforced, Ready, Reconciling, Stalled};
    let reading = status(&[Some("ContextNotSynced")], &facts(), None);
    let sentence = "generation 7 is loaded and lacks objects that it reads: in words";
    assert_eq!(words(&reading, ContextSynced), "False/ContextNotSynced in words");
    for r#type in [Ready, Enforced] {
        assert_eq!(words(&reading, r#type), format!("False/ContextNotSynced {sentence}"));
    }
    assert_eq!(words(&reading, Degraded), "False/AsExpected ");
    assert_eq!(words(&reading, Reconciling), format!("True/Loading {sentence}"));
    assert_eq!(words(&reading, Stalled), "False/AsExpected ");
    assert_eq!((reading.summary.as_str(), reading.last_served.is_none()), ("1/1", true));

    let forbidden = status(&[None, Some("ContextForbidden"), Some("ContextNotSynced")], &facts(), None);
    let on_two = "on 2 of 3 replicas, for instance pod-b: in words";
    assert_eq!(words(&forbidden, ContextSynced), format!("False/ContextForbidden {on_two}"));
    assert_eq!(forbidden.word(), "ContextNotSynced");
    assert_eq!(words(&forbidden, Reconciling), "False/Idle ");
    assert_eq!(words(&forbidden, Stalled), format!("True/ContextForbidden {on_two}"));
    let first = &forbidden.replicas[0];
    assert_eq!((first.pod.as_str(), first.reason.as_deref()), ("pod-b", Some("ContextForbidden")));
    assert_eq!((first.state, first.message.as_deref()), (ReplicaState::Current, Some("in words")));

    let granted = status(&[None; 3], &facts(), Some(&forbidden));
    assert_eq!((words(&granted, ContextSynced).as_str(), granted.word()), ("True/AsExpected ", "Active"));
    let suspended = status(&[Some("ContextForbidden")], &Facts { suspend: true, ..facts() }, None);
    assert_eq!(suspended.word(), "Suspended", "nobody asks it");
}

#[test]
fn old_objects_are_told_and_the_policy_stays_ready() {
    let stale = status(&[None, Some("ContextStale"), None], &facts(), None);
    assert_eq!(
        words(&stale, ConditionType::ContextSynced),
        "False/ContextStale on 1 of 3 replicas, for instance pod-b: in words"
    );
    assert_eq!(stale.word(), "Active");
    let first = &stale.replicas[0];
    assert_eq!((first.pod.as_str(), first.reason.as_deref()), ("pod-b", Some("ContextStale")));
}

#[test]
fn a_report_without_room_leaves_what_was_found_last_and_keeps_no_policy_from_being_ready() {
    use ConditionType::ContextSynced;
    let other = ReportContext {
        policy_uid: "another".into(),
        generation: 1,
        reason: "ContextForbidden".into(),
        message: "in words".into(),
    };
    let full = ReplicaReportSpec { context: vec![other; ReplicaReportSpec::MAX_CONTEXT], ..report("pod-a", Current) };
    let by_full = |previous: Option<&PolicyStatus>| status_by(std::slice::from_ref(&full), &facts(), previous);
    let no_room =
        "too many policies lack objects, or have old ones, for the report of a pod to tell whether this one does";

    let new = by_full(None);
    assert_eq!(words(&new, ContextSynced), format!("Unknown/Progressing {no_room}"));
    let loading = decided_with(&facts(), &[Loading], Webhook::Confirmed, None, now());
    assert_eq!(words(&loading, ContextSynced), "Unknown/Progressing no replica has loaded the policy yet");
    assert_eq!(words(&by_full(Some(&loading)), ContextSynced), format!("Unknown/Progressing {no_room}"));
    // It may have read its objects since. Were it not Ready, the policies that fill the report would keep it from being enforced.
    let lacking = status(&[Some("ContextForbidden")], &facts(), None);
    let cut = by_full(Some(&lacking));
    assert_eq!((cut.word(), words(&cut, ContextSynced)), ("Active", format!("Unknown/Progressing {no_room}")));
    assert_eq!(by_full(Some(&cut)), cut);
    let stale = by_full(Some(&status(&[Some("ContextStale")], &facts(), None)));
    assert_eq!((stale.word(), words(&stale, ContextSynced).as_str()), ("Active", "False/ContextStale in words"));
    let fine = by_full(Some(&status(&[None], &facts(), None)));
    assert_eq!((fine.word(), words(&fine, ContextSynced).as_str()), ("Active", "True/AsExpected "));
    let again = status(&[None], &facts(), Some(&cut));
    assert_eq!((again.word(), words(&again, ContextSynced).as_str()), ("Active", "True/AsExpected "));
}

#[test]
fn failures_count_more_and_a_newer_releases_reason_counts_as_missing() {
    let novelty = status(&[Some("Novelty")], &facts(), None);
    assert_eq!(words(&novelty, ConditionType::ContextSynced), "False/ContextNotSynced in words");
    let next = Facts { generation: 8, ..facts() };
    let other = status(&[Some("ContextForbidden")], &next, None);
    assert_eq!(words(&other, ConditionType::ContextSynced), "Unknown/Progressing no replica has loaded the policy yet");
    let failing = decided_with(&facts(), &[Failed(Reason::NotFound)], Webhook::Confirmed, Some(&novelty), later());
    assert_eq!(failing.word(), "Error");
    assert_eq!(words(&failing, ConditionType::ContextSynced), "False/ContextNotSynced in words", "what was told last");
}
