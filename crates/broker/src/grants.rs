//! What policies may do, as the loader published it.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use portcullis_contract::{
    Candidate, Capability, ContextAwareResource, EvaluatorState, ExecutionMode, Manifest, NamedModule, PolicyId,
    is_granted,
};
use portcullis_util::lock;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::{ContextNeed, ProvideError};

/// The grants of one generation, or of one member of a policy group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grants {
    capabilities: Vec<String>,
    kinds: Vec<ContextAwareResource>,
    /// How the module is called.
    pub(crate) mode: ExecutionMode,
}

/// Generation, and the member of a policy group.
type Key = (i64, Option<String>);

type Published = HashMap<PolicyId, HashMap<Key, Known>>;

/// How long grants count once the generation is in no manifest and no evaluator is known to serve it: an evaluator follows a new
/// manifest within seconds, and requests that it has begun by then take at most 30 s more.
const KEPT: Duration = Duration::from_secs(60);
/// The size of all grants that are not in the newest manifest, in bytes.
const MOST_EARLIER: usize = 8 << 20;

/// Grants, and how long they count.
#[derive(Debug, Clone)]
struct Known {
    grants: Arc<Grants>,
    standing: Standing,
}

/// Why grants count. What is worth more comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// The newest manifest names the generation.
    Newest,
    /// An evaluator serves the generation, because it has not loaded a newer one.
    Serves,
    /// The newest manifest does not name the generation, but is not on the volume yet.
    Replaced,
    /// It was replaced on the volume then.
    Left(Reverse<Instant>),
}

impl Standing {
    /// Whether grants of this standing still count.
    fn counts(self, now: Instant) -> bool {
        match self {
            Self::Left(Reverse(left)) => now.saturating_duration_since(left) < KEPT,
            _ => true,
        }
    }
}

/// A module that an earlier loader published, and that an evaluator may still serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierModule {
    /// Its policy.
    pub policy: PolicyId,
    /// Its generation.
    pub generation: i64,
    /// The member of a policy group.
    pub member: Option<String>,
    /// The capabilities that it was granted.
    pub host_capabilities: Vec<String>,
    /// The kinds that it may read.
    pub context_aware_resources: Vec<ContextAwareResource>,
    /// How it is called.
    pub execution_mode: ExecutionMode,
}

/// The grants of all generations that may serve: those of the newest manifest, and those that this loader has published before and that
/// evaluators may still serve.
#[derive(Default)]
pub struct PublishedGrants {
    current: ArcSwap<Published>,
    /// Whether what an earlier loader published is known, as far as it can be.
    restored: watch::Sender<bool>,
    /// Counts what was published.
    changes: watch::Sender<u64>,
    /// The policies among these that are only being checked and were refused a call for this reason alone.
    refused_checks: Mutex<HashSet<PolicyId>>,
}

impl PublishedGrants {
    /// Takes what an earlier loader remembered of generations that may still serve. The manifest that it published comes next.
    pub fn remember(&self, modules: impl IntoIterator<Item = EarlierModule>, now: Instant) {
        let mut known = Published::clone(&self.current.load());
        for module in modules {
            let grants = Grants {
                capabilities: module.host_capabilities,
                kinds: module.context_aware_resources,
                mode: module.execution_mode,
            };
            let new = || Known { grants: Arc::new(grants), standing: Standing::Left(Reverse(now)) };
            known.entry(module.policy).or_default().entry((module.generation, module.member)).or_insert_with(new);
        }
        self.current.store(Arc::new(known));
    }

    /// Takes a manifest that is on the volume, or about to be, while nothing is known of the evaluator.
    pub fn publish(&self, manifest: &Manifest) {
        self.replace(manifest, None, Instant::now());
    }

