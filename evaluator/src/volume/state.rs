//! What this evaluator reports about itself at `/v1/state`.

use std::collections::BTreeMap;

use portcullis_contract::{Current, Deviation, EvaluatorState, Failing, Failure, Program, ReplicaState};

use crate::http::path_keys::AcceptedKeys;
use crate::volume::reload::PolicyState;

/// The name and versions of this program.
fn program() -> Program {
    Program {
        name: "portcullis-evaluator".into(),
        version: portcullis_process::VERSION.into(),
        engine: portcullis_engine::ENGINE.into(),
    }
}

/// Sets the version of a state, for [`portcullis_process::StateFeed`].
pub fn numbered(state: &mut EvaluatorState, version: u64) {
    state.version = version;
}

/// The part of the state that is not about single policies.
#[derive(Debug, Clone)]
pub(crate) struct Overall {
    /// Whether the start gate is open.
    pub(crate) ready: bool,
    /// Whether the program has been asked to end.
    pub(crate) draining: bool,
    /// The number of the last manifest that was applied completely; 0 before the first.
    pub(crate) applied: u64,
    /// Why the newest manifest cannot be used; none if it can.
    pub(crate) manifest_failure: Option<Failure>,
    /// The ids of the accepted keys of webhook paths; empty where paths have none.
    pub(crate) path_keys: Vec<String>,
}

impl Overall {
    /// The state before the first manifest. It has the ids of the keys from the start: without any, the controller takes the replica for one
    /// of an earlier release and registers plain paths.
    pub(crate) fn new(keys: Option<&AcceptedKeys>) -> Self {
        let path_keys = keys.map(AcceptedKeys::ids).unwrap_or_default();
        Self { ready: false, draining: false, applied: 0, manifest_failure: None, path_keys }
    }
}

/// The document at `/v1/state`.
pub(crate) fn document<'a>(overall: &Overall, policies: impl Iterator<Item = &'a PolicyState>) -> EvaluatorState {
    let (mut current, mut deviations, mut failing) = (BTreeMap::new(), Vec::new(), Vec::new());
    for policy in policies {
        let (id, uid) = (policy.entry.id.clone(), policy.entry.uid.clone());
        if let Some((since, reason)) = policy.errors.failing() {
            failing.push(Failing { id: id.clone(), uid: uid.clone(), since, reason });
        }
        match (policy.state(), &policy.loaded) {
            (ReplicaState::Current, Some(loaded)) => {
                let (generation, digest, since) = (loaded.generation(), loaded.digest(), policy.since);
                current.insert(id, Current { uid, generation, digest, members: loaded.members().clone(), since });
            }
            (state, loaded) => deviations.push(Deviation {
                id,
                uid,
                generation: policy.entry.generation,
                serving: loaded.as_ref().map_or(0, |loaded| loaded.generation()),
                digest: loaded.as_ref().map(|loaded| loaded.digest()),
                members: loaded.as_ref().map(|loaded| loaded.members().clone()).unwrap_or_default(),
                state,
                failure: policy.failure(),
                refused: refused(policy),
                since: policy.since,
            }),
        }
    }
    EvaluatorState {
        version: 0,
        program: program(),
        ready: overall.ready,
        draining: overall.draining,
        manifest_number: overall.applied,
        manifest_failure: overall.manifest_failure.clone(),
        current,
        deviations,
        failing,
        path_keys: overall.path_keys.clone(),
    }
}

/// The refused candidates, in the order of the manifest, so that equal states give equal documents.
fn refused(policy: &PolicyState) -> Vec<portcullis_contract::Refused> {
    let refusals = policy.keys.iter().filter_map(|key| policy.known.refused.get(key));
    refusals.map(|refusal| refusal.refused.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evaluator_that_waits_for_keys_says_so_before_it_has_read_anything() {
        let keys = AcceptedKeys::new(std::path::PathBuf::from("/nonexistent"));
        let first = |keys| document(&Overall::new(keys), std::iter::empty()).path_keys;
        assert_eq!(first(Some(&*keys)), ["none"]);
        assert_eq!(first(None), Vec::<String>::new());
    }
}
