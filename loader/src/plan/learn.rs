//! What the evaluator did with the candidates: which loaded, which were refused, which artifacts must be compiled again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use portcullis_contract::{Class, Deviation, EvaluatorState, Reason, Refused, Stage};

use super::{Compilation, Plan};
use portcullis_process::Now;

impl Plan {
    /// Takes in the evaluator's state.
    pub(super) fn learn(&mut self, state: Arc<EvaluatorState>, now: Now) {
        let deviations: HashMap<_, &Deviation> =
            state.deviations.iter().map(|deviation| (&deviation.id, deviation)).collect();
        for compilation in self.artifacts.values_mut() {
            compilation.remake_wanted = false;
        }
        let mut loads = HashSet::new();
        for (id, policy) in &mut self.policies {
            if let Some(current) = state.current.get(id).filter(|current| current.uid == policy.uid) {
                policy.loaded(current.generation, current.digest);
                loads.extend(policy.modules_of(current.generation, current.digest));
            }
            let Some(deviation) = deviations.get(id).filter(|deviation| deviation.uid == policy.uid) else { continue };
            if let Some(digest) = deviation.digest.filter(|_| deviation.serving > 0) {
                policy.loaded(deviation.serving, digest);
            }
            for refused in &deviation.refused {
                if needs_an_older_one(refused.failure.reason) {
                    policy.refuse(refused.failure.generation, refused.digest, refused.failure.class());
                    continue;
                }
                let module = refused.module.unwrap_or(refused.digest);
                if let Some(compilation) = self.artifacts.get_mut(&module) {
                    loads.remove(&module);
                    compilation.refused(refused, state.manifest_number, &self.settings.retry, now);
                }
            }
        }
        for digest in loads {
            if let Some(compilation) = self.artifacts.get_mut(&digest) {
                compilation.remakes = 0;
            }
        }
        self.evaluator = Some(state);
    }
}

/// Whether an older generation must serve, as a candidate that was refused for this reason will be refused again, or, where it needs a registry or
/// an API server to load, for as long as that is unreachable.
fn needs_an_older_one(reason: Reason) -> bool {
    let is_for_good = reason.class() == Class::Final && matches!(reason.stage(), Stage::Load | Stage::Compile);
    is_for_good || reason == Reason::CapabilityUnavailable
}

impl Compilation {
    /// The evaluator refused the module. If its artifact is at fault, it is compiled again: at once the first time, then with growing pauses.
    fn refused(&mut self, refused: &Refused, manifest: u64, retry: &crate::retry::Retry, now: Now) {
        let artifact_fault = matches!(
            refused.failure.reason,
            Reason::ArtifactMissing
                | Reason::ArtifactCorrupt
                | Reason::ArtifactIncompatible
                | Reason::ArtifactUnreadable
        );
        let is_ours = self.attempts.result().is_some_and(|record| record.artifact.sha256 == refused.artifact);
        // A report about a manifest from before the last remake is out of date.
        let is_current = self.published_in.is_some_and(|number| manifest >= number);
        if !artifact_fault || !is_ours || !is_current || self.recompile {
            return;
        }
        if self.remake_at.is_some_and(|at| at > now.instant) {
            self.remake_wanted = true;
            return;
        }
        self.remakes += 1;
        self.remake_at = now.instant.checked_add(retry.bound(self.remakes));
        self.recompile = true;
        self.attempts.repeat();
    }
}
