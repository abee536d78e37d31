//! Policies that were suspended: `suspend` acts by the newest generation that a replica knows.

use super::*;

/// The status of generation 6, which is suspended on both replicas.
fn suspended() -> PolicyStatus {
    let six = Facts { generation: 6, suspend: true, ..facts() };
    let mut reports = [report("pod-a", Current), report("pod-b", Current)];
    for report in &mut reports {
        report.current.insert(PolicyKey::of(UID), 6);
    }
    decided_by(&six, &reports, Webhook::Confirmed, None)
}

fn decided_by(
    facts: &Facts<'_>,
    reports: &[ReplicaReportSpec],
    webhook: Webhook<'_>,
    previous: Option<&PolicyStatus>,
) -> PolicyStatus {
    let replica = |report| {
        let heard = LastReport { report, is_stale: false };
        Replica { pod: &report.pod_uid, pod_uid: &report.pod_uid, expected: true, report: Some(heard) }
    };
    decide(facts, &reports.iter().map(replica).collect::<Vec<_>>(), webhook, previous, now())
}

/// The report of a pod that serves generation 6 and does not know generation 7.
fn unaware(pod: &str) -> ReplicaReportSpec {
    let mut report = report(pod, Current);
    report.current.insert(PolicyKey::of(UID), 6);
    report
}

fn enforced(status: &PolicyStatus) -> (String, &str) {
    let condition = status.condition(ConditionType::Enforced).expect("it is there");
    (format!("{}/{}", condition.status.as_str(), condition.reason), &condition.message)
}

#[test]
fn a_policy_that_is_resumed_is_enforced_when_every_replica_knows_it() {
    let before = suspended();
    assert_eq!(enforced(&before).0, "False/Suspended");
    let nobody = decided_by(&facts(), &[unaware("pod-a"), unaware("pod-b")], Webhook::Confirmed, Some(&before));
    let words = "the policy is suspended on replicas that do not know generation 7 yet; \
                 0 of 2 replicas serve generation 7; 2 still loading it; meanwhile 2 answer with generation 6";
    assert_eq!(enforced(&nobody), ("False/Suspended".to_owned(), words));
    // Others may fail meanwhile, and nothing is forgotten.
    let failing = [unaware("pod-a"), report("pod-b", Failed(Reason::RegistryTimeout))];
    let failing = decided_by(&facts(), &failing, Webhook::Confirmed, Some(&nobody));
    assert_eq!(enforced(&failing).0, "False/Suspended");
    for other in [Current, Older, OlderBecause(Reason::NotFound)] {
        let half = [unaware("pod-a"), report("pod-b", other)];
        let half = decided_by(&facts(), &half, Webhook::Older("soon".into()), Some(&failing));
        assert_eq!(enforced(&half).0, "False/Suspended");
    }
    // A replica that knows that it is resumed asks the older generation until it has the newest.
    let known = [report("pod-a", Older), report("pod-b", OlderBecause(Reason::NotFound))];
    let known = decided_by(&facts(), &known, Webhook::Confirmed, Some(&nobody));
    assert_eq!(enforced(&known).0, "True/ServingPrevious");
    let later = decided_by(&facts(), &[unaware("pod-a"), unaware("pod-b")], Webhook::Confirmed, Some(&known));
    assert_eq!(enforced(&later).0, "True/ServingPrevious", "the reports of a moment ago");
}

#[test]
fn nothing_that_happens_while_a_policy_is_suspended_makes_it_count_as_enforced_before_it_is_resumed_everywhere() {
    let six = Facts { generation: 6, suspend: true, ..facts() };
    let unaware = || [unaware("pod-a"), unaware("pod-b")];
    let mut failed = report("pod-b", Failed(Reason::RegistryTimeout));
    failed.deviations.iter_mut().for_each(|entry| entry.generation = 6);
    let loading = report("pod-b", Loading);
    let [one, _] = unaware();
    for meanwhile in [vec![], vec![failed.clone()], vec![one.clone(), failed], vec![one, loading]] {
        let status = decided_by(&six, &meanwhile, Webhook::Confirmed, Some(&suspended()));
        assert_eq!(enforced(&status).0, "False/Suspended", "{meanwhile:?}");
        let resumed = decided_by(&facts(), &unaware(), Webhook::Confirmed, Some(&status));
        assert_eq!(enforced(&resumed).0, "False/Suspended", "{meanwhile:?}");
    }
    // After the edit that resumes it, too.
    let nobody = decided_by(&facts(), &[], Webhook::Confirmed, Some(&suspended()));
    assert_eq!(enforced(&nobody).0, "False/Suspended");
    let silent = Replica { pod: "pod-a", pod_uid: "pod-a", expected: true, report: None };
    let silent = decide(&facts(), &[silent], Webhook::Confirmed, Some(&nobody), now());
    assert_eq!(enforced(&silent).0, "False/Suspended");
    let before = decided_by(&facts(), &unaware(), Webhook::Confirmed, Some(&silent));
    assert_eq!(enforced(&before).0, "False/Suspended");
    let known = [report("pod-a", Current), report("pod-b", Current)];
    let known = decided_by(&facts(), &known, Webhook::Confirmed, Some(&before));
    assert_eq!(enforced(&known).0, "True/Active");
}

#[test]
fn a_policy_stays_suspended_where_the_edit_that_resumes_it_is_refused() {
    let refused = Facts { refusal: Some("too many"), ..facts() };
    let reports = [unaware("pod-a"), unaware("pod-b")];
    let mut status = suspended();
    for _ in 0..3 {
        status = decided_by(&refused, &reports, Webhook::Older("QuotaExceeded".into()), Some(&status));
        assert_eq!((enforced(&status).0.as_str(), status.word()), ("False/Suspended", "ServingPrevious"));
    }
    assert_eq!(status.last_served.map(|served| served.generation), Some(6));
    let other = decided_by(&refused, &reports, Webhook::Older("QuotaExceeded".into()), None);
    assert_eq!(enforced(&other).0, "True/ServingPrevious", "one that was not suspended");
}
