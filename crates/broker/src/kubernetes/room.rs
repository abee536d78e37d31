//! Which collection ends where there is no room for all. Pure.

use std::collections::HashMap;

use portcullis_contract::{PolicyId, Tenant};

/// What the collections of a tenant may take without being ended for one that began before a guest asked, in bytes.
const SMALL: u64 = 8 << 20;

/// A collection, and what it takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held<'a, T> {
    pub(super) collection: T,
    /// The policy that asked first; none if it began before a guest asked.
    pub(super) begun_by: Option<&'a PolicyId>,
    pub(super) bytes: u64,
}

/// The collection that ends, as one that `taker` began grew: the largest one of the policy that has the most, in the tenant that has the
/// most by its weight. So nobody gives way to one that has more. Those that began before a guest asked are for all policies and stay; none if
/// there are only such.
pub(super) fn in_the_way<T: Copy>(held: &[Held<'_, T>], taker: Option<&PolicyId>) -> Option<T> {
    let (mut tenants, mut policies) = (HashMap::<Tenant, u64>::new(), HashMap::<&PolicyId, u64>::new());
    let asked = || held.iter().filter_map(|one| Some((one.begun_by?, one))).filter(|(_, one)| one.bytes > 0);
    for (policy, one) in asked() {
        *tenants.entry(Tenant::of(policy)).or_default() += one.bytes;
        *policies.entry(policy).or_default() += one.bytes;
    }
    // Where two have the same, the one that grew gives way.
    let own = taker.map(Tenant::of);
    let (tenant, _) = tenants
        .iter()
        .filter(|(_, bytes)| taker.is_some() || **bytes > SMALL)
        .max_by_key(|(tenant, bytes)| (**bytes / tenant.weight(), own.as_ref() == Some(*tenant)))?;
    let (policy, _) = policies
        .iter()
        .filter(|(policy, _)| Tenant::of(policy) == *tenant)
        .max_by_key(|(policy, bytes)| (**bytes, taker == Some(**policy)))?;
    let largest = asked().filter(|(begun_by, _)| begun_by == policy).max_by_key(|(_, one)| one.bytes);
    largest.map(|(_, one)| one.collection)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(held: &[(&'static str, &str, u64)], taker: &str) -> Option<&'static str> {
        let id = |text: &str| (!text.is_empty()).then(|| text.parse::<PolicyId>().expect("an id"));
        let ids: Vec<_> = held.iter().map(|(_, policy, _)| id(policy)).collect();
        let held = held.iter().zip(&ids).map(|((collection, _, mib), policy)| Held {
            collection: *collection,
            begun_by: policy.as_ref(),
            bytes: mib << 20,
        });
        in_the_way(&held.collect::<Vec<_>>(), id(taker).as_ref())
    }

    #[test]
    fn who_has_the_most_gives_way_whoever_grew() {
        let held = [
            ("large", "namespaced/a/x", 60),
            ("larger", "namespaced/a/y", 40),
            ("second", "namespaced/a/y", 30),
            ("victim", "namespaced/b/x", 50),
            ("shared", "", 64),
        ];
        for taker in ["namespaced/b/x", "namespaced/a/x", "namespaced/a/y", "cluster/z", ""] {
            assert_eq!(ends(&held, taker), Some("larger"), "{taker}");
        }
    }

    #[test]
    fn cluster_policies_have_the_share_of_two_namespaces() {
        let held = [("cluster", "cluster/x", 60), ("namespaced", "namespaced/a/x", 40)];
        assert_eq!(ends(&held, "namespaced/a/x"), Some("namespaced"));
    }

    #[test]
    fn of_two_that_have_the_same_the_one_that_grew_ends() {
        let held = [("a", "namespaced/a/x", 60), ("b", "namespaced/b/x", 60)];
        assert_eq!((ends(&held, "namespaced/a/x"), ends(&held, "namespaced/b/x")), (Some("a"), Some("b")));
    }

    #[test]
    fn what_is_for_all_policies_ends_for_none_and_ends_nothing_small() {
        assert_eq!(ends(&[("shared", "", 64), ("new", "namespaced/a/x", 1)], "namespaced/a/x"), Some("new"));
        assert_eq!(ends(&[("shared", "", 64), ("small", "namespaced/a/x", 8)], ""), None);
        assert_eq!(ends(&[("shared", "", 64), ("large", "namespaced/a/x", 9)], ""), Some("large"));
    }
}
