//! Which authorities the registered webhooks trust.

use k8s_openapi::ByteString;
use kube::Client;

use super::bundle::CaBundle;
use super::certificate::Certificate;
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

    /// The authorities that webhooks should have trusted until now, as far as they tell. If every one of them trusts the `stored` authorities,
    /// what only some of them trust besides was dropped: these lag behind, or somebody else has changed them.
    pub(crate) fn trusted(&self, stored: Option<&CaBundle>) -> CaBundle {
        let any = self.0.iter().fold(CaBundle::default(), |all, (_, registered)| all.and(registered));
        if stored.is_none_or(|stored| !self.lagging(stored).is_empty()) {
            return any;
        }
        let is_everywhere = |one: &&Certificate| self.0.iter().all(|(_, all)| all.certificates().contains(one));
        CaBundle::of(any.certificates().iter().filter(is_everywhere).cloned())
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
    }

    #[test]
    fn a_new_leader_does_not_trust_again_what_was_dropped() {
        let bundle = || Authority::make(&rules(), now()).expect("an authority").bundle();
        let (old, new) = (bundle(), bundle());
        let both = new.clone().and(&old);
        let of = |bundles: &[&CaBundle]| {
            Registered(bundles.iter().map(|&bundle| ("a".to_owned(), bundle.clone())).collect())
        };
        // An API server refuses to change one webhook, or another program adds to it.
        assert_eq!(of(&[&new, &both, &new]).trusted(Some(&new)), new);
        assert_eq!(of(&[&both, &both]).trusted(Some(&new)), both, "pods may present certificates of the old one");
        for (webhooks, stored) in [
            (of(&[&old, &both]), Some(&new)), // The leader before has not changed all of them yet.
            (of(&[&old, &old]), Some(&new)),  // The Secrets were replaced while no controller ran.
            (of(&[&old, &new]), None),
        ] {
            let trusted = webhooks.trusted(stored);
            assert!(trusted.holds(&old), "{webhooks:?}");
        }
        assert!(of(&[]).trusted(Some(&new)).is_empty());
    }
}
