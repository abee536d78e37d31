//! The webhooks of one policy server, by which changes of authorities and of path keys tell whether webhooks follow.
//!
//! A configuration counts only if both its label and its name are the controller's. A copy that somebody made under another name has the
//! label too, but the controller neither updates nor may delete it, so waiting for it would never end.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use kube::api::{ListParams, Request};
use kube::core::ObjectList;
use kube::{Client, Resource as _};
use portcullis_api::revision::POLICY_SERVER_LABEL;
use portcullis_contract::WebhookKind;
use serde::de::DeserializeOwned;

use crate::world::OwnWebhook;

/// How many objects one answer has at most. One can take megabytes.
pub(crate) const PAGE: u32 = 20;
/// How many names a text has at most.
const NAMED: usize = 5;

/// A webhook's `clientConfig`, with the name of the configuration that it is in.
pub(crate) type OwnClient = (String, WebhookClientConfig);

/// Lists the webhooks of this policy server. One configuration can take megabytes, of which a `clientConfig` is the smallest part.
pub(crate) async fn list_own(client: &Client, policy_server: &str) -> Result<Vec<OwnClient>, kube::Error> {
    let params = ListParams::default().labels(&format!("{POLICY_SERVER_LABEL}={policy_server}")).limit(PAGE);
    let mut webhooks = Vec::new();
    let path = ValidatingWebhookConfiguration::url_path(&(), None);
    each_page(client, &path, &params, |page| webhooks.extend(own(policy_server, page, Vec::new()))).await?;
    let path = MutatingWebhookConfiguration::url_path(&(), None);
    each_page(client, &path, &params, |page| webhooks.extend(own(policy_server, Vec::new(), page))).await?;
    Ok(webhooks)
}

/// The first few of these names, for people to read.
pub(crate) fn few(names: &[&str]) -> String {
    let shown = names[..names.len().min(NAMED)].join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Hands over all objects at a path, one page at a time.
pub(crate) async fn each_page<T: Clone + DeserializeOwned>(
    client: &Client,
    path: &str,
    params: &ListParams,
    mut take: impl FnMut(Vec<T>),
) -> Result<(), kube::Error> {
    let mut params = params.clone();
    loop {
        let request = Request::new(path).list(&params).map_err(kube::Error::BuildRequest)?;
        let page = client.request::<ObjectList<T>>(request).await?;
        let next = page.metadata.continue_.filter(|token| !token.is_empty());
        take(page.items);
        match next {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(()),
        }
    }
}

/// The webhooks of the configurations with names of our own: that of a match group, or the validating one for checks of policies.
fn own(
    policy_server: &str,
    validating: Vec<ValidatingWebhookConfiguration>,
    mutating: Vec<MutatingWebhookConfiguration>,
) -> Vec<OwnClient> {
    let validating = validating.into_iter().map(|one| {
        let clients: Vec<_> = one.webhooks.into_iter().flatten().map(|entry| entry.client_config).collect();
        (WebhookKind::Validating, one.metadata.name, clients)
    });
    let mutating = mutating.into_iter().map(|one| {
        let clients: Vec<_> = one.webhooks.into_iter().flatten().map(|entry| entry.client_config).collect();
        (WebhookKind::Mutating, one.metadata.name, clients)
    });
    let all = validating.chain(mutating).filter_map(|(kind, name, clients)| {
        let name = name.filter(|name| OwnWebhook::of(policy_server, kind, name).is_some())?;
        Some(clients.into_iter().map(move |client| (name.clone(), client)))
    });
    all.flatten().collect()
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

    #[tokio::test]
    async fn configurations_are_read_page_by_page() {
        use axum::extract::Query;
        use std::collections::HashMap;

        let answer = |Query(query): Query<HashMap<String, String>>| async move {
            let (number, next) = match query.get("continue").map(String::as_str) {
                None => (0, "one"),
                Some("one") => (1, "two"),
                _ => (2, ""),
            };
            assert_eq!(query.get("limit").map(String::as_str), Some("20"));
            let items = [configuration(&format!("portcullis-default-000000000000000{number}"))];
            json!({ "metadata": { "continue": next }, "items": items }).to_string()
        };
        let paths = ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"];
        let router = paths.iter().fold(axum::Router::new(), |router, path| {
            router.route(&format!("/apis/admissionregistration.k8s.io/v1/{path}"), axum::routing::get(answer))
        });
        let found = list_own(&Client::new(router, "default"), "default").await.expect("a list");
        let numbers: Vec<_> = found.iter().map(|(name, _)| name.chars().last()).collect();
        assert_eq!(numbers, ['0', '1', '2', '0', '1', '2'].map(Some));
    }
}
