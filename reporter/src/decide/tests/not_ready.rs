//! Pods that API servers do not call are shown and not counted.

use super::*;

/// The status with one pod that serves the newest generation, and a second one with this report.
fn decided_beside(report_of_b: &ReplicaReportSpec, expected: bool, is_stale: bool) -> PolicyStatus {
    decided_of(&facts(), report_of_b, expected, is_stale)
}

/// The same for a policy of which this is known.
fn decided_of(facts: &Facts<'_>, report_of_b: &ReplicaReportSpec, expected: bool, is_stale: bool) -> PolicyStatus {
    let current = report("pod-a", Current);
    let heard = |report, is_stale| Some(LastReport { report, is_stale });
    let replicas = [
        Replica { pod: "pod-a", pod_uid: "pod-a", expected: true, report: heard(&current, false) },
        Replica { pod: "pod-b", pod_uid: "pod-b", expected, report: heard(report_of_b, is_stale) },
    ];
    decide(facts, &replicas, Webhook::Confirmed, None, now())
}

#[test]
fn a_draining_pod_is_shown_and_not_counted() {
    let status = decided_beside(&report("pod-b", Failed(Reason::NotFound)), false, false);
    assert_eq!((status.summary.as_str(), status.word(), status.replicas.len()), ("1/1", "Active", 2));
}

#[test]
fn pods_that_do_not_count_never_take_the_place_of_one_that_counts_and_fails() {
    let names: Vec<String> = (0..20).map(|number| format!("pod-{number:02}")).collect();
    let failing = report("pod-zz", Failed(Reason::NotFound));
    let older = report("pod-zy", Older);
    let aside = names.iter().map(|pod| Replica { pod, pod_uid: pod, expected: false, report: None });
    let counts = [("pod-zy", &older), ("pod-zz", &failing)].map(|(pod, report)| Replica {
        pod,
        pod_uid: pod,
        expected: true,
        report: Some(LastReport { report, is_stale: false }),
    });
    let replicas: Vec<_> = aside.chain(counts).collect();
    let status = decide(&facts(), &replicas, Webhook::Confirmed, None, now());
    let listed: Vec<_> = status.replicas.iter().map(|replica| replica.pod.as_str()).collect();
    assert_eq!((&listed[..3], listed.len()), (&["pod-zz", "pod-zy", "pod-00"][..], 16));
    let events = crate::event::events(None, &status, &mut false);
    let note = events.iter().find(|(_, reason, _)| reason == "NotFound").map(|(.., note)| note.as_str());
    assert_eq!(note, Some("generation 7 fails on at least 1 of 2 replicas"));
}

#[test]
fn a_pod_that_is_not_ready_and_serves_an_older_generation_delays_ready() {
    let decided = |is_stale| decided_beside(&report("pod-b", Older), false, is_stale);
    let status = decided(false);
    assert_eq!(row(&status), "False/Progressing True/Active False/AsExpected True/RollingOut False/AsExpected");
    assert_eq!((status.summary.as_str(), status.replica_counts.previous), ("1/1", 0), "it does not count");
    let words =
        "generation 7 answers; pod-b is not ready, and still answers with generation 6 on connections that are open";
    assert_eq!(sentence(&status), words);
    assert_eq!(status.last_served.map(|served| served.generation), Some(7), "a new pod may fall back to it");
    let silent = decided(true);
    assert_eq!(row(&silent), "True/Active True/Active False/AsExpected False/Idle False/AsExpected");
}

#[test]
fn a_pod_that_may_still_answer_delays_that_a_policy_is_suspended() {
    let suspended = Facts { suspend: true, ..facts() };
    let status = decided_of(&suspended, &report("pod-b", Older), false, false);
    assert_eq!(row(&status), "False/Progressing False/Suspended False/AsExpected True/RollingOut False/AsExpected");
    let words = "generation 7 is loaded and not asked: the policy is suspended; \
                 pod-b is not ready, and still answers with generation 6 on connections that are open";
    assert_eq!(sentence(&status), words);
    let silent = decided_of(&suspended, &report("pod-b", Older), false, true);
    assert_eq!(row(&silent), "True/Suspended False/Suspended False/AsExpected False/Idle False/AsExpected");
}

/// The pod of a container that crashes again and again is not ready, except for moments.
#[test]
fn fault_r27_a_pod_that_is_silent_and_not_ready_is_shown_as_unknown_and_changes_no_condition() {
    let decided = |expected| decided_beside(&report("pod-b", Current), expected, true);
    for expected in [true, false] {
        let status = decided(expected);
        let entry = &status.replicas[0];
        let told = (entry.pod.as_str(), entry.state, entry.reason.as_deref());
        assert_eq!(told, ("pod-b", ReplicaState::Unknown, Some("ReportStale")), "first, as it is the one to look at");
        let message = entry.message.as_deref().unwrap_or_default();
        assert_eq!(message.ends_with("it is not counted"), !expected, "{message}");
    }
    let counted = decided(true);
    assert_eq!(row(&counted), "False/Degraded Unknown/ReplicaFailed True/ReportStale True/Retrying False/Retrying");
    let aside = decided(false);
    assert_eq!(row(&aside), "True/Active True/Active False/AsExpected False/Idle False/AsExpected");
    assert_eq!((aside.summary.as_str(), aside.replica_counts.unknown), ("1/1", 0));
}
