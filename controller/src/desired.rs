//! The webhook configurations that should exist: that of a match group, and the one for checks of policies. Pure.

mod exclude;
mod policy_checks;
mod selector;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use portcullis_api::revision::POLICY_SERVER_LABEL;
use portcullis_contract::{
    ADMIT_PATH, Digest, GroupId, MARKER_PATH, MatchPart, PathKey, RuleWithOperations, WebhookKind,
};
use portcullis_kubernetes::{CONTROLLER_MANAGER, MANAGED_BY_LABEL};
use serde_json::{Value, json};

use crate::world::{Entries, WebhookView, canonical, webhook_name};

pub use exclude::OWN_CONDITIONS;
pub use policy_checks::check_webhook;

/// The label that says which labels of the settings a webhook has, as those themselves are not read. It is there if the settings have any.
const LABELS_LABEL: &str = "policies.portcullis.dev/webhook-labels";

/// What every webhook contains about the installation.
#[derive(Debug, Clone, PartialEq)]
pub struct Installation {
    /// The namespace of the installation.
    pub namespace: String,
    /// The name of the policy server.
    pub policy_server: String,
    /// The name of the Service that webhooks call.
    pub service: String,
    /// The Service's port.
    pub service_port: u16,
    /// The controller's user, the only one that sends markers.
    pub username: String,
    /// The cluster-scoped object with which webhooks are deleted.
    pub owner: Option<OwnerReference>,
    /// Labels of the settings, beside our own.
    pub labels: Arc<BTreeMap<String, String>>,
    /// The authorities that sign the serving certificate, as PEM.
    pub ca_bundle: Arc<String>,
    /// The key from which paths are derived.
    pub path_key: PathKey,
}

/// A webhook configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Desired {
    /// Validating or mutating.
    pub kind: WebhookKind,
    /// Its name.
    pub name: String,
    /// Its metadata.
    pub metadata: Value,
    /// Its entries in canonical form. The object is made when it is written: entries can be large, and this one is made for each decision.
    pub entries: Entries,
}

/// The webhook configuration of a group, with this timeout.
pub fn desired(installation: &Installation, group: &GroupId, part: &MatchPart, timeout_seconds: u32) -> Desired {
    let client = |root: &str| client_config(installation, &installation.path_key.path(root, group));
    let admit = json!({
        "name": format!("{group}.policies.portcullis.dev"),
        "admissionReviewVersions": ["v1"],
        "clientConfig": client(ADMIT_PATH),
        "rules": exclude::rules(part),
        "matchPolicy": part.match_policy.as_deref().unwrap_or("Equivalent"),
        "namespaceSelector": exclude::namespaces(part, &installation.namespace),
        "objectSelector": selector::read(part.object_selector.as_ref()),
        "matchConditions": exclude::conditions(part),
        "failurePolicy": part.failure_policy,
        "sideEffects": part.side_effects.as_deref().unwrap_or("None"),
        "timeoutSeconds": timeout_seconds,
    });
    let value = marker_value_of(group, part.kind, &admit);
    let mut entries = vec![
        admit,
        json!({
            "name": format!("marker.{group}.policies.portcullis.dev"),
            "admissionReviewVersions": ["v1"],
            "clientConfig": client(MARKER_PATH),
            "rules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["controllerrevisions"],
                       "operations": ["UPDATE"], "scope": "Namespaced"}],
            "matchPolicy": "Equivalent",
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": installation.namespace}},
            "objectSelector": {},
            "matchConditions": exclude::marker(&value, &installation.username),
            "failurePolicy": "Ignore",
            "sideEffects": "None",
            "timeoutSeconds": 5,
        }),
    ];
    if part.kind == WebhookKind::Mutating {
        entries.iter_mut().for_each(|entry| entry["reinvocationPolicy"] = json!("Never"));
    }
    let name = webhook_name(&installation.policy_server, group);
    whole(installation, part.kind, name, Value::from(entries))
}

