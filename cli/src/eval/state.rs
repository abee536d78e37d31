//! Whether a policy would answer, according to the states of loader and evaluator. Pure.

use portcullis_contract::{Digest, EvaluatorState, Failure, LoaderState, Mismatch, Phase, PolicyId, Reason};

/// What became of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Settled {
    /// The evaluator serves it, and the loader does not want another module.
    Serves {
        /// The digest of the module; for a policy group, of those of its members.
        module: Digest,
        /// What differs between the module's metadata and the policy.
        mismatches: Vec<Mismatch>,
    },
    /// It will not be served.
    Failed(Failure),
    /// The loader does not accept it as a policy, for this reason.
    Refused(String),
}

/// What became of the policy `id`, which is in `file`; `None` while it neither serves nor has failed. The loader's state must be read before
/// the evaluator's, so that both are about the same manifest if they agree.
pub(super) fn settled(id: &PolicyId, file: &str, loader: &LoaderState, evaluator: &EvaluatorState) -> Option<Settled> {
    if let Some(failure) = loader.volume_failure.as_ref().or(evaluator.manifest_failure.as_ref()) {
        return Some(Settled::Failed(failure.clone()));
    }
    // Until the loader has read its folder, its state is not about the present content.
    if !loader.complete {
        return None;
    }
    if let Some(problem) = loader.problems.iter().find(|problem| problem.file == file) {
        return Some(Settled::Refused(format!("the loader cannot take the policy: {}", problem.message)));
    }
    let Some(policy) = loader.policies.iter().find(|policy| policy.id == *id) else {
        return Some(Settled::Refused(format!("the loader does not see the policy {id}")));
    };
    if let Some(failure) = &policy.failure {
        return Some(Settled::Failed(failure.clone()));
    }
    let module = policy.digest.filter(|_| policy.phase == Phase::Published)?;
    let serves = evaluator.current.get(id).is_some_and(|current| {
        (current.generation, &current.uid, current.digest) == (policy.generation, &policy.uid, module)
    });
    if serves {
        return Some(Settled::Serves { module, mismatches: policy.mismatches.clone() });
    }
    let is_it = |generation: i64, uid: &str| generation == policy.generation && uid == policy.uid;
    let deviation = evaluator.deviations.iter().find(|other| other.id == *id && is_it(other.generation, &other.uid));
    let refused = deviation.into_iter().flat_map(|deviation| &deviation.refused);
    // Failures that may pass are left out: for instance, an artifact that the evaluator could not use is compiled again. But nobody waits here
    // for a registry that is unreachable, and a recording never has the missing call.
    let is_over = |reason: Reason| reason == Reason::CapabilityUnavailable || !reason.class().is_retryable();
    let refused = refused.filter(|refused| refused.digest == module && refused.failure.generation == policy.generation);
    let failure = refused.map(|refused| &refused.failure).find(|failure| is_over(failure.reason))?;
    Some(Settled::Failed(failure.clone()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use portcullis_contract::{
        Current, Deviation, FailurePolicy, InputProblem, LoaderPolicy, Mode, Refused, ReplicaState,
    };

    use super::*;

    fn id() -> PolicyId {
        "cluster/a".parse().expect("an id")
    }

    fn state(loader: LoaderState, evaluator: EvaluatorState) -> Option<Settled> {
        settled(&id(), "a", &loader, &evaluator)
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
            context: Vec::new(),
            impact: None,
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
        let failure = Failure::new(generation, reason, "no", Timestamp::UNIX_EPOCH);
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
        let of = |evaluator| state(published(), evaluator);
        assert_eq!(
            of(serving(2, b"new")),
            Some(Settled::Serves { module: Digest::of(b"new"), mismatches: Vec::new() })
        );
        assert_eq!(of(serving(1, b"old")), None);
        assert_eq!(of(serving(2, b"old")), None);
        assert_eq!(of(EvaluatorState::default()), None);
        let compiles = loader(2, Phase::Compiling, None);
        assert_eq!(state(compiles, serving(2, b"new")), None);
    }

    #[test]
    fn nothing_is_believed_before_the_folder_was_read() {
        let failure = Failure::new(1, Reason::ModuleInvalid, "no", Timestamp::UNIX_EPOCH);
        for before in
            [loader(1, Phase::Published, None), loader(1, Phase::Failed, Some(failure)), LoaderState::default()]
        {
            let before = LoaderState { complete: false, ..before };
            assert_eq!(state(before, serving(1, b"new")), None);
        }
        let empty = LoaderState { complete: true, ..LoaderState::default() };
        assert!(matches!(state(empty, EvaluatorState::default()), Some(Settled::Refused(_))));
        let problem = InputProblem { file: "a".into(), message: "no".into(), since: Timestamp::UNIX_EPOCH };
        let broken = LoaderState { complete: true, problems: vec![problem], ..LoaderState::default() };
        assert!(matches!(state(broken, EvaluatorState::default()), Some(Settled::Refused(_))));
    }

    #[test]
    fn failures_are_of_this_generation_and_module() {
        let of = |evaluator| state(loader(2, Phase::Published, None), evaluator);
        assert!(matches!(of(refusing(2, b"new", Reason::SettingsInvalid)), Some(Settled::Failed(_))));
        assert_eq!(of(refusing(2, b"old", Reason::SettingsInvalid)), None);
        assert_eq!(of(refusing(1, b"new", Reason::SettingsInvalid)), None);
        assert_eq!(of(refusing(2, b"new", Reason::ArtifactCorrupt)), None, "it is made again");
        let away = of(refusing(2, b"new", Reason::CapabilityUnavailable));
        assert!(matches!(away, Some(Settled::Failed(_))), "nobody waits for it");
        let failure = Failure::new(2, Reason::ModuleInvalid, "no", Timestamp::UNIX_EPOCH);
        let failed = loader(2, Phase::Failed, Some(failure.clone()));
        assert_eq!(state(failed, EvaluatorState::default()), Some(Settled::Failed(failure)));
    }
}
