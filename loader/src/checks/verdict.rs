//! From the states of loader and evaluator to the verdict on a trial, for its author. Pure.

use portcullis_contract::{
    CheckOutcome, CheckVerdict, Class, Deviation, EvaluatorState, Failure, LoaderPolicy, Mismatch, Phase,
};

/// The verdict; `None` while the trial has neither loaded nor failed.
pub(super) fn settled(policy: Option<&LoaderPolicy>, evaluator: Option<&EvaluatorState>) -> Option<CheckVerdict> {
    let policy = policy?;
    if evaluator.is_some_and(|state| loads(policy, state)) {
        let warning = |mismatch: &Mismatch| format!("{}: {}", mismatch.reason.as_str(), mismatch.message);
        return Some(CheckVerdict::passed(policy.mismatches.iter().map(warning).collect()));
    }
    if let Some(failure) = evaluator.and_then(|state| refusal(policy, state))
        // A failure that may pass is waited for: the evaluator may still load the trial in time.
        && failure.class() != Class::Retry
    {
        return Some(CheckVerdict::of_failure(failure));
    }
    policy.failure.as_ref().map(CheckVerdict::of_failure)
}

/// The verdict when the time has run out.
pub(super) fn unfinished(policy: Option<&LoaderPolicy>, evaluator: Option<&EvaluatorState>) -> CheckVerdict {
    let Some(policy) = policy else {
        return CheckVerdict::unknown(None, "the loader of this replica had no time for it");
    };
    if let Some(failure) = evaluator.and_then(|state| refusal(policy, state)) {
        return CheckVerdict::of_failure(failure);
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let text = match (policy.phase, &policy.activity) {
        (Phase::Fetching, Some(activity)) => match activity.total {
            Some(total) => {
                format!("its module is still being fetched, {} of {} MiB so far", mib(activity.bytes), mib(total))
            }
            None => "its module is still being fetched".to_owned(),
        },
        (Phase::Queued | Phase::Fetching, _) => "its module waits for its turn to be fetched".to_owned(),
        (Phase::Compiling, _) => "its module is still being compiled".to_owned(),
        (Phase::Published | Phase::Failed, _) => "the evaluator has not loaded it yet".to_owned(),
    };
    CheckVerdict::unknown(None, text)
}

/// The verdict on a trial that has asked its host for something, which no trial gets. It may have been refused for this reason alone.
pub(super) fn of_one_that_asks_its_host(verdict: CheckVerdict) -> CheckVerdict {
    match verdict.outcome {
        CheckOutcome::Refused => CheckVerdict::unknown(
            None,
            "it asks its host while it is loaded, and gets no answer as long as it is only being checked",
        ),
        CheckOutcome::Passed | CheckOutcome::Unknown => verdict,
    }
}

fn loads(policy: &LoaderPolicy, state: &EvaluatorState) -> bool {
    state.current.get(&policy.id).is_some_and(|current| current.uid == policy.uid)
}

/// Why the evaluator did not load the trial; `None` if it reports no failure.
fn refusal<'s>(policy: &LoaderPolicy, state: &'s EvaluatorState) -> Option<&'s Failure> {
    let is_it = |deviation: &&Deviation| deviation.id == policy.id && deviation.uid == policy.uid;
    state.deviations.iter().find(is_it)?.failure.as_ref()
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use portcullis_contract::{
        Activity, Current, Digest, FailurePolicy, MismatchReason, Mode, PolicyId, Reason, ReplicaState,
    };

    use super::*;
    use crate::content::uid;

    /// A trial that is on its way.
    pub(in crate::checks) fn policy(id: &PolicyId) -> LoaderPolicy {
        LoaderPolicy {
            id: id.clone(),
            uid: uid(id),
            generation: 1,
            mode: Mode::Protect,
            failure_policy: FailurePolicy::Fail,
            suspend: false,
            enforced: false,
            module: String::new(),
            digest: None,
            members: BTreeMap::new(),
            phase: Phase::Queued,
            activity: None,
            failure: None,
            last_good: None,
            mismatches: Vec::new(),
            context: Vec::new(),
            impact: None,
            created: Timestamp::UNIX_EPOCH,
        }
    }

    /// A trial that the evaluator has loaded.
    pub(in crate::checks) fn current(id: &PolicyId) -> Current {
        Current {
            uid: uid(id),
            generation: 1,
            digest: Digest::of(b"a"),
            members: BTreeMap::new(),
            since: Timestamp::UNIX_EPOCH,
        }
    }

    fn id() -> PolicyId {
        PolicyId::check(None, 1).expect("an id")
    }

    fn failure(reason: Reason) -> Failure {
        Failure::new(1, reason, "why", Timestamp::UNIX_EPOCH)
    }

    fn refused(reason: Reason) -> EvaluatorState {
        let deviation = Deviation {
            id: id(),
            uid: uid(&id()),
            generation: 1,
            serving: 0,
            digest: None,
            members: BTreeMap::new(),
            state: ReplicaState::Failed,
            failure: Some(failure(reason)),
            refused: Vec::new(),
            since: Timestamp::UNIX_EPOCH,
        };
        EvaluatorState { deviations: vec![deviation], ..EvaluatorState::default() }
    }

    fn outcome(verdict: Option<CheckVerdict>) -> Option<(CheckOutcome, Option<Reason>)> {
        verdict.map(|verdict| (verdict.outcome, verdict.failure.and_then(|failure| failure.reason)))
    }

    #[test]
    fn what_loads_passes_with_what_its_author_should_know() {
        let mismatch = Mismatch::new(MismatchReason::NoMetadata, "none");
        let trial = LoaderPolicy { mismatches: vec![mismatch], ..policy(&id()) };
        let mut state = EvaluatorState::default();
        assert_eq!(settled(Some(&trial), Some(&state)), None);
        state.current.insert(id(), current(&id()));
        assert_eq!(
            settled(Some(&trial), Some(&state)),
            Some(CheckVerdict::passed(vec!["NoMetadata: none".to_owned()]))
        );
        // A trial of an earlier loader with the same number.
        state.current.insert(id(), Current { uid: "other".to_owned(), ..current(&id()) });
        assert_eq!(settled(Some(&trial), Some(&state)), None);
    }

    #[test]
    fn a_failure_of_either_program_is_the_answer() {
        let failing = |reason| LoaderPolicy { failure: Some(failure(reason)), ..policy(&id()) };
        let loader = |reason| outcome(settled(Some(&failing(reason)), None));
        assert_eq!(loader(Reason::ModuleInvalid), Some((CheckOutcome::Refused, Some(Reason::ModuleInvalid))));
        assert_eq!(loader(Reason::NotFound), Some((CheckOutcome::Unknown, Some(Reason::NotFound))));
        assert_eq!(
            loader(Reason::RegistryUnreachable),
            Some((CheckOutcome::Unknown, Some(Reason::RegistryUnreachable)))
        );
        let evaluator = |reason| outcome(settled(Some(&policy(&id())), Some(&refused(reason))));
        assert_eq!(evaluator(Reason::SettingsInvalid), Some((CheckOutcome::Refused, Some(Reason::SettingsInvalid))));
        assert_eq!(evaluator(Reason::MemoryUnavailable), None, "it may load in time");
    }

    #[test]
    fn a_refusal_of_a_trial_that_asks_its_host_may_be_due_to_the_check() {
        let refused = CheckVerdict::refused(Reason::SettingsCheckFailed, "Guest call failure".to_owned());
        let verdict = of_one_that_asks_its_host(refused);
        assert_eq!(outcome(Some(verdict)), Some((CheckOutcome::Unknown, None)));
        let passed = CheckVerdict::passed(vec!["a".to_owned()]);
        assert_eq!(of_one_that_asks_its_host(passed.clone()), passed);
    }

    #[test]
    fn who_runs_out_of_time_learns_how_far_it_is() {
        let at = |phase, activity: Option<(u64, Option<u64>)>| {
            let activity = activity.map(|(bytes, total)| Activity { bytes, total, since: Timestamp::UNIX_EPOCH });
            let verdict = unfinished(Some(&LoaderPolicy { phase, activity, ..policy(&id()) }), None);
            assert_eq!(verdict.outcome, CheckOutcome::Unknown);
            verdict.failure.expect("a failure").message
        };
        assert_eq!(
            at(Phase::Fetching, Some((3 << 20, Some(12 << 20)))),
            "its module is still being fetched, 3 of 12 MiB so far"
        );
        assert_eq!(at(Phase::Compiling, None), "its module is still being compiled");
        assert_eq!(at(Phase::Published, None), "the evaluator has not loaded it yet");
        assert_eq!(at(Phase::Queued, None), "its module waits for its turn to be fetched");
        let late = unfinished(Some(&policy(&id())), Some(&refused(Reason::MemoryUnavailable)));
        assert_eq!(late.failure.and_then(|failure| failure.reason), Some(Reason::MemoryUnavailable));
        assert_eq!(unfinished(None, None).outcome, CheckOutcome::Unknown);
    }
}