/// The webhook configuration of a group whose match part is unknown, because no revision can be read: the existing entries, with the
/// address, the authorities and the paths of this installation.
pub fn kept(installation: &Installation, kind: WebhookKind, group: &GroupId, entries: &Entries) -> Desired {
    let mut entries = Value::clone(entries);
    for entry in entries.as_array_mut().into_iter().flatten() {
        let Some(client) = entry.get_mut("clientConfig").and_then(Value::as_object_mut) else { continue };
        client.insert("caBundle".to_owned(), json!(encode(&installation.ca_bundle)));
        if let Some(service) = client.get_mut("service").and_then(Value::as_object_mut) {
            service.insert("namespace".to_owned(), json!(installation.namespace));
            service.insert("name".to_owned(), json!(installation.service));
            service.insert("port".to_owned(), json!(installation.service_port));
            let path = service.get("path").and_then(Value::as_str).unwrap_or_default();
            let root = if path.starts_with(&format!("/{MARKER_PATH}/")) { MARKER_PATH } else { ADMIT_PATH };
            service.insert("path".to_owned(), json!(installation.path_key.path(root, group)));
        }
    }
    whole(installation, kind, webhook_name(&installation.policy_server, group), entries)
}

/// The timeout of a webhook, in seconds.
pub fn waits(entries: &Entries) -> u64 {
    entries[0]["timeoutSeconds"].as_u64().unwrap_or(0)
}

/// The value of the annotation that the marker of this entry has. An API server that knows an earlier version of the webhook wants another
/// value, so what it proves is that it calls this version. The address and its authorities are not part of it: they are followed even where
/// nobody knows the rest.
fn marker_value_of(group: &GroupId, kind: WebhookKind, admit: &Value) -> String {
    let mut admit = admit.clone();
    admit["clientConfig"] = json!({});
    let version = Digest::of(canonical(kind, Value::from(vec![admit])).to_string().as_bytes()).hex();
    format!("{group}.{}", &version[..16])
}

/// The rules by which a webhook with this match part is called.
pub fn rules(part: &MatchPart) -> Vec<RuleWithOperations> {
    exclude::rules(part)
}

/// The rules by which API servers with these entries call the policies.
pub fn registered(entries: &Entries) -> Vec<RuleWithOperations> {
    serde_json::from_value(entries[0]["rules"].clone()).unwrap_or_default()
}

/// The value of [`crate::marker::MARKER_ANNOTATION`] with which an API server that knows these entries calls the marker's webhook.
pub fn marker_value(entries: &Entries) -> Option<&str> {
    entries.as_array()?.iter().find_map(exclude::marker_value)
}

/// What API servers call: this path of the evaluators.
fn client_config(installation: &Installation, path: &str) -> Value {
    json!({
        "service": {"namespace": installation.namespace, "name": installation.service, "path": path,
                    "port": installation.service_port},
        "caBundle": encode(&installation.ca_bundle),
    })
}

fn whole(installation: &Installation, kind: WebhookKind, name: String, entries: Value) -> Desired {
    let mut labels = BTreeMap::clone(&installation.labels);
    if !labels.is_empty() {
        let digest = Digest::of(json!(labels).to_string().as_bytes()).hex();
        labels.insert(LABELS_LABEL.to_owned(), digest[..16].to_owned());
    }
    labels.insert(POLICY_SERVER_LABEL.to_owned(), installation.policy_server.clone());
    labels.insert(MANAGED_BY_LABEL.to_owned(), CONTROLLER_MANAGER.to_owned());
    let metadata = json!({
        "name": name,
        "labels": labels,
        "ownerReferences": installation.owner.iter().collect::<Vec<_>>(),
    });
    Desired { kind, name, metadata, entries: canonical(kind, entries) }
}

