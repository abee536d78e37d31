//! Whether the objects of the cluster that a policy reads are known, by the reports of the replicas: one condition shows it, and a policy
//! is not Ready before all of them have been read (docs/design/status-api.md, section 4). Pure.

use portcullis_api::{ReplicaReportSpec, ReportContext};
use portcullis_contract::{ContextReason, LoaderPolicy, LoaderState, clean};

use crate::facts::{Facts, Replica};
use crate::turns::in_turns;

/// Says that it is not known whether objects are missing.
pub(crate) const NO_ROOM: &str =
    "too many policies lack objects, or have old ones, for the report of a pod to tell whether this one does";

/// What is wrong with the objects that a policy reads on one replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) reason: ContextReason,
    pub(crate) message: String,
}

/// The problems that this pod's loader reports. Missing objects come first: they keep a policy from being Ready, and old ones do not. Among either,
/// namespaces take turns, each with its worst first.
pub(crate) fn reported(loader: &LoaderState) -> Vec<ReportContext> {
    let mut policies: Vec<_> = loader.policies.iter().filter(|policy| !policy.context.is_empty()).collect();
    let worst = |policy: &LoaderPolicy| policy.context.iter().map(|problem| problem.reason).min();
    policies.sort_by_key(|policy| worst(policy));
    let entry = |policy: &&LoaderPolicy| {
        let messages: Vec<_> = policy.context.iter().map(|problem| problem.message.as_str()).collect();
        Some(ReportContext {
            policy_uid: policy.uid.clone(),
            generation: policy.generation,
            reason: worst(policy)?.as_str().to_owned(),
            message: clean(&messages.join("; "), ReplicaReportSpec::MAX_CONTEXT_MESSAGE).into(),
        })
    };
    let lacks = |policy: &LoaderPolicy| worst(policy).is_some_and(ContextReason::is_missing);
    let policies = in_turns(policies, |policy| (!lacks(policy), policy.id.namespace()));
    policies.iter().filter_map(entry).take(ReplicaReportSpec::MAX_CONTEXT).collect()
}

/// Whether a report has no room for further problems, so that it does not tell which policies have none.
pub(crate) fn is_full(report: &ReplicaReportSpec) -> bool {
    report.context.len() >= ReplicaReportSpec::MAX_CONTEXT
}

/// Whether it is not known if a replica has the objects that the policy reads: its report has no entry of the policy, and no room for one.
pub(crate) fn is_left_out(facts: &Facts<'_>, replica: &Replica<'_>) -> bool {
    replica.heard().is_some_and(is_full) && of(facts, replica).is_none()
}

/// The problem that one replica reports for the newest generation; `None` if it reports none.
pub(crate) fn of(facts: &Facts<'_>, replica: &Replica<'_>) -> Option<Context> {
    let mut entries = replica.heard()?.context.iter();
    let found = entries.find(|one| one.policy_uid == facts.uid && one.generation == facts.generation)?;
    // Another pod wrote the report. A reason that is not one of ours, perhaps of a newer release, is replaced by the most general one.
    let known = ContextReason::ALL.iter().find(|reason| reason.as_str() == found.reason);
    Some(Context {
        reason: known.copied().unwrap_or(ContextReason::ContextNotSynced),
        message: clean(&found.message, ReplicaReportSpec::MAX_CONTEXT_MESSAGE),
    })
}

#[cfg(test)]
mod tests {
    use portcullis_contract::ContextProblem;

    use super::*;
    use crate::fixtures::published;

    #[test]
    fn the_worst_comes_first_and_many_are_cut() {
        let problem = |reason, message: &str| ContextProblem::new(reason, message);
        let policy = |problems| LoaderPolicy { context: problems, ..published("cluster/a", "uid") };
        let stale = policy(vec![problem(ContextReason::ContextStale, "old")]);
        let both =
            vec![problem(ContextReason::ContextForbidden, "no"), problem(ContextReason::ContextNotSynced, "wait")];
        let mut policies = vec![stale; 1000];
        policies.extend([policy(Vec::new()), policy(both)]);
        let reported = reported(&LoaderState { policies, ..LoaderState::default() });
        assert_eq!(reported.len(), ReplicaReportSpec::MAX_CONTEXT);
        assert_eq!((reported[0].reason.as_str(), &*reported[0].message), ("ContextForbidden", "no; wait"));
        assert_eq!(reported[1].reason, "ContextStale");
    }

    #[test]
    fn old_objects_take_no_place_from_missing_ones() {
        let of = |number: usize, namespace: &str, reason| {
            let policy = published(&format!("namespaced/{namespace}/p{number}"), &format!("uid-{number}"));
            LoaderPolicy { context: vec![ContextProblem::new(reason, "in words")], ..policy }
        };
        let stale = |number: usize| of(number, &format!("old-{number}"), ContextReason::ContextStale);
        let mut policies: Vec<_> = (0..ReplicaReportSpec::MAX_CONTEXT).map(stale).collect();
        policies.extend((900..903).map(|number| of(number, "lacking", ContextReason::ContextNotSynced)));
        let reported = reported(&LoaderState { policies, ..LoaderState::default() });
        let first: Vec<_> = reported.iter().take(4).map(|one| one.reason.as_str()).collect();
        assert_eq!(first, ["ContextNotSynced", "ContextNotSynced", "ContextNotSynced", "ContextStale"]);
        assert_eq!(reported.len(), ReplicaReportSpec::MAX_CONTEXT);
    }
}
