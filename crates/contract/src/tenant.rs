//! The tenants that share a replica's resources.

use std::sync::Arc;

use crate::PolicyId;

/// The unit among which a replica's resources are shared. It is the namespace and not the policy, because a user who
/// may write in a namespace can write any number of policies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tenant {
    /// All ClusterPolicies, and the policies of a `policies.yml`.
    Cluster,
    /// The policies of a namespace.
    Namespace(Arc<str>),
}

impl Tenant {
    /// The tenant that a policy belongs to.
    pub fn of(policy: &PolicyId) -> Self {
        policy.namespace().map_or(Self::Cluster, |namespace| Self::Namespace(namespace.into()))
    }

    /// How large a share this tenant has, in shares of a namespace. It is larger for ClusterPolicies, because they guard the
    /// whole cluster, and only its administrators write them.
    pub fn weight(&self) -> u64 {
        match self {
            Self::Cluster => 2,
            Self::Namespace(_) => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_of_a_namespace_are_one_tenant_and_all_others_another() {
        let tenant = |id: &str| Tenant::of(&id.parse().expect("an id"));
        assert_eq!(tenant("namespaced/team-a/one"), Tenant::Namespace("team-a".into()));
        assert_eq!(tenant("namespaced/team-a/two"), Tenant::Namespace("team-a".into()));
        for other in ["cluster/one", "clusterwide-one", "bare"] {
            assert_eq!(tenant(other), Tenant::Cluster);
        }
    }
}
