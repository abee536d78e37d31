//! Who shares what there is: a policy, and the tenant that it belongs to.

use std::sync::Arc;

use portcullis_contract::PolicyId;

/// Who writes policies together, and so shares together: whoever may write in a namespace can write as many as they like.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Tenant {
    /// All ClusterPolicies, and the policies of a `policies.yml`.
    Cluster,
    /// The policies of a namespace.
    Namespace(Arc<str>),
}

/// A policy as one who asks for a share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claimant {
    /// Whom it shares with first.
    pub(crate) tenant: Tenant,
    /// The policy.
    pub(crate) policy: PolicyId,
}

impl Tenant {
    /// How many times a namespace's share this tenant has. ClusterPolicies guard the whole cluster, and only its
    /// administrators write them.
    pub(crate) fn weight(&self) -> u64 {
        match self {
            Self::Cluster => 2,
            Self::Namespace(_) => 1,
        }
    }
}

impl Claimant {
    /// The claimant for a policy.
    pub(crate) fn new(policy: &PolicyId) -> Arc<Self> {
        let tenant = policy.namespace().map_or(Tenant::Cluster, |namespace| Tenant::Namespace(namespace.into()));
        Arc::new(Self { tenant, policy: policy.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_of_a_namespace_are_one_tenant() {
        let tenant = |id: &str| Claimant::new(&id.parse().expect("an id")).tenant.clone();
        assert_eq!(tenant("namespaced/team-a/one"), Tenant::Namespace("team-a".into()));
        assert_eq!(tenant("namespaced/team-a/two"), Tenant::Namespace("team-a".into()));
        assert_eq!(tenant("cluster/one"), Tenant::Cluster);
        assert_eq!(tenant("clusterwide-one"), Tenant::Cluster);
    }
}
