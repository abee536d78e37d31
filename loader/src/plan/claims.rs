//! For whom a job is done, and how much depends on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use portcullis_contract::PolicyId;

/// Who writes policies together, and so has turns together: whoever may write in a namespace can write as many as they like.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Tenant {
    /// All ClusterPolicies, and the policies of a `policies.yml`.
    Cluster,
    /// The policies of a namespace.
    Namespace(Arc<str>),
}

/// How much depends on a job; the more, the earlier it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// What served before, which a fresh pod must have before it is asked.
    Served,
    /// What has not served anywhere yet, as far as is known.
    New,
}

/// Everybody who wants a job done, each with the greatest of their needs. Nobody wants what has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Claims(BTreeMap<Tenant, Need>);

impl Tenant {
    /// The tenant that a policy belongs to.
    pub(crate) fn of(policy: &PolicyId) -> Self {
        policy.namespace().map_or(Self::Cluster, |namespace| Self::Namespace(namespace.into()))
    }
}

impl Claims {
    /// One more wants it.
    pub(crate) fn add(&mut self, tenant: &Tenant, need: Need) {
        let known = self.0.entry(tenant.clone()).or_insert(need);
        *known = need.min(*known);
    }

    /// Whether nobody wants it now.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Who wants it, and how much.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Tenant, Need)> {
        self.0.iter().map(|(tenant, need)| (tenant, *need))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_of_a_namespace_are_one_tenant_and_all_others_another() {
        let tenant = |id: &str| Tenant::of(&id.parse().expect("an id"));
        assert_eq!(tenant("namespaced/team-a/one"), Tenant::Namespace("team-a".into()));
        assert_eq!(tenant("cluster/one"), Tenant::Cluster);
        assert_eq!(tenant("bare"), Tenant::Cluster);
    }

    #[test]
    fn of_several_needs_of_one_tenant_the_greatest_counts() {
        let mut claims = Claims::default();
        assert!(claims.is_empty());
        for need in [Need::New, Need::Served, Need::New] {
            claims.add(&Tenant::Cluster, need);
        }
        assert_eq!(claims.iter().collect::<Vec<_>>(), [(&Tenant::Cluster, Need::Served)]);
    }
}
