//! What one replica does for one policy, by its report (docs/design/status-api.md, section 3). Pure.

use jiff::Timestamp;
use portcullis_api::{PolicyKey, ReportDeviation};
use portcullis_contract::{Class, Failure, Reason, ReplicaState, clean};

use crate::context::{self, Context};
use crate::facts::{Facts, LastReport, Replica};
use crate::resolution::Resolution;

/// What one replica does for one policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Assessment<'a> {
    pub(crate) pod: &'a str,
    pub(crate) pod_uid: &'a str,
    pub(crate) expected: bool,
    pub(crate) state: ReplicaState,
    /// The generation that answers here; 0 if none.
    pub(crate) serving: i64,
    /// Whether the report shows that the replica knows the newest generation.
    pub(crate) knows_newest: bool,
    /// Whether it serves an older generation, and its report has no room to say whether the newest one failed.
    pub(crate) is_left_out: bool,
    /// Why the newest generation does not serve here, if it failed.
    pub(crate) problem: Option<Problem>,
    /// What the replica is doing with the newest generation, if nothing failed.
    pub(crate) note: Option<String>,
    pub(crate) since: Option<Timestamp>,
    /// What is wrong with the objects that the newest generation reads; none if nothing is.
    pub(crate) context: Option<Context>,
    /// Whether this replica serves the newest generation, and its report has no room to say whether anything is wrong with these objects.
    pub(crate) is_context_left_out: bool,
    /// Whether requests pass here without the policy, as it was never enforced and nothing of it is loaded.
    pub(crate) passed_over: bool,
}

/// A failure that a report names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The reason as text, since a newer release may know more reasons.
    pub(crate) reason: String,
    pub(crate) class: Class,
    pub(crate) next_retry: Option<Timestamp>,
    pub(crate) message: String,
}

impl Problem {
    fn of(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason: reason.to_string(), class: reason.class(), next_retry: None, message: message.into() }
    }

    fn reported(deviation: &ReportDeviation) -> Option<Self> {
        let reason = deviation.reason.clone()?;
        // Another pod wrote the report. A text that does not have the form of a reason would make the API server refuse the whole status.
        let reason = if is_reason(&reason) { reason } else { Reason::InternalError.to_string() };
        let known = Reason::ALL.iter().find(|known| known.as_str() == reason);
        // The class of a newer release's reason is not known here, only whether the report calls it retryable.
        let unknown = if deviation.retryable == Some(true) { Class::Retry } else { Class::Final };
        Some(Self {
            class: known.map_or(unknown, |known| known.class()),
            next_retry: deviation.next_retry_time,
            message: clean(deviation.message.as_deref().unwrap_or_default(), Failure::MAX_MESSAGE),
            reason,
        })
    }
}

/// Whether a text has the form of a reason: a word in camel case.
pub(crate) fn is_reason(text: &str) -> bool {
    text.len() <= 64
        && text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.bytes().all(|b| b.is_ascii_alphanumeric())
}

impl Assessment<'_> {
    /// Whether this replica makes the policy `Degraded`.
    pub(crate) fn is_bad(&self) -> bool {
        match self.state {
            ReplicaState::Failed | ReplicaState::Unknown => true,
            ReplicaState::Previous => self.problem.is_some(),
            ReplicaState::Current | ReplicaState::Pending => false,
        }
    }

    /// Whether this replica serves the newest generation and has not read all objects that it judges by.
    pub(crate) fn lacks_context(&self) -> bool {
        let is_missing = self.context.as_ref().is_some_and(|context| context.reason.is_missing());
        self.state == ReplicaState::Current && is_missing
    }

    /// Whether this replica serves an older generation and may not know the newest one, nor its match group.
    pub(crate) fn is_behind(&self) -> bool {
        let knows = |problem: &Problem| problem.reason != Reason::QuotaExceeded.as_str();
        self.state == ReplicaState::Previous && (self.is_left_out || !self.problem.as_ref().is_some_and(knows))
    }

    /// Whether this replica works on the newest generation.
    pub(crate) fn is_working(&self) -> bool {
        match self.state {
            ReplicaState::Pending => true,
            ReplicaState::Previous => self.problem.is_none(),
            ReplicaState::Current | ReplicaState::Failed | ReplicaState::Unknown => false,
        }
    }
}

