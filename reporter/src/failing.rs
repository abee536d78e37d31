//! Policies of which too many evaluations fail: an event reports it, and no condition does (docs/design/status-api.md, section 4.2). Pure.

use jiff::Timestamp;
use portcullis_api::ReportFailing;

use crate::facts::{Replica, to_second};
use crate::replica::is_reason;

/// The event's reason.
pub(crate) const REASON: &str = "EvaluationFailing";

/// The report of the replica on which too many evaluations of this policy have failed for the longest time; none if there is no such replica.
pub(crate) fn worst<'a>(uid: &str, replicas: &[Replica<'a>]) -> Option<&'a ReportFailing> {
    let reports = replicas.iter().filter(|replica| replica.expected).filter_map(Replica::heard);
    let said = reports.flat_map(|report| &report.failing).filter(|failing| failing.policy_uid == uid);
    said.min_by_key(|failing| failing.since)
}

/// The event's note. Every leader makes the same note of the same reports.
pub(crate) fn note(reason: &str, since: Timestamp) -> String {
    // The reason was written by another pod, so it is not trusted.
    let mostly = if is_reason(reason) { reason } else { "unknown" };
    format!("more than 5 % of its evaluations fail since {}; most of them: {mostly}", to_second(since))
}

#[cfg(test)]
mod tests {
    use portcullis_api::ReplicaReportSpec;

    use super::*;
    use crate::facts::LastReport;

    fn report(pod_uid: &str, since: i64) -> ReplicaReportSpec {
        let since = Timestamp::from_second(since).expect("a time");
        let failing = ReportFailing { policy_uid: "uid".into(), reason: "EvaluationTrapped".into(), since };
        ReplicaReportSpec { pod_uid: pod_uid.into(), failing: vec![failing], ..ReplicaReportSpec::default() }
    }

    fn replica(report: &ReplicaReportSpec) -> Replica<'_> {
        Replica { pod: "pod", pod_uid: "pod-uid", expected: true, report: Some(LastReport { report, is_stale: false }) }
    }

    fn since(uid: &str, replicas: &[Replica<'_>]) -> Option<i64> {
        worst(uid, replicas).map(|failing| failing.since.as_second())
    }

    #[test]
    fn the_replica_that_fails_for_the_longest_time_speaks_for_all() {
        let (first, second) = (report("pod-uid", 7), report("pod-uid", 5));
        assert_eq!(since("uid", &[replica(&first), replica(&second)]), Some(5));
        assert_eq!(since("another", &[replica(&first)]), None);
    }

    #[test]
    fn who_does_not_count_is_not_heard() {
        let (own, earlier) = (report("pod-uid", 5), report("an earlier pod", 5));
        let stale = Replica { report: Some(LastReport { report: &own, is_stale: true }), ..replica(&own) };
        let draining = Replica { expected: false, ..replica(&own) };
        assert_eq!(since("uid", &[stale, draining, replica(&earlier)]), None);
    }

    #[test]
    fn the_note_quotes_reasons_only() {
        let note = |reason| note(reason, Timestamp::UNIX_EPOCH);
        let wanted =
            "more than 5 % of its evaluations fail since 1970-01-01T00:00:00Z; most of them: EvaluationTrapped";
        assert_eq!(note("EvaluationTrapped"), wanted);
        assert!(note("a secret\n").ends_with("most of them: unknown"));
    }
}
