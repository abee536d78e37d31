//! Which policies are in the manifest where not all fit. Pure: sizes in, choices out.
//!
//! Evaluators read a manifest up to a certain size, and most of it is settings. When the policies do not all fit, some are left out, and these
//! must not simply be the next ones that are edited. ClusterPolicies come first, as they guard the whole cluster and only its
//! administrators write them. What they leave is shared between namespaces: a namespace that needs no more than an even share gets all
//! that it needs, and the rest is shared between the others (max-min fairness), so that the namespace that uses most gives way first.
//! Within a namespace, policies that serve come before new ones, and older policies before newer ones. A policy that is too large for the
//! room that is left is skipped, and a smaller one gets the room.
//!
//! A policy that is in the manifest serves, and so comes first the next time. Choices stay as they are until some policy needs more or
//! less.

use std::collections::BTreeMap;

use jiff::Timestamp;
use portcullis_contract::{Failure, Reason, Tenant, clean};

/// Longest text of [`Grant::failure`], in bytes.
pub(super) const LONGEST_TEXT: usize = 512;

/// Which generations of a policy are in the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// The newest, and an earlier one that served if it may still be needed.
    Both,
    /// Only the newest.
    Newest,
    /// Only an earlier one that served.
    Older,
    /// None: the manifest only names the policy and says why it is left out.
    Nothing,
}

/// What a policy would have in the manifest.
#[derive(Debug)]
pub(super) struct Demand<'a> {
    pub(super) tenant: &'a Tenant,
    pub(super) created: Timestamp,
    /// Bytes of its entry with [`Choice::Nothing`], which every policy gets.
    pub(super) least: u64,
    /// Other choices, best first, each with the bytes of its entry.
    pub(super) choices: Vec<(Choice, u64)>,
    /// The choice that keeps the generation that serves; `None` for a policy that does not serve yet.
    pub(super) serving: Option<Choice>,
}

/// What a policy gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) choice: Choice,
    /// Bytes that the best choice would need beyond [`Demand::least`].
    wanted: u64,
    /// Bytes that its tenant wants in all, and bytes that it gets.
    tenant_wants: u64,
    tenant_gets: u64,
    /// Policies of its tenant.
    policies: u64,
}

/// Shares `room` bytes. Returns a grant for each demand, in the same order.
pub(super) fn share(room: u64, demands: &[Demand<'_>]) -> Vec<Grant> {
    let mut tenants: BTreeMap<&Tenant, Account> = BTreeMap::new();
    for demand in demands {
        let account = tenants.entry(demand.tenant).or_default();
        account.policies += 1;
        account.wants += demand.best();
    }
    let least: u64 = demands.iter().map(|demand| demand.least).sum();
    let mut left = room.saturating_sub(least);
    if let Some(cluster) = tenants.get_mut(&Tenant::Cluster) {
        cluster.gets = cluster.wants.min(left);
        left -= cluster.gets;
    }
    let namespaces = tenants.iter().filter(|(tenant, _)| ***tenant != Tenant::Cluster);
    let level = level(left, namespaces.map(|(_, account)| account.wants).collect());
    for (tenant, account) in &mut tenants {
        if **tenant != Tenant::Cluster {
            account.gets = account.wants.min(level);
        }
        account.left = account.gets;
    }

    let mut chosen = vec![(Choice::Nothing, 0); demands.len()];
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by_key(|&n| (demands[n].serving.is_none(), demands[n].created, n));
    // First the choices that keep what serves, then the best ones that there is room for.
    for keeps in [true, false] {
        for &n in &order {
            let demand = &demands[n];
            let Some(account) = tenants.get_mut(demand.tenant) else { continue };
            let has = account.left + chosen[n].1;
            let is_meant = |choice: &Choice| !keeps || demand.serving == Some(*choice);
            let extra = demand.choices.iter().map(|(choice, size)| (*choice, size.saturating_sub(demand.least)));
            if let Some(better) = extra.filter(|(choice, _)| is_meant(choice)).find(|(_, size)| *size <= has) {
                account.left = has - better.1;
                chosen[n] = better;
            }
        }
    }
    let grants = chosen.iter().zip(demands).map(|((choice, _), demand)| {
        let account = &tenants[demand.tenant];
        Grant {
            choice: *choice,
            wanted: demand.best(),
            tenant_wants: account.wants,
            tenant_gets: account.gets,
            policies: account.policies,
        }
    });
    grants.collect()
}

/// What a tenant wants and gets, in bytes beyond the least of its policies.
#[derive(Debug, Default)]
struct Account {
    policies: u64,
    wants: u64,
    gets: u64,
    left: u64,
}

impl Demand<'_> {
    fn best(&self) -> u64 {
        self.choices.first().map_or(0, |(_, size)| size.saturating_sub(self.least))
    }
}

impl Grant {
    /// Why the newest generation is not in the manifest, where it could be served.
    pub(super) fn failure(&self, generation: i64, tenant: &Tenant, since: Timestamp) -> Failure {
        let Self { wanted, tenant_wants, tenant_gets, policies, .. } = self;
        let who = match tenant {
            Tenant::Cluster => "ClusterPolicies".to_owned(),
            Tenant::Namespace(name) => format!("policies of the namespace {name}"),
        };
        // If it wants more than an even share of what its tenant gets, smaller settings help. Otherwise only fewer policies do.
        let (reason, advice) = if wanted.saturating_mul(*policies) > *tenant_gets {
            let advice = format!("make spec.settings smaller, which are most of its {} KiB", wanted >> 10);
            (Reason::SettingsTooLarge, advice)
        } else {
            (Reason::TooManyPolicies, "delete policies, or make the settings of others smaller".to_owned())
        };
        let text = format!(
            "there is no room for it in what evaluators read: the {policies} {who} have {} KiB, and their share is {} KiB; \
             {advice}",
            tenant_wants >> 10,
            tenant_gets >> 10
        );
        Failure::new(generation, reason, clean(&text, LONGEST_TEXT), since)
    }
}

