//! The figures of the last checks. A check runs before its policy is stored, which may never happen. Once the policy is stored with the
//! spec that was checked, the figures of the check are shown in its status. Pure.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use portcullis_contract::{Digest, ImpactFigures, PolicyId, Tenant};

/// Most specs whose figures are remembered.
const MOST: usize = 100;
/// Most specs of one policy: the stored one, and a few that users try.
const MOST_OF_POLICY: usize = 4;

/// The figures of specs, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Memory(VecDeque<Entry>);

#[derive(Debug)]
struct Entry {
    policy: PolicyId,
    fingerprint: Digest,
    /// The uid of the stored policy of this name, whatever its spec; `None` until one was seen.
    uid: Option<String>,
    figures: ImpactFigures,
}

/// A policy as the API server has stored it.
#[derive(Debug, Clone, Copy)]
pub(in crate::checks) struct Stored<'a> {
    /// Its id.
    pub(in crate::checks) id: &'a PolicyId,
    /// The object's uid.
    pub(in crate::checks) uid: &'a str,
    /// Its newest generation.
    pub(in crate::checks) generation: i64,
    /// The fingerprint of that generation's spec; `None` where the spec cannot be read.
    pub(in crate::checks) fingerprint: Option<Digest>,
}

impl Memory {
    /// Remembers the figures of a spec, in place of earlier ones of the same spec. When there are too many, the oldest entry of the same policy
    /// is dropped, or the oldest of the tenant with the most entries.
    pub(in crate::checks) fn remember(&mut self, policy: PolicyId, fingerprint: Digest, figures: ImpactFigures) {
        self.0.retain(|entry| entry.policy != policy || entry.fingerprint != fingerprint);
        let own = |entry: &Entry| entry.policy == policy;
        if self.0.iter().filter(|entry| own(entry)).count() >= MOST_OF_POLICY
            && let Some(oldest) = self.0.iter().position(own)
        {
            self.0.remove(oldest);
        }
        self.0.push_back(Entry { policy, fingerprint, uid: None, figures });
        if self.0.len() > MOST
            && let Some(oldest) = self.oldest_of_most()
        {
            self.0.remove(oldest);
        }
    }

