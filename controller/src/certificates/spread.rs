//! Which authorities the registered webhooks trust.

use k8s_openapi::ByteString;
use kube::Client;

use super::bundle::CaBundle;
use super::own_webhooks::list_own;

/// The `caBundle` of every webhook of one policy server, with the name of its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registered(Vec<(String, CaBundle)>);

impl Registered {
    /// Lists the webhooks.
    pub(crate) async fn list(client: &Client, policy_server: &str) -> Result<Self, kube::Error> {
        let webhooks = list_own(client, policy_server).await?.into_iter();
        // A bundle that cannot be read trusts no authority.
        let bundle = |pem: ByteString| CaBundle::parse(&pem.0).ok();
        Ok(Self(webhooks.map(|(name, one)| (name, one.ca_bundle.and_then(bundle).unwrap_or_default())).collect()))
    }

    /// The names of the configurations with a webhook that does not trust all of these authorities.
    pub(crate) fn lagging(&self, bundle: &CaBundle) -> Vec<&str> {
        let lagging = self.0.iter().filter(|(_, registered)| !registered.holds(bundle));
        let mut names: Vec<_> = lagging.map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The authorities that at least one webhook trusts.
    pub(crate) fn any(&self) -> CaBundle {
        self.0.iter().fold(CaBundle::default(), |all, (_, registered)| all.and(registered))
    }
}

#[cfg(test)]
mod tests {
    use super::super::authority::Authority;
    use super::super::decide::tests::{now, rules};
    use super::*;

    #[test]
    fn one_webhook_that_lags_behind_counts() {
        let (old, new) = (Authority::make(&rules(), now()), Authority::make(&rules(), now()));
        let (old, new) = (old.expect("an authority").bundle(), new.expect("an authority").bundle());
        let both = new.clone().and(&old);
        let of = |bundles: &[(&str, &CaBundle)]| {
            Registered(bundles.iter().map(|&(name, bundle)| (name.to_owned(), bundle.clone())).collect())
        };
        assert!(of(&[]).lagging(&both).is_empty(), "nobody calls");
        assert!(of(&[("a", &both), ("b", &both)]).lagging(&both).is_empty());
        let one_lags = of(&[("a", &both), ("b", &old), ("b", &old)]);
        assert_eq!(one_lags.lagging(&both), ["b"]);
        assert!(one_lags.lagging(&old).is_empty());
        assert_eq!(of(&[("a", &CaBundle::default())]).lagging(&old), ["a"]);
        assert_eq!(of(&[("a", &old), ("b", &new)]).any().certificates().len(), 2);
    }
}
