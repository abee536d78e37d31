//! Whether the policy that is asked for would answer, by the states of loader and evaluator. Pure.

use portcullis_contract::{Digest, EvaluatorState, Failure, LoaderState, Phase, PolicyId};

/// The state of the policy in loader and evaluator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PolicyState {
    /// Neither served nor failed yet.
    Pending,
    /// The evaluator serves it, with this module, and the loader wants no other.
    Serves(Digest),
    /// It will not be served.
    Failed(Failure),
    /// The loader does not accept it as a policy; the message.
    Refused(String),
}

/// The state of the policy `id`. The loader's state is the earlier of the two, so that both mean the same manifest where they
/// agree.
pub(super) fn policy_state(id: &PolicyId, loader: LoaderState, evaluator: EvaluatorState) -> PolicyState {
    if let Some(failure) = loader.volume_failure.or(evaluator.manifest_failure) {
        return PolicyState::Failed(failure);
    }
    // Until the loader has read its folder, what it says is not about what is in there now.
    if !loader.complete {
        return PolicyState::Pending;
    }
    if let Some(problem) = loader.problems.first() {
        return PolicyState::Refused(format!("the loader cannot take the policy: {}", problem.message));
    }
    let Some(policy) = loader.policies.into_iter().find(|policy| policy.id == *id) else {
        return PolicyState::Refused(format!("the loader does not see the policy {id}"));
    };
    if let Some(failure) = policy.failure {
        return PolicyState::Failed(failure);
    }
    let Some(module) = policy.digest.filter(|_| policy.phase == Phase::Published) else { return PolicyState::Pending };
    let serves = evaluator.current.get(id).is_some_and(|current| {
        (current.generation, &current.uid, current.digest) == (policy.generation, &policy.uid, module)
    });
    if serves {
        return PolicyState::Serves(module);
    }
    let is_it = |generation: i64, uid: &str| generation == policy.generation && uid == policy.uid;
    let deviation =
        evaluator.deviations.into_iter().find(|other| other.id == *id && is_it(other.generation, &other.uid));
    let refused = deviation.into_iter().flat_map(|deviation| deviation.refused);
    // An artifact that the evaluator could not use is made again.
    let refused = refused.filter(|refused| refused.digest == module && refused.failure.generation == policy.generation);
    match refused.map(|refused| refused.failure).find(|failure| !failure.class().is_retryable()) {
        Some(failure) => PolicyState::Failed(failure),
        None => PolicyState::Pending,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use portcullis_contract::{
        Current, Deviation, FailurePolicy, InputProblem, LoaderPolicy, Mode, Reason, Refused, ReplicaState,
    };

    use super::*;

    fn id() -> PolicyId {
        "cluster/a".parse().expect("an id")
    }

    fn loader(generation: i64, phase: Phase, failure: Option<Failure>) -> LoaderState {
        let policy = LoaderPolicy {
            id: id(),
            uid: "u".into(),
            generation,
            mode: Mode::Protect,
            failure_policy: FailurePolicy::Ignore,
            suspend: false,
            enforced: false,
            module: "a.wasm".into(),
            digest: Some(Digest::of(b"new")),
            members: BTreeMap::new(),
            phase,
            activity: None,
            failure,
            last_good: None,
            mismatches: Vec::new(),
            created: Timestamp::UNIX_EPOCH,
        };
        LoaderState { complete: true, policies: vec![policy], ..LoaderState::default() }
    }

    fn serving(generation: i64, module: &[u8]) -> EvaluatorState {
        let current = Current {
            uid: "u".into(),
            generation,
            digest: Digest::of(module),
            members: BTreeMap::new(),
            since: Timestamp::UNIX_EPOCH,
        };
        EvaluatorState { current: BTreeMap::from([(id(), current)]), ..EvaluatorState::default() }
    }

    fn refusing(generation: i64, module: &[u8], reason: Reason) -> EvaluatorState {
        let failure = Failure::new(generation, reason, "no");
        let refused = Refused {
            digest: Digest::of(module),
            module: None,
            artifact: Digest::of(b"code"),
            failure: failure.clone(),
        };
        let deviation = Deviation {
            id: id(),
            uid: "u".into(),
            generation,
            serving: 0,
            digest: None,
            members: BTreeMap::new(),
            state: ReplicaState::Failed,
            failure: Some(failure),
            refused: vec![refused],
            since: Timestamp::UNIX_EPOCH,
        };
        EvaluatorState { deviations: vec![deviation], ..EvaluatorState::default() }
    }

    #[test]
    fn it_serves_when_both_mean_the_same_module() {
        let published = || loader(2, Phase::Published, None);
        let of = |evaluator| policy_state(&id(), published(), evaluator);
        assert_eq!(of(serving(2, b"new")), PolicyState::Serves(Digest::of(b"new")));
        assert_eq!(of(serving(1, b"old")), PolicyState::Pending);
        assert_eq!(of(serving(2, b"old")), PolicyState::Pending);
        assert_eq!(of(EvaluatorState::default()), PolicyState::Pending);
        let compiles = loader(2, Phase::Compiling, None);
        assert_eq!(policy_state(&id(), compiles, serving(2, b"new")), PolicyState::Pending);
    }

    #[test]
    fn nothing_is_believed_before_the_folder_was_read() {
        let failure = Failure::new(1, Reason::ModuleInvalid, "no");
        for before in
            [loader(1, Phase::Published, None), loader(1, Phase::Failed, Some(failure)), LoaderState::default()]
        {
            let before = LoaderState { complete: false, ..before };
            assert_eq!(policy_state(&id(), before, serving(1, b"new")), PolicyState::Pending);
        }
        let empty = LoaderState { complete: true, ..LoaderState::default() };
        assert!(matches!(policy_state(&id(), empty, EvaluatorState::default()), PolicyState::Refused(_)));
        let problem = InputProblem { file: "a".into(), message: "no".into(), since: Timestamp::UNIX_EPOCH };
        let broken = LoaderState { complete: true, problems: vec![problem], ..LoaderState::default() };
        assert!(matches!(policy_state(&id(), broken, EvaluatorState::default()), PolicyState::Refused(_)));
    }

    #[test]
    fn failures_are_of_this_generation_and_module() {
        let of = |evaluator| policy_state(&id(), loader(2, Phase::Published, None), evaluator);
        assert!(matches!(of(refusing(2, b"new", Reason::SettingsInvalid)), PolicyState::Failed(_)));
        assert_eq!(of(refusing(2, b"old", Reason::SettingsInvalid)), PolicyState::Pending);
        assert_eq!(of(refusing(1, b"new", Reason::SettingsInvalid)), PolicyState::Pending);
        assert_eq!(of(refusing(2, b"new", Reason::ArtifactCorrupt)), PolicyState::Pending, "it is made again");
        let failure = Failure::new(2, Reason::ModuleInvalid, "no");
        let failed = loader(2, Phase::Failed, Some(failure.clone()));
        assert_eq!(policy_state(&id(), failed, EvaluatorState::default()), PolicyState::Failed(failure));
    }
}
