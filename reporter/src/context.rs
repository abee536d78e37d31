//! Whether the objects of the cluster that a policy reads are known, by the reports of the replicas: one condition shows it, and a policy
//! is not Ready before all of them have been read (docs/design/status-api.md, section 4). Pure.

use portcullis_api::{ConditionType, PolicyStatus, ReplicaReportSpec, ReportContext, Truth};
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

/// The problems that this pod's loader reports. Namespaces take turns, each with its worst first.
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
            message: clean(&messages.join("; "), ReplicaReportSpec::MAX_CONTEXT_MESSAGE),
        })
    };
    let policies = in_turns(policies, |policy| ((), policy.id.namespace()));
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

/// The problem that the last status told of this generation, for a replica that has no room to tell whether it is still there.
pub(crate) fn last(facts: &Facts<'_>, previous: Option<&PolicyStatus>) -> Option<Context> {
    let last = previous?.condition(ConditionType::ContextSynced)?;
    let is_problem = last.status == Truth::False && last.observed_generation == facts.generation;
    let reason = ContextReason::ALL.iter().find(|reason| is_problem && reason.as_str() == last.reason)?;
    Some(Context { reason: *reason, message: NO_ROOM.to_owned() })
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
        assert_eq!((reported[0].reason.as_str(), reported[0].message.as_str()), ("ContextForbidden", "no; wait"));
        assert_eq!(reported[1].reason, "ContextStale");
    }
}