impl Desired {
    /// The complete object.
    pub fn object(&self) -> Value {
        let kind = match self.kind {
            WebhookKind::Validating => "ValidatingWebhookConfiguration",
            WebhookKind::Mutating => "MutatingWebhookConfiguration",
        };
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": self.metadata,
            "webhooks": *self.entries,
        })
    }

    /// The labels in a patch of a webhook that exists. Those that the settings had before stay, and no longer count.
    pub fn labels_patch(&self) -> Value {
        let mut labels = json!({ LABELS_LABEL: null });
        if let (Some(labels), Some(own)) = (labels.as_object_mut(), self.metadata["labels"].as_object()) {
            labels.extend(own.clone());
        }
        labels
    }

    /// Keeps the entries of the webhook that was found in place of equal ones of its own, so that they are in memory once.
    pub fn share_entries(&mut self, found: &WebhookView) {
        if self.entries == found.entries {
            self.entries = Arc::clone(&found.entries);
        }
    }

    /// Whether the webhook that was found is as desired.
    pub fn is(&self, found: &WebhookView, installation: &Installation) -> bool {
        let owned = installation.owner.iter().all(|owner| found.owners.iter().any(|found| found.uid == owner.uid));
        let labelled =
            found.labels.get(LABELS_LABEL).map(String::as_str) == self.metadata["labels"][LABELS_LABEL].as_str();
        found.entries == self.entries && found.is_ours(&installation.policy_server) && owned && labelled
    }
}

