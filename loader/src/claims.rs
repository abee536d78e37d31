//! For whom a job is done, and how much depends on it.

use std::collections::BTreeMap;

use portcullis_contract::Tenant;

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
    fn of_several_needs_of_one_tenant_the_greatest_counts() {
        let mut claims = Claims::default();
        assert!(claims.is_empty());
        for need in [Need::New, Need::Served, Need::New] {
            claims.add(&Tenant::Cluster, need);
        }
        assert_eq!(claims.iter().collect::<Vec<_>>(), [(&Tenant::Cluster, Need::Served)]);
    }
}