/// What `replica` does for the policy. `resolution` is the digest of the newest generation: a replica that serves other bytes as this
/// generation does not count as serving it, and if replicas are split, none does.
pub(crate) fn examine<'a>(facts: &Facts<'_>, resolution: Resolution, replica: &Replica<'a>) -> Assessment<'a> {
    let assessment = reported(facts, resolution, replica);
    match facts.refusal {
        // Otherwise the replica would count as loading for ever, since it never gets a refused policy.
        Some(words) if assessment.is_working() || assessment.is_left_out => Assessment {
            state: if assessment.serving > 0 { ReplicaState::Previous } else { ReplicaState::Failed },
            is_left_out: false,
            problem: Some(Problem::of(Reason::QuotaExceeded, words)),
            note: None,
            passed_over: assessment.serving == 0,
            ..assessment
        },
        Some(_) | None => assessment,
    }
}

fn reported<'a>(facts: &Facts<'_>, resolution: Resolution, replica: &Replica<'a>) -> Assessment<'a> {
    let assessment = |state, serving, problem| Assessment {
        pod: replica.pod,
        pod_uid: replica.pod_uid,
        expected: replica.expected,
        state,
        serving,
        knows_newest: serving >= facts.generation,
        is_left_out: false,
        problem,
        note: None,
        since: None,
        context: context::of(facts, replica),
        is_context_left_out: state == ReplicaState::Current && context::is_left_out(facts, replica),
        passed_over: false,
    };
    let stale = |text: &str| {
        // Such a pod is listed nevertheless. Its entry says why the counts and the conditions leave it out.
        let text = if replica.expected {
            text.to_owned()
        } else {
            format!("{text}; the pod is not ready, so API servers do not call it and it is not counted")
        };
        assessment(ReplicaState::Unknown, 0, Some(Problem::of(Reason::ReportStale, text)))
    };
    let Some(LastReport { report, is_stale }) = replica.report else {
        return stale("the pod has not reported yet");
    };
    if report.pod_uid != replica.pod_uid {
        return stale("the report is of an earlier pod of this name");
    }
    if is_stale {
        return stale("its reports have stopped");
    }
    // A report of an earlier release also counts what merely loads. As failures come first in it, none of them is left out while an entry
    // without a failure is there.
    let is_full = report.deviations_omitted > 0 && report.deviations.iter().all(|entry| entry.reason.is_some());
    let left_out = || {
        let text = "the pod has more failures than its report holds; /healthz/policies on its loopback, ports 9081 and 9082, tells all";
        Some(Problem::of(Reason::ReportStale, text))
    };
    let key = PolicyKey::of(facts.uid);
    if let Some(serving) = report.current.get(&key).copied() {
        let differs =
            |text| assessment(ReplicaState::Previous, serving, Some(Problem::of(Reason::ResolvedDifferently, text)));
        return match (resolution, report.digests.get(&key)) {
            (Resolution::Settled(settled), Some(found)) if serving == facts.generation && settled != *found => {
                differs(format!("generation {serving} is {found} here and {settled} elsewhere"))
            }
            (Resolution::Split, Some(found)) if serving == facts.generation => differs(format!(
                "generation {serving} is {found} here and other bytes elsewhere, and most replicas agree on none"
            )),
            _ if serving == facts.generation => assessment(ReplicaState::Current, serving, None),
            // The newest generation may have failed. Of one that merely loads, nothing else is known either.
            _ if is_full && serving < facts.generation => {
                Assessment { is_left_out: true, ..assessment(ReplicaState::Previous, serving, left_out()) }
            }
            // The pod does not know the newest generation yet, or knows a newer one than this reporter.
            _ => assessment(ReplicaState::Previous, serving, None),
        };
    }
    match report.deviations.iter().find(|deviation| deviation.policy_uid == facts.uid) {
        Some(deviation) => deviating(facts, deviation, assessment),
        None if is_full => assessment(ReplicaState::Failed, 0, left_out()),
        None => assessment(ReplicaState::Pending, 0, None),
    }
}

fn deviating<'a>(
    facts: &Facts<'_>,
    deviation: &ReportDeviation,
    assessment: impl Fn(ReplicaState, i64, Option<Problem>) -> Assessment<'a>,
) -> Assessment<'a> {
    // A failure of an older generation does not count for the newest one, which starts afresh.
    let outdated = deviation.generation != facts.generation && deviation.state != ReplicaState::Unknown;
    let problem = if outdated { None } else { Problem::reported(deviation) };
    let state = match (deviation.state, deviation.serving, &problem) {
        (ReplicaState::Unknown, ..) => ReplicaState::Unknown,
        (_, serving, _) if serving > 0 => ReplicaState::Previous,
        (_, _, Some(_)) => ReplicaState::Failed,
        (_, _, None) => ReplicaState::Pending,
    };
    let note = deviation.message.as_deref().filter(|_| !outdated && problem.is_none());
    let note = note.map(|note| clean(note, Failure::MAX_MESSAGE));
    let passed_over = deviation.passed_over && matches!(state, ReplicaState::Failed | ReplicaState::Pending);
    Assessment {
        knows_newest: deviation.generation >= facts.generation,
        note,
        since: Some(deviation.since),
        passed_over,
        ..assessment(state, deviation.serving, problem)
    }
}

