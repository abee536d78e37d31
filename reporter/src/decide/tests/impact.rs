//! What the policy would do to the objects that exist, carried over from status to status.

use portcullis_api::ReportImpact;

use super::*;
use crate::impact::tests::impact;

/// The status when one pod that serves generation 7 reports these figures.
fn status(impacts: &[(i64, i64)], facts: &Facts<'_>, previous: Option<&PolicyStatus>) -> PolicyStatus {
    let entry = |(generation, second): &(i64, i64)| ReportImpact {
        policy_uid: UID.into(),
        impact: impact(*generation, *second, 12),
    };
    let report = ReplicaReportSpec { impacts: impacts.iter().map(entry).collect(), ..report("pod-a", Current) };
    let heard = LastReport { report: &report, is_stale: false };
    let replica = Replica { pod: "pod-a", pod_uid: "pod-a", expected: true, report: Some(heard) };
    decide(facts, &[replica], Webhook::Confirmed, previous, later())
}

#[test]
fn figures_stay_when_the_pod_that_counted_forgets_them_and_over_edits() {
    let first = status(&[], &facts(), None);
    assert_eq!(first.impact, None);
    let counted = status(&[(7, 5)], &facts(), Some(&first));
    assert_eq!(counted, PolicyStatus { impact: Some(impact(7, 5, 12)), ..first });
    assert_eq!(status(&[(7, 5)], &facts(), Some(&counted)), counted, "and no further update");
    assert_eq!(status(&[], &facts(), Some(&counted)), counted, "after a restart");
    let edited = status(&[], &Facts { generation: 8, ..facts() }, Some(&counted));
    assert_eq!((edited.observed_generation, edited.impact), (8, counted.impact.clone()));
    let checked = status(&[(8, 1)], &Facts { generation: 8, ..facts() }, Some(&counted));
    assert_eq!(checked.impact, Some(impact(8, 1, 12)));
}
