//! The tenants that need a job, and how urgently.

use std::collections::BTreeMap;

use portcullis_contract::Tenant;

/// How urgently a job is needed; the most urgent comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// It served before, so a fresh pod must have it before requests arrive.
    Served,
    /// It is not known to have served anywhere.
    New,
}

/// The tenants that need a job, each with its most urgent need. A job without tenants is not needed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Claims(BTreeMap<Tenant, Need>);

impl Claims {
    /// Adds a tenant's need.
    pub(crate) fn add(&mut self, tenant: &Tenant, need: Need) {
        let known = self.0.entry(tenant.clone()).or_insert(need);
        *known = need.min(*known);
    }

    /// Whether no tenant needs the job.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this tenant needs the job.
    pub(crate) fn has(&self, tenant: &Tenant) -> bool {
        self.0.contains_key(tenant)
    }

    /// The tenants and their needs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Tenant, Need)> {
        self.0.iter().map(|(tenant, need)| (tenant, *need))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
