//! The texts of reports, each kept once. Where something is wrong everywhere, each pod says the same of up to 500 policies, with a kilobyte each:
//! the leader would need a megabyte for each pod. Pure.

use std::collections::HashSet;
use std::sync::Arc;

use portcullis_api::ReplicaReportSpec;

/// The texts of reports.
#[derive(Debug, Default)]
pub(super) struct Texts(HashSet<Arc<str>>);

impl Texts {
    /// Makes a report share its texts with the reports before that have the same.
    pub(super) fn share(&mut self, report: &mut ReplicaReportSpec) {
        // The texts of reports that are gone since.
        self.0.retain(|text| Arc::strong_count(text) > 1);
        let deviations = report.deviations.iter_mut().filter_map(|deviation| deviation.message.as_mut());
        let mismatches = report.mismatches.iter_mut().map(|mismatch| &mut mismatch.message);
        let context = report.context.iter_mut().map(|context| &mut context.message);
        for text in deviations.chain(mismatches).chain(context) {
            if let Some(known) = self.0.get(&**text) {
                *text = Arc::clone(known);
            } else {
                self.0.insert(Arc::clone(text));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use portcullis_api::{ReportContext, ReportDeviation, ReportMismatch};
    use portcullis_contract::ReplicaState;

    use super::*;

    /// A report that is full of such words.
    fn full(words: &str) -> ReplicaReportSpec {
        let text = |number: usize| format!("{number} {}", words.repeat(100)).into();
        let (uid, reason, generation) = (String::new, || "NotFound".to_owned(), 1);
        ReplicaReportSpec {
            deviations: (0..ReplicaReportSpec::MAX_DEVIATIONS)
                .map(|number| ReportDeviation {
                    policy_uid: uid(),
                    generation,
                    serving: 0,
                    state: ReplicaState::Failed,
                    reason: Some(reason()),
                    retryable: None,
                    next_retry_time: None,
                    since: Timestamp::UNIX_EPOCH,
                    message: Some(text(number)),
                    passed_over: false,
                })
                .collect(),
            mismatches: vec![
                ReportMismatch { policy_uid: uid(), generation, reason: reason(), message: text(1000) };
                ReplicaReportSpec::MAX_MISMATCHES
            ],
            context: vec![
                ReportContext { policy_uid: uid(), generation, reason: reason(), message: text(2000) };
                ReplicaReportSpec::MAX_CONTEXT
            ],
            ..ReplicaReportSpec::default()
        }
    }

    fn texts(report: &ReplicaReportSpec) -> Vec<&Arc<str>> {
        let deviations = report.deviations.iter().filter_map(|deviation| deviation.message.as_ref());
        let others =
            report.mismatches.iter().map(|one| &one.message).chain(report.context.iter().map(|one| &one.message));
        deviations.chain(others).collect()
    }

    #[test]
    fn of_a_hundred_equal_reports_each_text_is_kept_once() {
        // As they are read: each report has texts of its own.
        let read = |words: &str| {
            let report = full(words);
            serde_json::from_value::<ReplicaReportSpec>(serde_json::to_value(&report).expect("JSON")).expect("a report")
        };
        let mut known = Texts::default();
        let mut reports: Vec<_> = (0..100).map(|_| read("words ")).collect();
        reports.iter_mut().for_each(|report| known.share(report));
        assert_eq!(reports[0], full("words "));
        for report in &reports[1..] {
            assert!(texts(&reports[0]).into_iter().zip(texts(report)).all(|(one, other)| Arc::ptr_eq(one, other)));
        }
        assert_eq!(known.0.len(), ReplicaReportSpec::MAX_DEVIATIONS + 2);
        reports.clear();
        known.share(&mut read("others "));
        assert!(known.0.iter().all(|text| text.contains("others")), "what no report says is not kept");
    }
}
