//! Whether the metadata of a policy's module agrees with what the policy grants: the loaders compare, and one condition shows the
//! result (docs/design/status-api.md, section 4). Pure.

use portcullis_api::{ConditionType, ReplicaReportSpec, ReportMismatch, Truth};
use portcullis_contract::{LoaderState, Mismatch, MismatchReason, clean};

use crate::facts::{Facts, Replica};
use crate::turns::in_turns;

/// The mismatches that this pod's loader found. Namespaces take turns, each with its worst first.
pub(crate) fn reported(loader: &LoaderState) -> Vec<ReportMismatch> {
    let worst = |found: &[Mismatch]| found.iter().map(|mismatch| mismatch.reason).min();
    let mut policies: Vec<_> = loader.policies.iter().filter(|policy| !policy.mismatches.is_empty()).collect();
    policies.sort_by_key(|policy| worst(&policy.mismatches));
    let entry = |policy: &&portcullis_contract::LoaderPolicy| {
        let (reason, message) = match policy.mismatches.as_slice() {
            [only] => (only.reason.as_str(), only.message.clone()),
            several => {
                let each = several.iter().map(|one| format!("{}: {}", one.reason.as_str(), one.message));
                ("SeveralReasons", each.collect::<Vec<_>>().join("; "))
            }
        };
        ReportMismatch {
            policy_uid: policy.uid.clone(),
            generation: policy.generation,
            reason: reason.to_owned(),
            message: clean(&message, ReplicaReportSpec::MAX_MISMATCH_MESSAGE).into(),
        }
    };
    let policies = in_turns(policies, |policy| ((), policy.id.namespace()));
    policies.iter().take(ReplicaReportSpec::MAX_MISMATCHES).map(entry).collect()
}

/// Whether a report has no room for further mismatches, so that it does not tell of which policies there is none.
pub(crate) fn is_full(report: &ReplicaReportSpec) -> bool {
    report.mismatches.len() >= ReplicaReportSpec::MAX_MISMATCHES
}

/// Status, reason and message of the condition, by the reports of the replicas that count; none while no replica has compared this
/// generation, or where a report has no room to tell what it has found.
pub(crate) fn found(
    facts: &Facts<'_>,
    replicas: &[Replica<'_>],
    is_current: bool,
) -> Option<(Truth, &'static str, String)> {
    let heard = || replicas.iter().filter_map(Replica::heard);
    let mut entries = heard().flat_map(|report| &report.mismatches);
    let Some(found) = entries.find(|one| one.policy_uid == facts.uid && one.generation == facts.generation) else {
        let is_known = is_current && !heard().any(is_full);
        return is_known.then_some((Truth::True, "AsExpected", String::new()));
    };
    // Another pod wrote the report. If its reason is not one of ours, perhaps because that pod runs a newer release, only its message is shown.
    let reasons = ConditionType::MetadataMatched.reasons();
    let reason = reasons.iter().find(|reason| **reason == found.reason).copied().unwrap_or("SeveralReasons");
    let is_known = reason != MismatchReason::NoMetadata.as_str();
    let status = if is_known { Truth::False } else { Truth::Unknown };
    Some((status, reason, clean(&found.message, ReplicaReportSpec::MAX_MISMATCH_MESSAGE)))
}

#[cfg(test)]
mod tests {
    use portcullis_contract::LoaderPolicy;

    use super::*;
    use crate::facts::LastReport;
    use crate::fixtures::published;

    fn loader(mismatches: Vec<Mismatch>) -> LoaderState {
        let policy = LoaderPolicy { mismatches, ..published("cluster/a", "uid") };
        LoaderState { policies: vec![policy], ..LoaderState::default() }
    }

    fn mismatch(reason: MismatchReason) -> Mismatch {
        Mismatch::new(reason, "in words")
    }

    fn condition(mismatches: Vec<ReportMismatch>, generation: i64, is_current: bool) -> Option<String> {
        let report = ReplicaReportSpec { pod_uid: "pod-uid".into(), mismatches, ..ReplicaReportSpec::default() };
        let heard = LastReport { report: &report, is_stale: false };
        let replica = Replica { pod: "pod", pod_uid: "pod-uid", expected: true, report: Some(heard) };
        let facts = Facts {
            uid: "uid",
            generation,
            suspend: false,
            digest: None,
            members: None,
            rollback_to: None,
            refusal: None,
        };
        let told = |replica| {
            let (status, reason, message) = found(&facts, &[replica], is_current)?;
            Some(format!("{}/{reason} {message}", status.as_str()))
        };
        let stale = Replica { report: Some(LastReport { is_stale: true, ..heard }), ..replica };
        assert_eq!(told(stale).is_some(), is_current, "a stale report tells nothing");
        told(replica)
    }

    #[test]
    fn what_the_loader_found_becomes_the_condition() {
        use MismatchReason::{CapabilityNotGranted, NoMetadata, RulesDiffer};
        let told = |found: Vec<Mismatch>| condition(reported(&loader(found)), 1, true);
        assert_eq!(told(vec![]).as_deref(), Some("True/AsExpected "));
        let one = vec![mismatch(CapabilityNotGranted)];
        assert_eq!(told(one).as_deref(), Some("False/CapabilityNotGranted in words"));
        let two = vec![mismatch(CapabilityNotGranted), mismatch(RulesDiffer)];
        let words = "False/SeveralReasons CapabilityNotGranted: in words; RulesDiffer: in words";
        assert_eq!(told(two).as_deref(), Some(words));
        assert_eq!(told(vec![mismatch(NoMetadata)]).as_deref(), Some("Unknown/NoMetadata in words"));
    }

    #[test]
    fn another_generation_and_nothing_that_serves_tell_nothing() {
        let found = || reported(&loader(vec![mismatch(MismatchReason::RawPolicy)]));
        assert_eq!(condition(found(), 2, true).as_deref(), Some("True/AsExpected "));
        assert_eq!(condition(found(), 2, false), None);
    }

    #[test]
    fn a_full_report_does_not_tell_that_a_policy_without_an_entry_has_no_mismatch() {
        let other = ReportMismatch {
            policy_uid: "another".into(),
            generation: 1,
            reason: "NoMetadata".into(),
            message: "in words".into(),
        };
        let full = vec![other.clone(); ReplicaReportSpec::MAX_MISMATCHES];
        assert_eq!(condition(full.clone(), 1, true), None);
        assert_eq!(condition(full[1..].to_vec(), 1, true).as_deref(), Some("True/AsExpected "));
        let named = [&full[1..], &[ReportMismatch { policy_uid: "uid".into(), ..other }]].concat();
        assert_eq!(condition(named, 1, true).as_deref(), Some("Unknown/NoMetadata in words"));
    }

    #[test]
    fn a_forged_report_is_cleaned_and_many_are_cut() {
        let forged = ReportMismatch {
            policy_uid: "uid".into(),
            generation: 1,
            reason: "No Reason\n".into(),
            message: format!("\u{1b}[31m{}", "x".repeat(1 << 20)).into(),
        };
        let told = condition(vec![forged], 1, false).expect("a condition");
        assert!(told.starts_with("False/SeveralReasons [31mx") && told.len() < 700, "{}", told.len());
        let mut state = loader(vec![mismatch(MismatchReason::NoMetadata); 7]);
        state.policies = vec![state.policies[0].clone(); 1000];
        state.policies[999].mismatches = vec![mismatch(MismatchReason::CapabilityUnavailable)];
        let reported = reported(&state);
        assert_eq!((reported.len(), reported[0].reason.as_str()), (500, "CapabilityUnavailable"));
    }
}
