//! Which authorities the registered webhooks trust.

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::api::{Api, ListParams};
use kube::{Client, Resource};
use portcullis_api::revision::POLICY_SERVER_LABEL;
use serde::de::DeserializeOwned;

use super::bundle::CaBundle;

/// The `caBundle` of every webhook of one policy server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registered(Vec<CaBundle>);

impl Registered {
    /// Lists the webhooks.
    pub(crate) async fn list(client: &Client, policy_server: &str) -> Result<Self, kube::Error> {
        let params = ListParams::default().labels(&format!("{POLICY_SERVER_LABEL}={policy_server}"));
        let validating = all::<ValidatingWebhookConfiguration>(client, &params).await?;
        let mutating = all::<MutatingWebhookConfiguration>(client, &params).await?;
        let validating = validating.into_iter().flat_map(|one| one.webhooks.unwrap_or_default());
        let mutating = mutating.into_iter().flat_map(|one| one.webhooks.unwrap_or_default());
        let configs = validating.map(|one| one.client_config).chain(mutating.map(|one| one.client_config));
        // A bundle that cannot be read trusts no authority.
        let bundle = |pem: k8s_openapi::ByteString| CaBundle::parse(&pem.0).ok();
        Ok(Self(configs.map(|config| config.ca_bundle.and_then(bundle).unwrap_or_default()).collect()))
    }

    /// Whether every webhook trusts all of these authorities.
    pub(crate) fn trust(&self, bundle: &CaBundle) -> bool {
        self.0.iter().all(|registered| registered.holds(bundle))
    }

    /// The authorities that at least one webhook trusts.
    pub(crate) fn any(&self) -> CaBundle {
        self.0.iter().fold(CaBundle::default(), CaBundle::and)
    }
}

async fn all<K>(client: &Client, params: &ListParams) -> Result<Vec<K>, kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    Ok(Api::<K>::all(client.clone()).list(params).await?.items)
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
        assert!(Registered(vec![]).trust(&both), "nobody calls");
        assert!(Registered(vec![both.clone(), both.clone()]).trust(&both));
        let one_lags = Registered(vec![both.clone(), old.clone()]);
        assert!(!one_lags.trust(&both) && one_lags.trust(&old));
        assert!(!Registered(vec![CaBundle::default()]).trust(&old));
        assert_eq!(Registered(vec![old, new]).any().certificates().len(), 2);
    }
}
