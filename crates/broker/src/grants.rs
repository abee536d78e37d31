//! What policies may do, as the loader published it.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use portcullis_contract::{
    Candidate, Capability, ContextAwareResource, EvaluatorState, ExecutionMode, Manifest, NamedModule, PolicyId,
    is_granted,
};
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
        let mut all = current.values().flat_map(HashMap::values);
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

    /// Checks that the policy has the grant for a capability, and that the operator allows the grant to policies of a namespace.
    ///
    /// # Errors
    /// When the grant is missing or not allowed.
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
        Ok(())
    }

    /// The kinds that the policy may read.
    ///
    /// # Errors
    /// When the policy names kinds but belongs to a namespace, so that it may read none.
    pub(crate) fn kinds(&self, policy: &PolicyId) -> Result<&[ContextAwareResource], ProvideError> {
        self.kinds.iter().try_for_each(|kind| self.check_kind(policy, kind))?;
        Ok(&self.kinds)
    }

    /// Checks that the policy may read a kind.
    ///
    /// # Errors
    /// When it may not.
    pub(crate) fn check_kind(&self, policy: &PolicyId, kind: &ContextAwareResource) -> Result<(), ProvideError> {
        if self.kinds.contains(kind) && policy.namespace().is_none() {
            Ok(())
        } else {
            Err(ProvideError::KindNotGranted(kind.clone()))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// A manifest with one candidate for each of these: policy, generation, capabilities, kinds of `v1`.
    pub(crate) fn manifest(candidates: &[(&str, i64, &[&str], &[&str])]) -> Manifest {
        let policies = candidates.iter().map(|(id, generation, capabilities, kinds)| {
            let kinds: Vec<_> = kinds.iter().map(|kind| json!({"apiVersion": "v1", "kind": kind})).collect();
            let digest = format!("sha256:{}", "0".repeat(64));
            json!({
                "id": id, "uid": "u", "generation": generation, "mode": "protect", "failurePolicy": "Fail", "failures": [],
                "candidates": [{
                    "generation": generation, "digest": digest, "executionMode": "wasi", "settings": {}, "mutating": false,
                    "artifact": {"file": "a", "sha256": digest, "size": 1},
                    "hostCapabilities": capabilities, "contextAwareResources": kinds,
                }],
            })
        });
        let policies: Vec<_> = policies.collect();
        serde_json::from_value(json!({"number": 1, "policies": policies, "groups": []})).expect("a manifest")
    }

    fn id(text: &str) -> PolicyId {
        text.parse().expect("an id")
    }

    /// The state of an evaluator that serves this generation of `cluster/a` although there is a newer one.
    fn serves(generation: i64) -> EvaluatorState {
        let deviation = json!({"id": "cluster/a", "uid": "u", "generation": 2, "serving": generation, "state": "Previous",
            "since": "2026-01-01T00:00:00Z"});
        let deviations = vec![serde_json::from_value(deviation).expect("a deviation")];
        EvaluatorState { deviations, ..EvaluatorState::default() }
    }

    /// Whether each of these generations of `cluster/a` has a capability; `None` where its grants are not known.
    fn known<const N: usize>(published: &PublishedGrants, generations: [i64; N]) -> [Option<bool>; N] {
        generations.map(|generation| {
            let grants = published.grants(&id("cluster/a"), generation, None)?;
            Some(grants.check(&id("cluster/a"), Capability::CanI, &[]).is_ok())
        })
    }

    const FIRST: (&str, i64, &[&str], &[&str]) = ("cluster/a", 1, &["kubernetes/*"], &["Pod"]);
    const SECOND: (&str, i64, &[&str], &[&str]) = ("cluster/a", 2, &["oci/*"], &[]);

    #[test]
    fn a_generation_has_its_own_grants_as_long_as_it_may_serve() {
        let (published, begun) = (PublishedGrants::default(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        published.replace(&manifest(&[FIRST]), None, at(0));
        assert_eq!(known(&published, [1, 2]), [Some(true), None]);
        // The newest generation cannot be loaded, for long, and the volume takes no manifest for a while.
        for second in 1..1000 {
            published.replace(&manifest(&[SECOND]), Some(&serves(1)), at(second));
        }
        published.written(at(1000));
        published.replace(&manifest(&[SECOND]), Some(&serves(1)), at(2000));
        assert_eq!(known(&published, [1, 2]), [Some(true), Some(false)], "it still serves");
        let pod = ContextAwareResource { api_version: "v1".to_owned(), kind: "Pod".to_owned() };
        assert!(published.needs().len() == 1 && published.reads(&pod), "its objects are still watched");
        // Once it no longer serves, requests may be under way.
        published.replace(&manifest(&[SECOND]), Some(&serves(2)), at(3000));
        published.written(at(3001));
        published.replace(&manifest(&[SECOND]), Some(&serves(2)), at(3060));
        assert_eq!(known(&published, [1, 2]), [Some(true), Some(false)], "requests may be under way");
        assert!(published.needs().is_empty() && !published.reads(&pod));
        published.replace(&manifest(&[SECOND]), Some(&serves(2)), at(3062));
        assert_eq!(known(&published, [1, 2]), [None, Some(false)]);
    }

    #[test]
    fn grants_of_a_deleted_policy_end_in_time_although_nothing_else_happens() {
        let published = PublishedGrants::default();
        published.publish(&manifest(&[FIRST]));
        published.publish(&manifest(&[]));
        assert_eq!(known(&published, [1]), [Some(true)], "the volume does not have the manifest yet");
        published.written(Instant::now());
        assert_eq!(known(&published, [1]), [Some(true)], "requests may be under way");

        published.publish(&manifest(&[FIRST]));
        published.publish(&manifest(&[]));
        published.written(Instant::now().checked_sub(2 * KEPT).expect("a time"));
        assert_eq!(known(&published, [1]), [None]);
    }

    #[test]
    fn what_a_deleted_policy_read_is_watched_until_the_evaluator_no_longer_serves_it() {
        let (published, begun) = (PublishedGrants::default(), Instant::now());
        published.publish(&manifest(&[FIRST]));
        published.replace(&manifest(&[]), Some(&serves(1)), begun);
        published.written(begun);
        published.follow(&serves(1), begun + 2 * KEPT);
        assert_eq!((known(&published, [1]), published.needs().len()), ([Some(true)], 1), "it still serves");
        published.follow(&EvaluatorState::default(), begun + 3 * KEPT);
        assert_eq!((known(&published, [1]), published.needs().len()), ([Some(true)], 0), "requests may be under way");
        published.follow(&EvaluatorState::default(), begun + 4 * KEPT);
        assert_eq!(known(&published, [1]), [None]);
    }

    #[test]
    fn what_was_never_published_is_not_known_whatever_the_evaluator_says() {
        let (published, now) = (PublishedGrants::default(), Instant::now());
        published.replace(&manifest(&[SECOND]), Some(&serves(1)), now);
        assert_eq!(known(&published, [1, 2]), [None, Some(false)]);
    }

    #[test]
    fn a_restarted_loader_knows_the_generation_that_serves() {
        let (published, now) = (PublishedGrants::default(), Instant::now());
        let remembered = EarlierModule {
            policy: id("cluster/a"),
            generation: 1,
            member: None,
            host_capabilities: vec!["kubernetes/*".to_owned()],
            context_aware_resources: Vec::new(),
            execution_mode: ExecutionMode::Wasi,
        };
        let in_the_manifest = EarlierModule { generation: 2, ..remembered.clone() };
        published.remember([remembered, in_the_manifest], now);
        published.replace(&manifest(&[SECOND]), None, now);
        assert_eq!(known(&published, [1, 2]), [Some(true), Some(false)], "the manifest counts more");
        published.replace(&manifest(&[SECOND]), Some(&serves(1)), now + 2 * KEPT);
        assert_eq!(known(&published, [1, 2]), [Some(true), Some(false)]);
        published.replace(&manifest(&[SECOND]), Some(&serves(2)), now + 3 * KEPT);
        published.written(now + 3 * KEPT);
        published.replace(&manifest(&[SECOND]), Some(&serves(2)), now + 4 * KEPT);
        assert_eq!(known(&published, [1, 2]), [None, Some(false)]);
    }

    #[test]
    fn what_is_kept_of_earlier_generations_has_a_limit_and_what_serves_comes_first() {
        let (published, now) = (PublishedGrants::default(), Instant::now());
        let long = "x".repeat(MOST_EARLIER / 4);
        let (long, none): ([&str; 1], [&str; 0]) = ([&long], []);
        let policies = ["cluster/a", "cluster/b", "cluster/c", "cluster/d", "cluster/e"];
        published.replace(&manifest(&policies.map(|policy| (policy, 1, &long[..], &none[..]))), None, now);
        published.replace(&manifest(&[]), Some(&serves(1)), now);
        let kept = policies.map(|policy| published.grants(&id(policy), 1, None).is_some());
        assert!(kept[0], "it serves");
        assert_eq!(kept.iter().filter(|kept| **kept).count(), 3);
    }

    #[test]
    fn policies_of_a_namespace_have_what_the_installation_allows_and_no_kinds() {
        let published = PublishedGrants::default();
        published.publish(&manifest(&[("namespaced/team/a", 1, &["*"], &["Pod"])]));
        let policy = id("namespaced/team/a");
        let grants = published.grants(&policy, 1, None).expect("published");
        let denied = grants.check(&policy, Capability::DnsLookupHost, &[]).expect_err("denied").to_string();
        assert!(denied.contains("--namespaced-capability"), "{denied}");
        assert_eq!(grants.check(&policy, Capability::DnsLookupHost, &["net/*".to_owned()]), Ok(()));
        let pod = ContextAwareResource { api_version: "v1".to_owned(), kind: "Pod".to_owned() };
        assert!(grants.check_kind(&policy, &pod).is_err());
        assert!(published.reads(&pod));
    }
}