#[cfg(test)]
mod tests {
    use portcullis_api::ReplicaReportSpec;
    use portcullis_contract::Digest;

    use super::*;

    const UID: &str = "9b2c41d2-a1f0-4e17-8000-000000000001";

    fn facts(generation: i64) -> Facts<'static> {
        Facts { uid: UID, generation, suspend: false, digest: None, members: None, rollback_to: None, refusal: None }
    }

    fn report() -> ReplicaReportSpec {
        ReplicaReportSpec { pod_uid: "pod-uid".into(), ..ReplicaReportSpec::default() }
    }

    fn deviation(generation: i64, serving: i64, state: ReplicaState, reason: Option<&str>) -> ReportDeviation {
        ReportDeviation {
            policy_uid: UID.into(),
            generation,
            serving,
            state,
            reason: reason.map(str::to_owned),
            retryable: None,
            next_retry_time: None,
            since: Timestamp::UNIX_EPOCH,
            message: None,
            passed_over: false,
        }
    }

    /// State, serving generation and reason of a replica with this report, when the newest generation is 7.
    fn examined(report: &ReplicaReportSpec) -> (ReplicaState, i64, Option<String>) {
        examined_when(report, false)
    }

    fn examined_when(report: &ReplicaReportSpec, is_stale: bool) -> (ReplicaState, i64, Option<String>) {
        let heard = LastReport { report, is_stale };
        let replica = Replica { pod: "pod", pod_uid: "pod-uid", expected: true, report: Some(heard) };
        let assessment = examine(&facts(7), Resolution::Open, &replica);
        (assessment.state, assessment.serving, assessment.problem.map(|problem| problem.reason))
    }

    fn with(deviation: ReportDeviation) -> ReplicaReportSpec {
        ReplicaReportSpec { deviations: vec![deviation], ..report() }
    }

    fn serving(generation: i64) -> ReplicaReportSpec {
        ReplicaReportSpec { current: [(PolicyKey::of(UID), generation)].into(), ..report() }
    }

    #[test]
    fn the_newest_generation_is_current() {
        assert_eq!(examined(&serving(7)), (ReplicaState::Current, 7, None));
    }

    #[test]
    fn an_older_generation_is_previous() {
        assert_eq!(examined(&serving(6)), (ReplicaState::Previous, 6, None));
        let kept = with(deviation(7, 6, ReplicaState::Previous, Some("NotFound")));
        assert_eq!(examined(&kept), (ReplicaState::Previous, 6, Some("NotFound".into())));
    }

    #[test]
    fn work_without_answer_and_failure_is_pending() {
        assert_eq!(examined(&report()), (ReplicaState::Pending, 0, None));
        assert_eq!(examined(&with(deviation(7, 0, ReplicaState::Pending, None))).0, ReplicaState::Pending);
    }

    #[test]
    fn a_failure_with_nothing_answering_is_failed() {
        let failed = with(deviation(7, 0, ReplicaState::Failed, Some("NotFound")));
        assert_eq!(examined(&failed), (ReplicaState::Failed, 0, Some("NotFound".into())));
    }

    #[test]
    fn a_failure_of_an_older_generation_does_not_count() {
        let failed = with(deviation(6, 0, ReplicaState::Failed, Some("NotFound")));
        assert_eq!(examined(&failed), (ReplicaState::Pending, 0, None));
    }

    #[test]
    fn a_policy_left_out_of_a_report_full_of_failures_is_failed() {
        let other = |state, reason| ReportDeviation { policy_uid: "another".into(), ..deviation(7, 0, state, reason) };
        let failing = with(other(ReplicaState::Failed, Some("NotFound")));
        assert_eq!(examined(&ReplicaReportSpec { deviations_omitted: 3, ..failing }).0, ReplicaState::Failed);
        let loading = with(other(ReplicaState::Pending, None));
        assert_eq!(examined(&ReplicaReportSpec { deviations_omitted: 3, ..loading }).0, ReplicaState::Pending);
    }

    #[test]
    fn a_policy_left_out_of_a_report_full_of_failures_goes_on_with_the_older_generation_and_may_not_know_the_newest() {
        let other =
            |reason| ReportDeviation { policy_uid: "another".into(), ..deviation(7, 0, ReplicaState::Failed, reason) };
        let report =
            |reason| ReplicaReportSpec { deviations: vec![other(reason)], deviations_omitted: 3, ..serving(6) };
        let failing = report(Some("NotFound"));
        assert_eq!(examined(&failing), (ReplicaState::Previous, 6, Some("ReportStale".into())));
        assert_eq!(examined(&report(None)), (ReplicaState::Previous, 6, None));
        assert_eq!(
            examined(&ReplicaReportSpec { current: serving(7).current, ..failing.clone() }).0,
            ReplicaState::Current
        );
        let heard = LastReport { report: &failing, is_stale: false };
        let replica = Replica { pod: "pod", pod_uid: "pod-uid", expected: true, report: Some(heard) };
        let assessment = examine(&facts(7), Resolution::Open, &replica);
        assert!(assessment.is_bad() && assessment.is_behind() && !assessment.knows_newest, "{assessment:?}");
        let refused = Facts { refusal: Some("too many"), ..facts(7) };
        let refused = examine(&refused, Resolution::Open, &replica).problem.expect("a failure");
        assert_eq!(refused.reason, "QuotaExceeded", "which is known for certain");
    }

    #[test]
    fn no_report_another_pod_and_silence_are_unknown() {
        let stale = (ReplicaState::Unknown, 0, Some("ReportStale".to_owned()));
        assert_eq!(examined_when(&serving(7), true), stale);
        assert_eq!(examined(&ReplicaReportSpec { pod_uid: "earlier".into(), ..serving(7) }), stale);
        let silent = Replica { pod: "pod", pod_uid: "pod-uid", expected: true, report: None };
        assert_eq!(examine(&facts(7), Resolution::Open, &silent).state, ReplicaState::Unknown);
    }

    #[test]
    fn fault_r27_a_silent_pod_is_unknown_whether_it_counts_or_not_and_says_which() {
        let report = serving(7);
        let told = |expected| {
            let heard = LastReport { report: &report, is_stale: true };
            let replica = Replica { pod: "pod", pod_uid: "pod-uid", expected, report: Some(heard) };
            let assessment = examine(&facts(7), Resolution::Open, &replica);
            let problem = assessment.problem.expect("a failure");
            (assessment.state, problem.reason, problem.message)
        };
        let stale = |message: &str| (ReplicaState::Unknown, "ReportStale".to_owned(), message.to_owned());
        assert_eq!(told(true), stale("its reports have stopped"));
        let aside =
            "its reports have stopped; the pod is not ready, so API servers do not call it and it is not counted";
        assert_eq!(told(false), stale(aside));
    }

    #[test]
    fn other_bytes_of_the_same_generation_are_not_current() {
        let key = PolicyKey::of(UID);
        let report = ReplicaReportSpec { digests: [(key, Digest::of(b"other"))].into(), ..serving(7) };
        let heard = LastReport { report: &report, is_stale: false };
        let replica = Replica { pod: "pod", pod_uid: "pod-uid", expected: true, report: Some(heard) };
        let assessment = examine(&facts(7), Resolution::Settled(Digest::of(b"settled")), &replica);
        assert_eq!(assessment.state, ReplicaState::Previous);
        assert_eq!(assessment.problem.map(|problem| problem.reason).as_deref(), Some("ResolvedDifferently"));
    }

    #[test]
    fn fault_x09_texts_of_a_report_are_cleaned() {
        let forged = ReportDeviation {
            message: Some("\u{1b}[31mred\nlevel=info".into()),
            ..deviation(7, 0, ReplicaState::Failed, Some("No Reason\n"))
        };
        let report = with(forged);
        let heard = LastReport { report: &report, is_stale: false };
        let replica = Replica { pod: "pod", pod_uid: "pod-uid", expected: true, report: Some(heard) };
        let problem = examine(&facts(7), Resolution::Open, &replica).problem.expect("a failure");
        assert_eq!((problem.reason.as_str(), problem.message.as_str()), ("InternalError", "[31mred level=info"));
    }

    #[test]
    fn an_unknown_reason_is_taken_by_its_retryable_word() {
        let newer = ReportDeviation { retryable: Some(true), ..deviation(7, 0, ReplicaState::Failed, Some("Newer")) };
        let report = with(newer);
        let heard = LastReport { report: &report, is_stale: false };
        let replica = Replica { pod: "pod", pod_uid: "pod-uid", expected: true, report: Some(heard) };
        let problem = examine(&facts(7), Resolution::Open, &replica).problem.expect("a failure");
        assert_eq!((problem.reason.as_str(), problem.class), ("Newer", Class::Retry));
    }
}
