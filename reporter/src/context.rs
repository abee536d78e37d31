//! Whether the objects of the cluster that a policy reads are known, by the reports of the replicas: one condition shows it, and a policy
//! is not Ready before all of them have been read (docs/design/status-api.md, section 4). Pure.

use portcullis_api::{ReplicaReportSpec, ReportContext};
use portcullis_contract::{ContextReason, LoaderPolicy, LoaderState, clean};

use crate::facts::{Facts, Replica};

/// What is wrong with the objects that a policy reads on one replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) reason: ContextReason,
    pub(crate) message: String,
}

/// The problems that this pod's loader reports, the worst first.
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
    policies.iter().filter_map(entry).take(ReplicaReportSpec::MAX_CONTEXT).collect()
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