/// A text in base64, as JSON represents bytes.
fn encode(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

#[cfg(test)]
mod tests {
    use portcullis_contract::{FailurePolicy, MatchCondition, RuleWithOperations, group_id};

    use super::*;

    pub(super) fn part() -> MatchPart {
        MatchPart {
            kind: WebhookKind::Validating,
            namespace: None,
            rules: vec![RuleWithOperations {
                api_groups: vec![String::new()],
                api_versions: vec!["v1".into()],
                resources: vec!["pods".into()],
                operations: vec!["UPDATE".into(), "CREATE".into()],
                scope: None,
            }],
            match_policy: None,
            object_selector: None,
            namespace_selector: None,
            match_conditions: vec![MatchCondition { name: "mine".into(), expression: "true".into() }],
            failure_policy: FailurePolicy::Fail,
            side_effects: None,
        }
    }

    pub(super) fn installation() -> Installation {
        Installation {
            namespace: "portcullis".into(),
            policy_server: "default".into(),
            service: "policy-server".into(),
            service_port: 443,
            username: "system:serviceaccount:portcullis:controller".into(),
            owner: None,
            labels: Arc::default(),
            ca_bundle: Arc::new("PEM".into()),
            path_key: PathKey::Plain,
        }
    }

    #[test]
    fn a_group_has_one_object_with_two_entries() {
        let group = group_id(&part());
        let desired = desired(&installation(), &group, &part(), 10);
        assert_eq!(desired.name, format!("portcullis-default-{group}"));
        let [admit, marker] = desired.entries.as_array().expect("a list").as_slice() else { panic!("two entries") };
        assert_eq!(admit["name"], format!("{group}.policies.portcullis.dev"));
        assert_eq!(admit["clientConfig"]["service"]["path"], format!("/admit/{group}"));
        assert_eq!(admit["clientConfig"]["caBundle"], "UEVN");
        assert_eq!(admit["failurePolicy"], "Fail");
        assert_eq!(admit["rules"][0]["operations"], json!(["CREATE", "UPDATE"]));
        assert_eq!(admit["matchConditions"], json!([{"name": "mine", "expression": "true"}]));
        assert_eq!(marker["failurePolicy"], "Ignore");
        assert_eq!(marker["clientConfig"]["service"]["path"], format!("/marker/{group}"));
    }

    #[test]
    fn each_version_of_a_webhook_has_a_marker_of_its_own() {
        let group = group_id(&part());
        let value = |part: &MatchPart, timeout: u32| {
            let entries = desired(&installation(), &group, part, timeout).entries;
            marker_value(&entries).expect("a marker").to_owned()
        };
        assert!(value(&part(), 10).starts_with(&format!("{group}.")));
        assert_eq!(value(&part(), 10), value(&part(), 10));
        assert_ne!(value(&part(), 10), value(&part(), 11));
        let mut wider = part();
        wider.rules[0].resources.push("services".into());
        assert_ne!(value(&part(), 10), value(&wider, 10));
        assert_eq!(registered(&desired(&installation(), &group, &wider, 10).entries), rules(&wider));
    }

    #[test]
    fn z12_a_path_has_a_code_and_nothing_else_of_the_object_tells_it() {
        let (group, path_key) = (group_id(&part()), PathKey::Secret([7; 32]));
        let wanted = desired(&Installation { path_key, ..installation() }, &group, &part(), 10);
        for (entry, root) in [(0, ADMIT_PATH), (1, MARKER_PATH)] {
            let path = wanted.entries[entry]["clientConfig"]["service"]["path"].as_str().expect("a path");
            assert_eq!(path_key.opened(path), Some((root, group.as_str())));
            let code = path.rsplit('/').next().expect("a code");
            assert_eq!(wanted.object().to_string().matches(code).count(), 1);
        }
        assert!(!wanted.object().to_string().contains("0707"));
    }

    #[test]
    fn a_webhook_that_changes_objects_is_asked_once() {
        let part = MatchPart { kind: WebhookKind::Mutating, ..part() };
        let desired = desired(&installation(), &group_id(&part), &part, 10);
        assert_eq!(desired.object()["kind"], "MutatingWebhookConfiguration");
        assert_eq!(desired.entries[0]["reinvocationPolicy"], "Never");
    }

    #[test]
    fn z18_a_webhook_that_nobody_can_make_anew_follows_the_authority_and_nothing_else() {
        let group = group_id(&part());
        let there = desired(&installation(), &group, &part(), 10).entries;
        assert_eq!(kept(&installation(), WebhookKind::Validating, &group, &there).entries, there);
        let path_key = PathKey::Secret([7; 32]);
        let renewed =
            Installation { ca_bundle: Arc::new("another".into()), service_port: 444, path_key, ..installation() };
        let wanted = desired(&renewed, &group, &part(), 10);
        assert_eq!(kept(&renewed, WebhookKind::Validating, &group, &there), wanted);
        assert_eq!(waits(&there), 10);
    }

    #[test]
    fn what_an_api_server_gives_back_is_what_was_written() {
        let group = group_id(&part());
        let wanted = desired(&installation(), &group, &part(), 10);
        let mut object = wanted.object();
        object["metadata"]["uid"] = json!("u");
        let found = serde_json::from_value(object.clone()).expect("an object");
        let found = WebhookView::read(WebhookKind::Validating, &found).expect("a webhook");
        assert!(wanted.is(&found, &installation()));
        object["webhooks"][0]["matchConditions"] = json!([{"name": "off", "expression": "false"}]);
        let edited = serde_json::from_value(object).expect("an object");
        let edited = WebhookView::read(WebhookKind::Validating, &edited).expect("a webhook");
        assert!(!wanted.is(&edited, &installation()));
    }

    #[test]
    fn labels_of_the_settings_are_on_every_webhook_and_replace_none_of_ours() {
        let group = group_id(&part());
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let labels = [label("admissions.enforcer/disabled", "true"), label(MANAGED_BY_LABEL, "me")];
        let labelled = Installation { labels: Arc::new(labels.into()), ..installation() };
        let (plain, wanted) = (desired(&installation(), &group, &part(), 10), desired(&labelled, &group, &part(), 10));
        let all = &wanted.object()["metadata"]["labels"];
        assert_eq!(all["admissions.enforcer/disabled"], "true");
        assert_eq!(all[MANAGED_BY_LABEL], CONTROLLER_MANAGER);
        assert_eq!(check_webhook(&labelled, 10).metadata["labels"], *all);
        let there = kept(&labelled, WebhookKind::Validating, &group, &wanted.entries);
        assert_eq!(there, wanted, "one that nobody can make again keeps them");

        // A change of the settings is seen, although an API server gives back labels that are not read.
        let found = |desired: &Desired| {
            let mut object = desired.object();
            object["metadata"]["uid"] = json!("u");
            let found = serde_json::from_value(object).expect("an object");
            WebhookView::read(WebhookKind::Validating, &found).expect("a webhook")
        };
        assert!(wanted.is(&found(&wanted), &labelled) && plain.is(&found(&plain), &installation()));
        assert!(!wanted.is(&found(&plain), &labelled) && !plain.is(&found(&wanted), &installation()));
        assert_eq!(wanted.labels_patch(), *all);
        assert_eq!(plain.labels_patch()[LABELS_LABEL], Value::Null, "or it would be changed again and again");
    }
}
