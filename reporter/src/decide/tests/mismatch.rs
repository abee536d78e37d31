//! Capabilities that the metadata of a module asks for and its policy does not grant.

use super::*;

#[test]
fn a_difference_of_the_metadata_leaves_the_policy_ready_and_goes_when_it_is_granted() {
    let told = |status: &PolicyStatus| {
        let condition = status.condition(ConditionType::MetadataMatched).expect("it is there");
        (condition.status, condition.reason.clone(), condition.last_transition_time == later())
    };
    let mut differs = report("pod-a", Current);
    differs.mismatches = vec![portcullis_api::ReportMismatch {
        policy_uid: UID.into(),
        generation: 7,
        reason: "CapabilityNotGranted".into(),
        message: "in words".into(),
    }];
    let heard = LastReport { report: &differs, is_stale: false };
    let replica = Replica { pod: "pod-a", pod_uid: "pod-a", expected: true, report: Some(heard) };
    let first = decide(&facts(), &[replica], Webhook::Confirmed, None, now());
    assert_eq!(told(&first), (Truth::False, "CapabilityNotGranted".to_owned(), false));
    assert!(first.is_true(ConditionType::Ready));
    let next = Facts { generation: 8, ..facts() };
    let loading = decided_with(&next, &[Loading], Webhook::Confirmed, Some(&first), later());
    assert_eq!(told(&loading), told(&first), "the last comparison stands");
    let other = portcullis_api::ReportMismatch { policy_uid: "another".into(), ..differs.mismatches[0].clone() };
    let full = ReplicaReportSpec { mismatches: vec![other; 500], ..report("pod-a", Current) };
    let heard = LastReport { report: &full, is_stale: false };
    let by_full = |previous| {
        let replica = Replica { report: Some(heard), ..replica };
        decide(&facts(), &[replica], Webhook::Confirmed, previous, later())
    };
    assert_eq!(told(&by_full(Some(&first))), told(&first), "a full report leaves the last comparison");
    assert_eq!(told(&by_full(None)), (Truth::Unknown, "Progressing".to_owned(), true));
    let words = |status: &PolicyStatus| {
        let condition = status.condition(ConditionType::MetadataMatched).expect("it is there");
        format!("{}/{} {}", condition.status.as_str(), condition.reason, condition.message)
    };
    let loading = decided_with(&facts(), &[Loading], Webhook::Confirmed, None, now());
    assert_eq!(words(&loading), "Unknown/Progressing no replica has compared it with the policy yet");
    assert_eq!(
        words(&by_full(Some(&loading))),
        "Unknown/Progressing too many modules differ from their policies for the report of a pod to tell whether this one does"
    );
    let granted = decided_with(&facts(), &[Current], Webhook::Confirmed, Some(&first), later());
    assert_eq!(told(&granted), (Truth::True, "AsExpected".to_owned(), true));
}
