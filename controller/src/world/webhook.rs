//! A webhook configuration, with what decisions need of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, ValidatingWebhook};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use portcullis_api::kubernetes::Outline;
use portcullis_api::revision::POLICY_SERVER_LABEL;
use portcullis_contract::{GroupId, WebhookKind};
use portcullis_kubernetes::{CONTROLLER_MANAGER, MANAGED_BY_LABEL};
use serde_json::Value;

/// The entries of a webhook configuration in canonical form, so that they can be compared.
pub type Entries = Arc<Value>;

/// A webhook configuration.
#[derive(Debug, Clone)]
pub struct WebhookView {
    /// Validating or mutating.
    pub kind: WebhookKind,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub version: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its owners.
    pub owners: Vec<OwnerReference>,
    /// Its entries.
    pub entries: Entries,
}

/// A webhook configuration of ours, as its kind and name tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnWebhook {
    /// That of a match group.
    Group(GroupId),
    /// The one with which API servers ask about policies that users apply.
    Check,
}

impl OwnWebhook {
    /// The one of this policy server with this kind and name, if it is one.
    pub fn of(policy_server: &str, kind: WebhookKind, name: &str) -> Option<Self> {
        if kind == WebhookKind::Validating && name == check_webhook_name(policy_server) {
            return Some(Self::Check);
        }
        name.strip_prefix(&webhook_prefix(policy_server))?.parse().ok().map(Self::Group)
    }
}

impl WebhookView {
    /// Reads an object.
    pub fn read(kind: WebhookKind, object: &Outline) -> Option<Self> {
        let metadata = &object.metadata;
        Some(Self {
            kind,
            name: metadata.name.clone()?,
            uid: metadata.uid.clone()?,
            version: metadata.resource_version.clone().unwrap_or_default(),
            labels: metadata.labels.clone().unwrap_or_default(),
            owners: metadata.owner_references.clone().unwrap_or_default(),
            entries: canonical(kind, object.data["webhooks"].clone()),
        })
    }

    /// Whether it has a name of ours. It keeps its name when somebody removes its labels. One with our labels and another name is a copy that
    /// somebody made, for instance to keep it: it does not concern us.
    pub fn concerns(&self, policy_server: &str) -> bool {
        OwnWebhook::of(policy_server, self.kind, &self.name).is_some()
    }

    /// The match group whose name it has.
    pub fn group(&self, policy_server: &str) -> Option<GroupId> {
        match OwnWebhook::of(policy_server, self.kind, &self.name)? {
            OwnWebhook::Group(group) => Some(group),
            OwnWebhook::Check => None,
        }
    }

    /// Whether its labels say that a controller of this policy server made it.
    pub fn is_ours(&self, policy_server: &str) -> bool {
        let is = |label: &str, value: &str| self.labels.get(label).is_some_and(|found| found == value);
        is(MANAGED_BY_LABEL, CONTROLLER_MANAGER) && is(POLICY_SERVER_LABEL, policy_server)
    }
}

/// The name of a group's webhook configuration.
pub fn webhook_name(policy_server: &str, group: &GroupId) -> String {
    format!("{}{group}", webhook_prefix(policy_server))
}

/// The name of the webhook configuration with which API servers ask about policies that users apply.
pub fn check_webhook_name(policy_server: &str) -> String {
    format!("{}check", webhook_prefix(policy_server))
}

/// The prefix of the names of a policy server's webhook configurations, before the id of the group or `check`.
fn webhook_prefix(policy_server: &str) -> String {
    format!("portcullis-{policy_server}-")
}

/// Entries as the types of this release write them, without fields that a newer API server adds, and without empty lists, which API servers
/// leave out.
pub(crate) fn canonical(kind: WebhookKind, entries: Value) -> Entries {
    fn through<T: serde::de::DeserializeOwned + serde::Serialize>(entries: &Value) -> Option<Value> {
        let typed: Vec<T> = serde_json::from_value(entries.clone()).ok()?;
        serde_json::to_value(typed).ok()
    }
    let typed = match kind {
        WebhookKind::Validating => through::<ValidatingWebhook>(&entries),
        WebhookKind::Mutating => through::<MutatingWebhook>(&entries),
    };
    let mut entries = typed.unwrap_or(entries);
    for entry in entries.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        for list in ["rules", "matchConditions"] {
            if entry.get(list).and_then(Value::as_array).is_some_and(Vec::is_empty) {
                entry.shift_remove(list);
            }
        }
    }
    Arc::new(entries)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn webhook(name: &str, labels: Value) -> WebhookView {
        let object = json!({"metadata": {"name": name, "uid": "u", "labels": labels}, "webhooks": []});
        let object = serde_json::from_value(object).expect("an object");
        WebhookView::read(WebhookKind::Validating, &object).expect("a webhook")
    }

    #[test]
    fn who_loses_its_labels_is_found_by_its_name_and_a_copy_under_another_name_is_not_ours() {
        let ours = json!({MANAGED_BY_LABEL: CONTROLLER_MANAGER, POLICY_SERVER_LABEL: "one"});
        assert!(webhook("portcullis-one-0123456789abcdef", json!({})).concerns("one"));
        assert!(webhook("portcullis-one-0123456789abcdef", ours.clone()).is_ours("one"));
        for copy in ["renamed", "portcullis-one-0123456789abcdef-copy", "portcullis-one-0123", "portcullis-one-check-2"]
        {
            assert!(!webhook(copy, ours.clone()).concerns("one"), "{copy}");
        }
        assert!(!webhook("portcullis-one-two-0123456789abcdef", json!({})).concerns("one"));
        assert!(!webhook("theirs", json!({POLICY_SERVER_LABEL: "one"})).concerns("one"));
    }

    #[test]
    fn an_empty_list_is_none_at_all() {
        let entry = |lists: Value| {
            let mut entry =
                json!({"name": "a", "admissionReviewVersions": ["v1"], "clientConfig": {}, "sideEffects": "None"});
            entry.as_object_mut().expect("an object").extend(lists.as_object().expect("an object").clone());
            canonical(WebhookKind::Validating, json!([entry]))
        };
        assert_eq!(entry(json!({"rules": [], "matchConditions": []})), entry(json!({})));
        let condition = json!([{"name": "c", "expression": "true"}]);
        assert_eq!(entry(json!({"matchConditions": condition}))[0]["matchConditions"], condition);
    }

    #[test]
    fn the_webhook_that_checks_policies_is_found_by_its_name_too() {
        let check = webhook(&check_webhook_name("one"), json!({}));
        assert_eq!(check.name, "portcullis-one-check");
        let own = |webhook: &WebhookView, server: &str| OwnWebhook::of(server, webhook.kind, &webhook.name);
        assert_eq!(own(&check, "one"), Some(OwnWebhook::Check));
        assert!(check.concerns("one") && check.group("one").is_none() && !check.is_ours("one"));
        assert!(own(&check, "two").is_none() && !check.concerns("two"));
        let mutating = WebhookView { kind: WebhookKind::Mutating, ..check };
        assert!(own(&mutating, "one").is_none() && !mutating.concerns("one"), "that of somebody else");
        let grouped = webhook("portcullis-one-0123456789abcdef", json!({}));
        assert_eq!(own(&grouped, "one"), grouped.group("one").map(OwnWebhook::Group));
        assert!(grouped.group("one").is_some());
    }
}
