//! Which collection ends where there is no room for all. Pure.

use std::collections::HashMap;
use std::time::Instant;

use portcullis_contract::{PolicyId, Tenant};

/// The most collections at the same time.
pub(super) const MOST: usize = 256;
/// The most collections that one policy may begin, besides whole ones.
const MOST_OF_ONE: usize = 32;
/// What the collections of a tenant may take without being ended for one that published policies need, in bytes.
const SMALL: u64 = 8 << 20;

/// A collection, and what it takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held<'a, T> {
    pub(super) collection: T,
    /// The policy in whose share it counts; none if published policies need it.
    pub(super) charged_to: Option<&'a PolicyId>,
    pub(super) bytes: u64,
}

/// The collection that ends, as one in the share of `taker` grew: the largest one of the policy that has the most, in the tenant that has the
/// most by its weight. So nobody gives way to one that has more. Those that published policies need are for all policies and stay; none if
/// there are only such.
pub(super) fn in_the_way<T: Copy>(held: &[Held<'_, T>], taker: Option<&PolicyId>) -> Option<T> {
    let (mut tenants, mut policies) = (HashMap::<Tenant, u64>::new(), HashMap::<&PolicyId, u64>::new());
    let asked = || held.iter().filter_map(|one| Some((one.charged_to?, one))).filter(|(_, one)| one.bytes > 0);
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
    let largest = asked().filter(|(charged_to, _)| charged_to == policy).max_by_key(|(_, one)| one.bytes);
    largest.map(|(_, one)| one.collection)
}

/// A watch, and in whose share it counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun<'a, T> {
    pub(super) watch: T,
    /// The policy in whose share it counts; none if published policies need it.
    pub(super) charged_to: Option<&'a PolicyId>,
    /// Whether it is of all objects of a kind, whole. Others may need it as well, and there are only as many as kinds.
    pub(super) is_whole: bool,
    pub(super) last_use: Instant,
}

/// The watch that ends before another one begins in the share of `asker`; none if there is room, or if none gives way. A policy that builds
/// selectors from requests begins one watch after the other: where it has as many as it may, the one of its own that was not used for longest
/// ends. Where all together are as many as may be, that of the policy that has the most does: nobody is refused for what others have, and
/// nobody gives way to one that has as many. Whole collections and those that published policies need stay.
pub(super) fn ends_for<T: Copy>(begun: &[Begun<'_, T>], asker: Option<&PolicyId>) -> Option<T> {
    let mut counts = HashMap::<&PolicyId, usize>::new();
    let may_end = || begun.iter().filter(|one| !one.is_whole).filter_map(|one| Some((one.charged_to?, one)));
    for (policy, _) in may_end() {
        *counts.entry(policy).or_default() += 1;
    }
    let own = asker.and_then(|asker| counts.get(asker)).copied().unwrap_or_default();
    let policy = if own >= MOST_OF_ONE {
        asker?
    } else if begun.len() >= MOST {
        // Where two have the same, the one that asks gives way.
        counts.iter().max_by_key(|(policy, count)| (**count, asker == Some(**policy))).map(|(policy, _)| *policy)?
    } else {
        return None;
    };
    let oldest = may_end().filter(|(charged_to, _)| *charged_to == policy).min_by_key(|(_, one)| one.last_use);
    oldest.map(|(_, one)| one.watch)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn ends(held: &[(&'static str, &str, u64)], taker: &str) -> Option<&'static str> {
        let id = |text: &str| (!text.is_empty()).then(|| text.parse::<PolicyId>().expect("an id"));
        let ids: Vec<_> = held.iter().map(|(_, policy, _)| id(policy)).collect();
        let held = held.iter().zip(&ids).map(|((collection, _, mib), policy)| Held {
            collection: *collection,
            charged_to: policy.as_ref(),
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

    /// Watches by policy: how many it began, and whether they are whole. The first ones were not used for longest.
    struct Watching(Vec<(Option<PolicyId>, bool)>);

    impl Watching {
        fn new(begun: &[(&str, usize, bool)]) -> Self {
            let id = |text: &str| (!text.is_empty()).then(|| text.parse::<PolicyId>().expect("an id"));
            Self(begun.iter().flat_map(|&(policy, count, is_whole)| vec![(id(policy), is_whole); count]).collect())
        }

        /// The number of the watch that ends.
        fn ends_for(&self, asker: &str) -> Option<usize> {
            let start = Instant::now();
            let begun = self.0.iter().enumerate().map(|(watch, (charged_to, is_whole))| Begun {
                watch,
                charged_to: charged_to.as_ref(),
                is_whole: *is_whole,
                last_use: start + Duration::from_secs(u64::try_from(watch).expect("a number")),
            });
            let asker = (!asker.is_empty()).then(|| asker.parse::<PolicyId>().expect("an id"));
            ends_for(&begun.collect::<Vec<_>>(), asker.as_ref())
        }
    }

    #[test]
    fn a_policy_that_has_all_watches_that_it_may_ends_its_own() {
        let some = Watching::new(&[("cluster/b", 40, true), ("cluster/a", MOST_OF_ONE - 1, false)]);
        assert_eq!((some.ends_for("cluster/a"), some.ends_for("cluster/b"), some.ends_for("")), (None, None, None));
        let all = Watching::new(&[("cluster/a", 1, true), ("cluster/b", 1, false), ("cluster/a", MOST_OF_ONE, false)]);
        assert_eq!(all.ends_for("cluster/a"), Some(2), "the oldest one that is not whole");
        assert_eq!((all.ends_for("cluster/b"), all.ends_for("")), (None, None));
    }

    #[test]
    fn where_all_watches_are_taken_who_began_the_most_gives_way() {
        let few = [("", 100, false), ("cluster/whole", 100, true), ("cluster/few", 27, false)];
        let full = Watching::new(&[&few[..], &[("cluster/many", MOST - 227, false)]].concat());
        for asker in ["cluster/few", "cluster/new", "cluster/whole", "cluster/many", ""] {
            assert_eq!(full.ends_for(asker), Some(227), "{asker}");
        }
        let full = Watching::new(&[("", 200, false), ("cluster/a", 28, false), ("cluster/b", 28, false)]);
        assert_eq!((full.ends_for("cluster/a"), full.ends_for("cluster/b")), (Some(200), Some(228)), "each its own");
        assert!(full.ends_for("cluster/new").is_some() && full.ends_for("").is_some());
        let nothing_ends = Watching::new(&[("", 100, false), ("cluster/whole", MOST - 100, true)]);
        assert_eq!((nothing_ends.ends_for("cluster/a"), nothing_ends.ends_for("")), (None, None));
    }
}
