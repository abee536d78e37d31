//! How much of a disk a tenant may fill. Both programs that fill a disk use these rules.

use std::collections::BTreeSet;

use crate::Tenant;

/// How many more bytes a tenant may have on a disk of `size` bytes, of which `used` are taken.
///
/// Without `own`, for a tenant that takes precedence, that is all that is free. Any other tenant has `own` bytes of what is used, and
/// may take more until it has as much as is left free. So a namespace that floods a disk alone ends at half of it, two of them end at
/// a third each, and as much is always left for the next one. No file has to be removed for that, and a tenant that uses little is
/// never held up by one that uses much (network switches call this dynamic thresholds).
pub fn allowance(size: u64, used: u64, own: Option<u64>) -> u64 {
    let free = size.saturating_sub(used);
    own.map_or(free, |own| free.saturating_sub(own) / 2)
}

/// How many of a file's bytes count as a tenant's: a file counts in equal parts for its owners, and a file that ClusterPolicies use
/// does not count for any namespace.
pub fn part(owners: &BTreeSet<Tenant>, tenant: &Tenant, bytes: u64) -> u64 {
    if !owners.contains(tenant) || (*tenant != Tenant::Cluster && owners.contains(&Tenant::Cluster)) {
        return 0;
    }
    bytes / owners.len().max(1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn z08_owners_share_a_file_and_what_cluster_policies_use_is_no_namespaces() {
        let [a, b] = ["a", "b"].map(|name| Tenant::Namespace(name.into()));
        let part_of_a = |owners: &[&Tenant]| part(&owners.iter().copied().cloned().collect(), &a, 90);
        assert_eq!([part_of_a(&[&a]), part_of_a(&[&a, &b]), part_of_a(&[&b]), part_of_a(&[])], [90, 45, 0, 0]);
        assert_eq!(part_of_a(&[&a, &Tenant::Cluster]), 0);
        let two = BTreeSet::from([a.clone(), b]);
        assert_eq!((part(&two, &a, 10), part(&two, &Tenant::Namespace("c".into()), 10)), (5, 0));
    }

    /// How many bytes tenants have in the end if each takes as much as it can, one byte in turn.
    fn flood(size: u64, tenants: usize) -> Vec<u64> {
        let mut own = vec![0; tenants];
        while let Some(n) = (0..tenants).min_by_key(|n| own[*n]) {
            if allowance(size, own.iter().sum(), Some(own[n])) == 0 {
                break;
            }
            own[n] += 1;
        }
        own
    }

    #[test]
    fn z08_whoever_floods_leaves_as_much_as_he_has() {
        assert_eq!(allowance(100, 0, Some(0)), 50);
        assert_eq!(flood(1000, 1), [500]);
        assert!(flood(1000, 3).iter().all(|own| (245..=250).contains(own)));
        assert_eq!(allowance(1000, 500, Some(0)), 250, "who comes after one that floods");
        assert_eq!(allowance(1000, 750, Some(500)), 0, "who has more than is free");
    }

    #[test]
    fn z08_who_comes_first_may_have_all_that_is_free() {
        assert_eq!(allowance(100, 90, None), 10);
        assert_eq!(allowance(100, 110, None), 0);
    }
}
