//! The webhooks of one policy server, by which changes of authorities and of path keys tell whether webhooks follow.
//!
//! A configuration counts only if both its label and its name are the controller's. A copy that somebody made under another name has the
//! label too, but the controller neither updates nor may delete it, so waiting for it would never end.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use kube::api::{Api, ListParams};
use kube::{Client, Resource};
use portcullis_api::revision::POLICY_SERVER_LABEL;
use portcullis_contract::GroupId;
use serde::de::DeserializeOwned;

use crate::world::{check_webhook_name, webhook_prefix};

/// How many names a text has at most.
const NAMED: usize = 5;

/// A webhook's `clientConfig`, with the name of the configuration that it is in.
pub(crate) type OwnWebhook = (String, WebhookClientConfig);

/// Lists the webhooks of this policy server.
pub(crate) async fn list_own(client: &Client, policy_server: &str) -> Result<Vec<OwnWebhook>, kube::Error> {
    let params = ListParams::default().labels(&format!("{POLICY_SERVER_LABEL}={policy_server}"));
    let validating = all::<ValidatingWebhookConfiguration>(client, &params).await?;
    let mutating = all::<MutatingWebhookConfiguration>(client, &params).await?;
    Ok(own(policy_server, validating, mutating))
}

/// The first few of these names, for people to read.
pub(crate) fn few(names: &[&str]) -> String {
    let shown = names[..names.len().min(NAMED)].join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

async fn all<K>(client: &Client, params: &ListParams) -> Result<Vec<K>, kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    Ok(Api::<K>::all(client.clone()).list(params).await?.items)
}

/// The webhooks of the configurations with names of our own: that of a match group, or the validating one for checks of policies.
fn own(
    policy_server: &str,
    validating: Vec<ValidatingWebhookConfiguration>,
    mutating: Vec<MutatingWebhookConfiguration>,
) -> Vec<OwnWebhook> {
    let (prefix, check) = (webhook_prefix(policy_server), check_webhook_name(policy_server));
    let is_group = |name: &str| name.strip_prefix(&prefix).is_some_and(|group| group.parse::<GroupId>().is_ok());
    let mut webhooks = Vec::new();
    for one in validating {
        let name = one.metadata.name.unwrap_or_default();
        if is_group(&name) || name == check {
            let entries = one.webhooks.into_iter().flatten();
            webhooks.extend(entries.map(|entry| (name.clone(), entry.client_config)));
        }
    }
    for one in mutating {
        let name = one.metadata.name.unwrap_or_default();
        if is_group(&name) {
            let entries = one.webhooks.into_iter().flatten();
            webhooks.extend(entries.map(|entry| (name.clone(), entry.client_config)));
        }
    }
    webhooks
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn configuration(name: &str) -> Value {
        let webhook = json!({
            "name": "a.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": { "service": { "name": "guard", "namespace": "gate", "path": format!("/of/{name}") } },
        });
        json!({ "metadata": { "name": name }, "webhooks": [webhook] })
    }

    fn read<K: DeserializeOwned>(names: &[&str]) -> Vec<K> {
        names.iter().map(|name| serde_json::from_value(configuration(name)).expect("a configuration")).collect()
    }

    #[test]
    fn a_labelled_copy_under_another_name_does_not_count() {
        let group = "portcullis-default-0123456789abcdef";
        let names = [
            group,
            "portcullis-default-check",
            "portcullis-default-0123456789abcdef-copy",
            "portcullis-default-copy",
            "portcullis-other-0123456789abcdef",
            "copy",
        ];
        let found = own("default", read(&names), read(&names));
        let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [group, "portcullis-default-check", group], "the one for checks only validates");
        let paths = found.iter().map(|(_, config)| config.service.as_ref().and_then(|service| service.path.clone()));
        assert_eq!(paths.flatten().next(), Some(format!("/of/{group}")));
    }

    #[test]
    fn a_text_names_a_few_of_many_webhooks() {
        assert_eq!(few(&["a"]), "a");
        assert_eq!(few(&["a", "b", "c", "d", "e"]), "a, b, c, d, e");
        assert_eq!(few(&["a", "b", "c", "d", "e", "f", "g"]), "a, b, c, d, e and 2 more");
    }
}