/// The most that each may have, in bytes (max-min fairness): together they get no more than `room`, and none gets less than it wants while
/// another gets more.
fn level(mut room: u64, mut wants: Vec<u64>) -> u64 {
    wants.sort_unstable();
    let mut others = wants.len() as u64;
    for want in wants {
        let even = room / others;
        if want > even {
            return even;
        }
        room -= want;
        others -= 1;
    }
    u64::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        if name == "cluster" { Tenant::Cluster } else { Tenant::Namespace(name.into()) }
    }

    /// A policy that wants `size` bytes beyond the one byte that every policy has. A `!` behind its namespace means that it serves.
    fn one(namespace: &str, age: i64, size: u64) -> (Tenant, Timestamp, u64, bool) {
        let created = Timestamp::from_second(1_000 - age).expect("a time");
        (tenant(namespace.trim_end_matches('!')), created, size, namespace.ends_with('!'))
    }

    /// The indexes of the policies that are in the manifest.
    fn shared(room: u64, policies: &[(Tenant, Timestamp, u64, bool)]) -> Vec<usize> {
        let demands: Vec<Demand<'_>> = policies
            .iter()
            .map(|(tenant, created, size, serves)| Demand {
                tenant,
                created: *created,
                least: 1,
                choices: vec![(Choice::Newest, size + 1)],
                serving: serves.then_some(Choice::Newest),
            })
            .collect();
        let grants = share(room + policies.len() as u64, &demands);
        (0..grants.len()).filter(|n| grants[*n].choice != Choice::Nothing).collect()
    }

    #[test]
    fn z07_whoever_wants_no_more_than_an_even_share_has_it() {
        assert_eq!(level(10, vec![2, 3, 4]), u64::MAX);
        assert_eq!(level(10, vec![2, 100, 100]), 4);
        assert_eq!(level(0, vec![1]), 0);
        assert_eq!(level(5, Vec::new()), u64::MAX);
    }

    #[test]
    fn z07_the_namespace_that_uses_most_gives_way() {
        let flood: Vec<_> = (0..10).map(|age| one("greedy", 100 - age, 10)).collect();
        let policies = [flood, vec![one("small", 1, 10), one("other", 0, 10), one("cluster", 0, 20)]].concat();
        assert_eq!(shared(60, &policies), [0, 1, 10, 11, 12]);
    }

    #[test]
    fn z07_what_serves_comes_before_what_is_older_and_new() {
        let policies = [one("a", 9, 10), one("a!", 1, 10), one("a!", 2, 10)];
        assert_eq!(shared(20, &policies), [1, 2]);
        assert_eq!(shared(10, &policies), [2], "and of what serves the oldest");
    }

    #[test]
    fn z07_what_serves_gives_way_to_a_namespace_that_has_less() {
        let policies = [one("a!", 4, 10), one("a!", 3, 10), one("a!", 2, 10), one("b", 1, 10)];
        assert_eq!(shared(30, &policies), [0, 1, 3]);
        assert_eq!(shared(30, &policies[..3]), [0, 1, 2]);
    }

    #[test]
    fn z07_what_is_small_fits_where_what_is_large_does_not() {
        let policies = [one("a", 4, 10), one("a", 3, 100), one("a", 2, 5)];
        assert_eq!(shared(20, &policies), [0, 2]);
    }

    #[test]
    fn z07_cluster_policies_come_first_and_even_they_have_an_end() {
        let policies = [one("cluster", 2, 10), one("cluster", 1, 10), one("a!", 9, 10)];
        assert_eq!(shared(20, &policies), [0, 1]);
        assert_eq!(shared(10, &policies), [0]);
        assert_eq!(shared(0, &policies), Vec::<usize>::new());
    }

    #[test]
    fn z07_an_edit_takes_the_place_of_what_served_and_what_served_stays_where_it_is_too_large() {
        let tenant = tenant("a");
        let demand = |newest: u64| Demand {
            tenant: &tenant,
            created: Timestamp::UNIX_EPOCH,
            least: 1,
            choices: vec![(Choice::Both, newest + 10), (Choice::Newest, newest), (Choice::Older, 11)],
            serving: Some(Choice::Older),
        };
        let choice = |room: u64, newest: u64| share(room, &[demand(newest)])[0].choice;
        assert_eq!(choice(21, 11), Choice::Both);
        assert_eq!(choice(20, 11), Choice::Newest);
        assert_eq!(choice(20, 21), Choice::Older);
        assert_eq!(choice(10, 21), Choice::Nothing);
    }

    #[test]
    fn z07_who_is_left_out_is_told_what_would_help() {
        let (small, large) = (tenant("a"), tenant("a"));
        let demand = |tenant, size| Demand {
            tenant,
            created: Timestamp::UNIX_EPOCH,
            least: 0,
            choices: vec![(Choice::Newest, size)],
            serving: None,
        };
        let grants = share(20, &[demand(&small, 8), demand(&small, 8), demand(&large, 50), demand(&small, 5)]);
        let told = |n: usize| grants[n].failure(1, &large, Timestamp::UNIX_EPOCH).reason;
        assert_eq!((told(2), told(3)), (Reason::SettingsTooLarge, Reason::TooManyPolicies));
    }
}