    /// Takes a manifest that is about to be published in place of the last. The evaluator's state says which earlier generations serve.
    pub fn replace(&self, manifest: &Manifest, evaluator: Option<&EvaluatorState>, now: Instant) {
        let mut newest = newest(manifest);
        carry_over(&mut newest, &self.current.load(), evaluator, now);
        lock(&self.refused_checks).retain(|id| newest.contains_key(id));
        self.current.store(Arc::new(newest));
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Takes in which generations the evaluator serves. Without this, what a deleted policy read would be watched until the next manifest.
    pub fn follow(&self, evaluator: &EvaluatorState, now: Instant) {
        let current = self.current.load();
        if current.values().flat_map(HashMap::values).all(|known| known.standing == Standing::Newest) {
            return;
        }
        let (serving, mut known) = (serving(evaluator), Published::clone(&current));
        known.retain(|policy, generations| {
            generations.retain(|(generation, _), known| {
                known.standing = match known.standing {
                    Standing::Newest => Standing::Newest,
                    _ if serving.get(policy) == Some(generation) => Standing::Serves,
                    Standing::Serves => Standing::Left(Reverse(now)),
                    other => other,
                };
                known.standing.counts(now)
            });
            !generations.is_empty()
        });
        self.current.store(Arc::new(known));
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// The manifest that was taken last is on the volume.
    pub fn written(&self, now: Instant) {
        let mut known = Published::clone(&self.current.load());
        for known in known.values_mut().flat_map(HashMap::values_mut) {
            if known.standing == Standing::Replaced {
                known.standing = Standing::Left(Reverse(now));
            }
        }
        self.current.store(Arc::new(known));
    }

    /// Whether a policy that is only being checked was refused a call that it will be allowed once it is stored.
    pub fn was_refused_as_check(&self, id: &PolicyId) -> bool {
        lock(&self.refused_checks).contains(id)
    }

    /// Takes note of such a refusal.
    pub(crate) fn refused_as_check(&self, id: &PolicyId) {
        lock(&self.refused_checks).insert(id.clone());
    }

    /// What an earlier loader published has been taken, or cannot be had.
    pub fn set_restored(&self) {
        self.restored.send_replace(true);
    }

    /// Waits until what an earlier loader published is known, as far as it can be, but no longer than `limit`.
    pub(crate) async fn restored(&self, limit: Duration) {
        // It cannot end before the limit otherwise: the sender is here.
        let _ = timeout(limit, self.restored.subscribe().wait_for(|restored| *restored)).await;
    }

    /// What was published, as it changes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The objects that the generations of the newest manifest read, and those that serve.
    pub(crate) fn needs(&self) -> HashSet<ContextNeed> {
        let current = self.current.load();
        // A policy that is only being checked gets no objects of the cluster, so it starts no watch.
        let each = current
            .iter()
            .filter(|(policy, _)| !policy.is_check())
            .flat_map(|(policy, generations)| generations.values().map(move |known| (policy, known)))
            .filter(|(_, known)| known.standing <= Standing::Serves)
            .map(|(policy, known)| (policy, &known.grants));
        let needs =
            each.flat_map(|(policy, grants)| ContextNeed::of(policy, grants.mode, &grants.capabilities, &grants.kinds));
        needs.collect()
    }

    /// The grants of a generation of a policy, or of a member of it.
    pub(crate) fn grants(&self, policy: &PolicyId, generation: i64, member: Option<&str>) -> Option<Arc<Grants>> {
        let (current, key) = (self.current.load(), (generation, member.map(str::to_owned)));
        let known = current.get(policy)?.get(&key)?;
        // Old ones are removed only when a manifest is published or the evaluator's state changes, so the time is checked here too.
        known.standing.counts(Instant::now()).then(|| Arc::clone(&known.grants))
    }

    /// Whether any policy may read a kind, for what need not be watched any longer. Requests of generations that have left get a watch, but do
    /// not keep it.
    pub(crate) fn reads(&self, kind: &ContextAwareResource) -> bool {
        let current = self.current.load();
        let mut all = current.iter().filter(|(id, _)| !id.is_check()).flat_map(|(_, known)| known.values());
        all.any(|known| known.standing <= Standing::Replaced && known.grants.kinds.contains(kind))
    }
}

/// The grants of a manifest.
fn newest(manifest: &Manifest) -> Published {
    let known = |generation: i64, named: NamedModule<'_>| {
        let grants = Grants {
            capabilities: named.module.host_capabilities.clone(),
            kinds: named.module.context_aware_resources.clone(),
            mode: named.module.execution_mode,
        };
        let known = Known { grants: Arc::new(grants), standing: Standing::Newest };
        ((generation, named.member.map(str::to_owned)), known)
    };
    let entries = manifest.policies.iter().map(|policy| {
        let of = |candidate: &Candidate| {
            let generation = candidate.generation;
            candidate.modules().into_iter().map(move |named| known(generation, named)).collect::<Vec<_>>()
        };
        (policy.id.clone(), policy.candidates.iter().flat_map(of).collect())
    });
    entries.collect()
}

/// Adds the grants that have been published before and may still be needed.
fn carry_over(newest: &mut Published, earlier: &Published, evaluator: Option<&EvaluatorState>, now: Instant) {
    let serving = evaluator.map(serving).unwrap_or_default();
    let each = earlier.iter().flat_map(|(policy, known)| known.iter().map(move |(key, known)| (policy, key, known)));
    let mut each: Vec<_> = each
        .filter(|(policy, key, _)| newest.get(*policy).is_none_or(|known| !known.contains_key(*key)))
        .map(|(policy, key, known)| {
            let standing = match known.standing {
                _ if serving.get(policy) == Some(&key.0) => Standing::Serves,
                Standing::Newest | Standing::Serves => Standing::Replaced,
                other => other,
            };
            (policy, key, Known { standing, grants: Arc::clone(&known.grants) })
        })
        .filter(|(_, _, known)| known.standing.counts(now))
        .collect();
    each.sort_by_key(|(_, _, known)| known.standing);
    let mut room = MOST_EARLIER;
    for (policy, key, known) in each {
        let Some(left) = room.checked_sub(known.grants.size() + policy.as_str().len() + 64) else { return };
        room = left;
        newest.entry(policy.clone()).or_default().insert(key.clone(), known);
    }
}

/// The generations that an evaluator serves.
fn serving(state: &EvaluatorState) -> HashMap<&PolicyId, i64> {
    let deviations = state.deviations.iter().map(|deviation| (&deviation.id, deviation.serving));
    deviations.chain(state.current.iter().map(|(id, current)| (id, current.generation))).collect()
}

impl Grants {
    /// About how much memory they take, in bytes.
    fn size(&self) -> usize {
        let capabilities = self.capabilities.iter().map(|path| path.len() + size_of::<String>());
        let kinds = self.kinds.iter().map(|kind| kind.api_version.len() + kind.kind.len() + 2 * size_of::<String>());
        capabilities.chain(kinds).sum::<usize>() + size_of::<Self>()
    }

