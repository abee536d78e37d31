//! Who asks for a share: a policy, with the tenant that it belongs to.

use std::sync::Arc;

use portcullis_contract::{PolicyId, Tenant};

/// A policy that asks for a share, with its tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claimant {
    /// The tenant, whose policies share among themselves first.
    pub(crate) tenant: Tenant,
    /// The policy.
    pub(crate) policy: PolicyId,
}

impl Claimant {
    /// The claimant for a policy.
    pub(crate) fn new(policy: &PolicyId) -> Arc<Self> {
        Arc::new(Self { tenant: Tenant::of(policy), policy: policy.clone() })
    }

    /// A claimant that stands for something else than a policy. It has the share of a namespace of its own.
    pub(crate) fn apart(name: &'static str) -> Arc<Self> {
        Self::one_apart(name, name)
    }

    /// One of several claimants that share like the policies of one namespace, as those of [`Self::apart`] with this name. A slash in `one`
    /// counts as another character, since it would make it a name of a policy.
    pub(crate) fn one_apart(name: &'static str, one: &str) -> Arc<Self> {
        // No namespace has a name with a colon.
        let tenant = Tenant::Namespace(format!(":{name}").into());
        Arc::new(Self { tenant, policy: one.replace('/', "-").parse().expect("a name without a slash") })
    }
}
