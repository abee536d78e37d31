//! Replicas that may not know the newest generation, of which the list of replicas shows one at least.

use super::*;

/// The status of replicas `pod-00`, `pod-01` and so on.
fn of_many(facts: &Facts<'_>, says: &[Says]) -> PolicyStatus {
    let names: Vec<String> = (0..says.len()).map(|n| format!("pod-{n:02}")).collect();
    let reports: Vec<_> = names.iter().zip(says).map(|(pod, says)| report(pod, *says)).collect();
    let replica = |(pod, report)| {
        let heard = LastReport { report, is_stale: false };
        Replica { pod, pod_uid: pod, expected: true, report: Some(heard) }
    };
    let replicas: Vec<_> = names.iter().map(String::as_str).zip(&reports).map(replica).collect();
    decide(facts, &replicas, Webhook::Confirmed, None, now())
}

#[test]
fn fault_w14_a_replica_that_is_behind_is_listed_however_many_there_are() {
    let listed = |status: &PolicyStatus| -> Vec<(String, bool)> {
        status.replicas.iter().map(|one| (one.pod.clone(), one.reason.is_some())).collect()
    };
    for all in [17, 20] {
        let last = format!("pod-{:02}", all - 1);
        // Before those that serve the newest generation.
        let mut says = vec![Current; all];
        says[all - 1] = Older;
        says[1] = OlderBecause(Reason::NotFound);
        let status = of_many(&facts(), &says);
        let first = [("pod-01".to_owned(), true), (last.clone(), false), ("pod-00".to_owned(), false)];
        assert_eq!((listed(&status)[..3].to_vec(), status.replicas.len()), (first.to_vec(), 16));

        // In the last place if more fail than fit in.
        let mut says = vec![OlderBecause(Reason::NotFound); all];
        says[all - 1] = Older;
        let status = of_many(&facts(), &says);
        assert_eq!(status.replicas_omitted as usize, all - 16);
        assert_eq!(listed(&status)[14..], [("pod-14".to_owned(), true), (last, false)]);
        let reconciling = status.condition(ConditionType::Reconciling).expect("it is there");
        assert_eq!(reconciling.reason, "Loading", "which the controller goes by if the list is cut");

        // If all have failed, the list has nothing else, and the condition says so.
        let status = of_many(&facts(), &vec![OlderBecause(Reason::NotFound); all]);
        assert!(listed(&status).iter().all(|(_, has_reason)| *has_reason));
        assert_eq!(status.condition(ConditionType::Reconciling).expect("it is there").reason, "Idle");
    }
}

#[test]
fn who_was_given_nothing_because_of_a_limit_is_behind() {
    let refused = Facts { refusal: Some("too many"), ..facts() };
    let mut says = vec![OlderBecause(Reason::NotFound); 20];
    says[19] = Older;
    let status = of_many(&refused, &says);
    let first = &status.replicas[0];
    assert_eq!((first.pod.as_str(), first.reason.as_deref()), ("pod-19", Some("QuotaExceeded")));
}

#[test]
fn a_replica_whose_report_has_no_room_for_the_policy_may_have_failed_and_may_be_behind() {
    let mut full = report("pod-a", Failed(Reason::NotFound));
    full.deviations[0].policy_uid = "another".into();
    full.deviations_omitted = 1;
    full.current.insert(PolicyKey::of(UID), 6);
    let heard = LastReport { report: &full, is_stale: false };
    let replica = Replica { pod: "pod-a", pod_uid: "pod-a", expected: true, report: Some(heard) };
    let status = decide(&facts(), &[replica], Webhook::Confirmed, None, now());
    let wanted = "False/ServingPrevious True/ServingPrevious True/ReportStale True/Retrying False/Retrying";
    assert_eq!(row(&status), wanted);
    let entry = &status.replicas[0];
    assert_eq!((entry.state, entry.generation), (ReplicaState::Previous, 6));
    assert_eq!(entry.reason, None, "to the controller, a reason shows that the pod knows the newest generation");
    assert!(entry.message.as_ref().is_some_and(|message| message.starts_with("the pod has more failures")));
}