    /// Checks that the policy has the grant for a capability, that the operator allows the grant to policies of a namespace, and that the policy
    /// is not only being checked: a spec to check comes from the evaluator, and no user who may store policies has decided on its grants yet.
    ///
    /// # Errors
    /// When the grant is missing, not allowed, or does not count yet.
    pub(crate) fn check(
        &self,
        policy: &PolicyId,
        capability: Capability,
        namespaced: &[String],
    ) -> Result<(), ProvideError> {
        if !is_granted(&self.capabilities, capability.path()) {
            return Err(ProvideError::NotGranted(capability.path()));
        }
        if policy.namespace().is_some() && !is_granted(namespaced, capability.path()) {
            return Err(ProvideError::NotForNamespaces(capability.path()));
        }
        if policy.is_check() {
            return Err(ProvideError::NotForChecks(capability.path()));
        }
        Ok(())
    }

    /// The kinds that the policy may read.
    ///
    /// # Errors
    /// When the policy names kinds but may read none, because it belongs to a namespace or is only being checked.
    pub(crate) fn kinds(&self, policy: &PolicyId) -> Result<&[ContextAwareResource], ProvideError> {
        self.kinds.iter().try_for_each(|kind| self.check_kind(policy, kind))?;
        Ok(&self.kinds)
    }

    /// Checks that the policy may read a kind.
    ///
    /// # Errors
    /// When it may not.
    pub(crate) fn check_kind(&self, policy: &PolicyId, kind: &ContextAwareResource) -> Result<(), ProvideError> {
        if self.kinds.contains(kind) && policy.namespace().is_none() && !policy.is_check() {
            Ok(())
        } else {
            Err(ProvideError::KindNotGranted(kind.clone()))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