    /// Takes the stored policies, and returns the figures of those whose spec was checked. The figures of a policy that was deleted, or deleted
    /// and created again, are forgotten. Those of a policy that was never stored are kept, as it may be stored in a moment.
    pub(in crate::checks) fn settle<'s>(
        &mut self,
        stored: impl Iterator<Item = Stored<'s>>,
    ) -> Vec<(Stored<'s>, ImpactFigures)> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let known: BTreeSet<PolicyId> = self.0.iter().map(|entry| entry.policy.clone()).collect();
        let stored: BTreeMap<&PolicyId, Stored<'s>> =
            stored.filter(|policy| known.contains(policy.id)).map(|policy| (policy.id, policy)).collect();
        self.0.retain_mut(|entry| {
            let uid = stored.get(&entry.policy).map(|policy| policy.uid);
            match &entry.uid {
                Some(known) => uid == Some(known.as_str()),
                None => {
                    entry.uid = uid.map(str::to_owned);
                    true
                }
            }
        });
        let is_same = |entry: &Entry| {
            let policy = stored.get(&entry.policy).filter(|policy| policy.fingerprint == Some(entry.fingerprint))?;
            Some((*policy, entry.figures.clone()))
        };
        self.0.iter().filter_map(is_same).collect()
    }

    /// The index of the oldest entry of the tenant that has the most entries for its weight. If several tenants have, the oldest entry of them all.
    fn oldest_of_most(&self) -> Option<usize> {
        let mut uses: BTreeMap<Tenant, u64> = BTreeMap::new();
        for entry in &self.0 {
            *uses.entry(Tenant::of(&entry.policy)).or_default() += 1;
        }
        let compare = |(one, its): (&Tenant, &u64), (other, theirs): (&Tenant, &u64)| {
            (its * other.weight()).cmp(&(theirs * one.weight()))
        };
        let most = uses.iter().max_by(|one, other| compare(*one, *other))?;
        let has_most = |entry: &Entry| {
            uses.get_key_value(&Tenant::of(&entry.policy)).is_some_and(|own| compare(own, most) == Ordering::Equal)
        };
        self.0.iter().position(has_most)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::figures_of;
    use super::*;

    fn id(text: &str) -> PolicyId {
        text.parse().expect("an id")
    }

    fn spec(text: &str) -> Digest {
        Digest::of(text.as_bytes())
    }

    fn remember(memory: &mut Memory, policy: &str, text: &str, denied: u64) {
        memory.remember(id(policy), spec(text), figures_of(denied));
    }

    /// The figures of stored policies, each given as `(id, uid, spec)`: the id, and how many objects would be denied.
    fn settled(memory: &mut Memory, stored: &[(&str, &str, &str)]) -> Vec<(String, u64)> {
        let ids: Vec<_> = stored.iter().map(|(policy, ..)| id(policy)).collect();
        let policies = stored.iter().zip(&ids).map(|((_, uid, text), id)| Stored {
            id,
            uid,
            generation: 3,
            fingerprint: (!text.is_empty()).then(|| spec(text)),
        });
        let found = memory.settle(policies);
        assert!(found.iter().all(|(policy, _)| policy.generation == 3));
        found.into_iter().map(|(policy, figures)| (policy.id.to_string(), figures.denied)).collect()
    }

    fn known(memory: &Memory, namespace: &str) -> Vec<String> {
        let own = memory.0.iter().filter(|entry| entry.policy.namespace().unwrap_or_default() == namespace);
        own.map(|entry| entry.policy.name().to_owned()).collect()
    }

    const A: &str = "cluster/a";

    fn of_a(denied: u64) -> Vec<(String, u64)> {
        vec![(A.to_owned(), denied)]
    }

    #[test]
    fn only_the_spec_that_was_checked_has_the_figures() {
        let mut memory = Memory::default();
        assert!(settled(&mut memory, &[(A, "u", "one")]).is_empty());
        remember(&mut memory, A, "one", 12);
        remember(&mut memory, "cluster/b", "one", 7);
        assert_eq!(settled(&mut memory, &[(A, "u", "one")]), of_a(12));
        // A dry run of an edit does not change the figures of the stored spec.
        remember(&mut memory, A, "two", 500);
        assert_eq!(settled(&mut memory, &[(A, "u", "one")]), of_a(12));
        assert_eq!(settled(&mut memory, &[(A, "u", "two")]), of_a(500));
        assert!(settled(&mut memory, &[(A, "u", "three")]).is_empty(), "nobody has checked it");
        assert!(settled(&mut memory, &[(A, "u", "")]).is_empty(), "it cannot be read");
        remember(&mut memory, A, "two", 501);
        assert_eq!(settled(&mut memory, &[(A, "u", "two")]), of_a(501), "the last check counts");
    }

    #[test]
    fn a_policy_that_is_gone_or_was_made_again_is_forgotten_and_one_on_its_way_is_not() {
        let mut memory = Memory::default();
        remember(&mut memory, A, "one", 1);
        assert!(settled(&mut memory, &[]).is_empty(), "it is not stored yet");
        assert_eq!(settled(&mut memory, &[(A, "u", "one")]), of_a(1));
        remember(&mut memory, A, "two", 2);
        assert_eq!(settled(&mut memory, &[(A, "u", "one")]), of_a(1));
        assert!(settled(&mut memory, &[]).is_empty());
        assert!(memory.0.is_empty(), "also what was only tried");

        remember(&mut memory, A, "one", 1);
        assert_eq!(settled(&mut memory, &[(A, "u", "one")]), of_a(1));
        assert!(settled(&mut memory, &[(A, "later", "one")]).is_empty(), "of an earlier policy of this name");
        remember(&mut memory, A, "one", 3);
        assert_eq!(settled(&mut memory, &[(A, "later", "one")]), of_a(3));
    }

    #[test]
    fn a_flood_takes_from_its_own_tenant() {
        let mut memory = Memory::default();
        remember(&mut memory, A, "one", 12);
        for number in 0..10 {
            remember(&mut memory, &format!("namespaced/team/p{number}"), "one", 1);
        }
        for number in 0..1000 {
            remember(&mut memory, &format!("namespaced/flood/p{number}"), "one", 1);
            assert!(memory.0.len() <= MOST);
        }
        assert_eq!((known(&memory, "").len(), known(&memory, "team").len()), (1, 10));
        let flood = known(&memory, "flood");
        assert_eq!((flood.len(), flood[0].as_str()), (MOST - 11, "p911"), "the oldest of them went");
        // ClusterPolicies may have as many entries as two namespaces.
        for number in 0..1000 {
            remember(&mut memory, &format!("cluster/c{number}"), "one", 1);
        }
        assert_eq!(["", "team", "flood"].map(|of| known(&memory, of).len()), [60, 10, 30]);
    }

    #[test]
    fn of_many_tenants_with_one_each_the_oldest_goes() {
        let mut memory = Memory::default();
        for number in 0..=MOST {
            remember(&mut memory, &format!("namespaced/n{number}/a"), "one", 1);
        }
        assert_eq!(memory.0.len(), MOST);
        assert_eq!((known(&memory, "n0").len(), known(&memory, "n1").len()), (0, 1));
        assert_eq!(known(&memory, &format!("n{MOST}")).len(), 1);
    }

    #[test]
    fn a_flood_about_one_policy_leaves_the_others_of_its_tenant() {
        let mut memory = Memory::default();
        remember(&mut memory, A, "one", 12);
        for number in 0..1000 {
            remember(&mut memory, "cluster/b", &format!("spec {number}"), number);
        }
        assert_eq!(memory.0.len(), 1 + MOST_OF_POLICY);
        assert_eq!(settled(&mut memory, &[(A, "u", "one"), ("cluster/b", "v", "spec 996")]).len(), 2);
        assert_eq!(settled(&mut memory, &[(A, "u", "one"), ("cluster/b", "v", "spec 995")]), of_a(12));
    }
}
