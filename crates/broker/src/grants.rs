//! What policies may do, as the loader published it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use portcullis_contract::{
    Candidate, Capability, ContextAwareResource, ExecutionMode, Manifest, NamedModule, PolicyId, is_granted,
};

use portcullis_process::set_if_new;
use tokio::sync::watch;

use crate::{ContextNeed, Contexts, ProvideError};

/// The grants of one generation, or of one member of a policy group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grants {
    capabilities: Vec<String>,
    kinds: Vec<ContextAwareResource>,
    /// How the module is called.
    pub(crate) mode: ExecutionMode,
}

type Published = HashMap<PolicyId, HashMap<(i64, Option<String>), Arc<Grants>>>;

/// The grants of all generations that may serve: those of the newest manifest, and of the one before, which evaluators may still follow.
#[derive(Default)]
pub struct PublishedGrants {
    current: ArcSwap<[Arc<Published>; 2]>,
    /// Counts what was published.
    changes: watch::Sender<u64>,
    contexts: watch::Sender<Arc<Contexts>>,
}

impl PublishedGrants {
    /// Takes a manifest that is about to be published.
    pub fn publish(&self, manifest: &Manifest) {
        let grants = |generation: i64, named: NamedModule<'_>| {
            let grants = Grants {
                capabilities: named.module.host_capabilities.clone(),
                kinds: named.module.context_aware_resources.clone(),
                mode: named.module.execution_mode,
            };
            ((generation, named.member.map(str::to_owned)), Arc::new(grants))
        };
        let newest = manifest.policies.iter().map(|policy| {
            let of = |candidate: &Candidate| {
                let generation = candidate.generation;
                candidate.modules().into_iter().map(move |named| grants(generation, named)).collect::<Vec<_>>()
            };
            (policy.id.clone(), policy.candidates.iter().flat_map(of).collect())
        });
        let newest = Arc::new(newest.collect());
        let before = Arc::clone(&self.current.load()[0]);
        self.current.store(Arc::new([newest, before]));
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// What is wrong with the objects that policies read, as it changes.
    pub fn contexts(&self) -> watch::Receiver<Arc<Contexts>> {
        self.contexts.subscribe()
    }

    /// Says what is wrong with the objects that policies read.
    pub(crate) fn set_contexts(&self, contexts: Contexts) {
        set_if_new(&self.contexts, Arc::new(contexts));
    }

    /// What was published, as it changes.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The objects that the generations of the newest manifest read.
    pub(crate) fn needs(&self) -> HashSet<ContextNeed> {
        let current = self.current.load();
        // A policy that is only being checked gets no objects of the cluster, so it starts no watch.
        let each = current[0]
            .iter()
            .filter(|(policy, _)| !policy.is_check())
            .flat_map(|(policy, generations)| generations.values().map(move |grants| (policy, grants)));
        let needs =
            each.flat_map(|(policy, grants)| ContextNeed::of(policy, grants.mode, &grants.capabilities, &grants.kinds));
        needs.collect()
    }

    /// The grants of a generation of a policy, or of a member of it.
    pub(crate) fn grants(&self, policy: &PolicyId, generation: i64, member: Option<&str>) -> Option<Arc<Grants>> {
        let (current, key) = (self.current.load(), (generation, member.map(str::to_owned)));
        current.iter().find_map(|published| published.get(policy)?.get(&key).cloned())
    }

    /// The kinds that any policy may read, for what need not be watched any longer.
    pub(crate) fn reads(&self, kind: &ContextAwareResource) -> bool {
        let current = self.current.load();
        let mut all = current.iter().flat_map(|published| published.values()).flat_map(HashMap::values);
        all.any(|grants| grants.kinds.contains(kind))
    }
}

impl Grants {
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

    #[test]
    fn a_generation_has_its_own_grants_as_long_as_it_may_serve() {
        let published = PublishedGrants::default();
        let check = |generation| {
            let grants = published.grants(&id("cluster/a"), generation, None)?;
            Some(grants.check(&id("cluster/a"), Capability::CanI, &[]).is_ok())
        };
        published.publish(&manifest(&[("cluster/a", 1, &["kubernetes/*"], &[])]));
        assert_eq!((check(1), check(2)), (Some(true), None));
        published.publish(&manifest(&[("cluster/a", 2, &["oci/*"], &[])]));
        assert_eq!((check(1), check(2)), (Some(true), Some(false)), "evaluators may still follow the one before");
        published.publish(&manifest(&[("cluster/a", 2, &["oci/*"], &[])]));
        assert_eq!((check(1), check(2)), (None, Some(false)));
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
